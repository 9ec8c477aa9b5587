#!/usr/bin/env bash
# Put a built app into a disk image: packaging/make_dmg.sh "dist/VeloxQuant Chat.app" dist/chat.dmg  (macOS only)
#
# People open the image and drag the app onto the link to their Applications folder. With SIGN_IDENTITY set, the image
# is signed, too.
set -euo pipefail

if [ $# -ne 2 ] || [ ! -d "$1/Contents/MacOS" ]; then
    echo "Usage: packaging/make_dmg.sh PATH.app PATH.dmg (build the app first with make app)" >&2
    exit 2
fi
app="${1%/}"
image="$2"
name="$(basename "$app" .app)"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir "$work/image"
ditto "$app" "$work/image/$(basename "$app")" # keeps links, modes and signatures
ln -s /Applications "$work/image/Applications"

# hdiutil now and then finds its own volume busy on CI's machines; it passes when tried again.
for attempt in 1 2 3; do
    if hdiutil create -volname "$name" -srcfolder "$work/image" -fs HFS+ -format UDZO -ov "$work/made.dmg"; then
        break
    fi
    if [ "$attempt" -eq 3 ]; then
        echo "hdiutil could not make the disk image." >&2
        exit 1
    fi
    sleep 5
done
hdiutil verify "$work/made.dmg"
if [ -n "${SIGN_IDENTITY:-}" ] && [ "$SIGN_IDENTITY" != "-" ]; then
    codesign --force --sign "$SIGN_IDENTITY" --timestamp "$work/made.dmg"
fi
mkdir -p "$(dirname "$image")"
mv -f "$work/made.dmg" "$image"
echo "$image: $(du -h "$image" | cut -f1)"
