#!/usr/bin/env bash
# Sign a built app, from the inside out: packaging/sign.sh "dist/VeloxQuant Chat.app"  (macOS only)
#
# With SIGN_IDENTITY set ("Developer ID Application: ..."), every file is signed with the hardened runtime and a
# timestamp, as notarization asks for, and the app gets packaging/entitlements.plist. Without it the signature is ad
# hoc: enough to run on Apple silicon, not enough for Gatekeeper; and without the hardened runtime, under which macOS
# would refuse to load libraries that no team has signed.
set -euo pipefail

if [ $# -ne 1 ] || [ ! -d "$1/Contents/MacOS" ]; then
    echo "Usage: packaging/sign.sh PATH.app (build it first with make app)" >&2
    exit 2
fi
app="${1%/}"
here="$(cd "$(dirname "$0")" && pwd)"
identity="${SIGN_IDENTITY:--}"
options=(--force --sign "$identity")
if [ "$identity" != "-" ]; then
    options+=(--options runtime --timestamp)
fi

# Extended attributes (Finder's, or a download's) make codesign fail with "detritus not allowed".
xattr -cr "$app"

# Deepest first: a signature seals everything below it. The executable and the app itself come last.
executable="$app/Contents/MacOS/$(/usr/libexec/PlistBuddy -c 'Print :CFBundleExecutable' "$app/Contents/Info.plist")"
signed=0
while IFS= read -r -d '' file; do
    if [ "$file" != "$executable" ] && file -b "$file" | grep -q 'Mach-O'; then
        codesign "${options[@]}" "$file"
        signed=$((signed + 1))
    fi
done < <(find "$app/Contents" -depth -type f -print0)
while IFS= read -r -d '' framework; do
    codesign "${options[@]}" "$framework"
    signed=$((signed + 1))
done < <(find "$app/Contents/Frameworks" -depth -type d -name '*.framework' -print0)

if [ "$identity" = "-" ]; then
    codesign "${options[@]}" "$app"
else
    codesign "${options[@]}" --entitlements "$here/entitlements.plist" "$app"
fi
codesign --verify --deep --strict --verbose=2 "$app"
if [ "$identity" = "-" ]; then
    echo "$app: signed ad hoc ($signed files and frameworks inside). Other Macs ask before they open it."
else
    echo "$app: signed by $identity ($signed files and frameworks inside)."
fi
