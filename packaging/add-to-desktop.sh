#!/bin/sh
# Adds VeloxQuant Chat, where this folder is now, to your desktop's menu; run it again after moving the folder.
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
menu="${XDG_DATA_HOME:-$HOME/.local/share}/applications"
mkdir -p "$menu"
# In a .desktop file a path stands in quotes, and these characters get a backslash (written twice there).
path="$(printf '%s' "$here/veloxquant-chat" | sed 's/[\\"`$]/\\\\&/g; s/%/%%/g')"
while IFS= read -r line; do
    case "$line" in
        Exec=*) printf 'Exec="%s" %%f\n' "$path" ;;
        Icon=*) printf 'Icon=%s\n' "$here/veloxquant-chat.png" ;;
        *) printf '%s\n' "$line" ;;
    esac
done < "$here/veloxquant-chat.desktop" > "$menu/veloxquant-chat.desktop"
echo "Added: $menu/veloxquant-chat.desktop"
