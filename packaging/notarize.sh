#!/usr/bin/env bash
# Have Apple notarize an .app or .dmg, and staple the ticket to it: packaging/notarize.sh PATH  (macOS only)
#
# Needs NOTARY_KEY_FILE (an App Store Connect API key, .p8), NOTARY_KEY_ID and NOTARY_ISSUER.
set -euo pipefail

if [ $# -ne 1 ] || [ ! -e "$1" ]; then
    echo "Usage: packaging/notarize.sh PATH.app|PATH.dmg (sign it first with packaging/sign.sh)" >&2
    exit 2
fi
target="${1%/}"
for name in NOTARY_KEY_FILE NOTARY_KEY_ID NOTARY_ISSUER; do
    if [ -z "${!name:-}" ]; then
        echo "$name is not set, so $target can't be notarized. packaging/README.md says where it comes from." >&2
        exit 2
    fi
done
key=(--key "$NOTARY_KEY_FILE" --key-id "$NOTARY_KEY_ID" --issuer "$NOTARY_ISSUER")

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
upload="$target"
if [ -d "$target" ]; then # an app travels as a zip, and gets its ticket itself
    upload="$work/app.zip"
    ditto -c -k --keepParent "$target" "$upload"
fi

# notarytool also exits with 0 when Apple's answer is no, so the answer is read.
xcrun notarytool submit "$upload" "${key[@]}" --wait --timeout 45m --output-format plist > "$work/answer.plist"
answer="$(/usr/libexec/PlistBuddy -c 'Print :status' "$work/answer.plist")"
if [ "$answer" != "Accepted" ]; then
    echo "Apple did not accept $target: $answer. Its log:" >&2
    xcrun notarytool log "$(/usr/libexec/PlistBuddy -c 'Print :id' "$work/answer.plist")" "${key[@]}" >&2
    exit 1
fi
xcrun stapler staple "$target"
xcrun stapler validate "$target"
if [ -d "$target" ]; then
    spctl --assess --type execute --verbose=2 "$target"
else
    spctl --assess --type open --context context:primary-signature --verbose=2 "$target"
fi
