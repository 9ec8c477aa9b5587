"""What systems are told about the app."""

from __future__ import annotations

import configparser
import os
import plistlib
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import bundle_facts
import icons
from PIL import Image

from app import __version__

PACKAGING = bundle_facts.ROOT / "packaging"


def test_info_plist_says_what_the_app_is_and_opens() -> None:
    plist = plistlib.loads(plistlib.dumps(bundle_facts.info_plist()))
    assert plist["CFBundleShortVersionString"] == plist["CFBundleVersion"] == __version__
    assert plist["LSMinimumSystemVersion"] == "14.0"
    assert plist["NSHighResolutionCapable"] is True
    assert plist["LSApplicationCategoryType"] == "public.app-category.productivity"
    declared = {kind["UTTypeIdentifier"] for kind in plist["UTImportedTypeDeclarations"]}
    opened = {name for kind in plist["CFBundleDocumentTypes"] for name in kind["LSItemContentTypes"]}
    assert opened == {"public.folder", *declared}
    suffixes = [
        kind["UTTypeTagSpecification"]["public.filename-extension"] for kind in plist["UTImportedTypeDeclarations"]
    ]
    assert suffixes == [["gguf"]]
    # The system shows these as the app's own words.
    usage = [value for key, value in plist.items() if key.endswith("UsageDescription")]
    assert usage
    assert all(text.endswith(".") and "model" in text for text in usage)


def test_the_hardened_runtime_allows_one_thing_only() -> None:
    entitlements = plistlib.loads((PACKAGING / "entitlements.plist").read_bytes())
    assert entitlements == {"com.apple.security.cs.allow-unsigned-executable-memory": True}


def test_the_desktop_file_starts_the_app_with_a_file() -> None:
    entry = configparser.ConfigParser(interpolation=None)
    entry.optionxform = str  # type: ignore[assignment,method-assign]
    entry.read_string(bundle_facts.desktop_entry())
    assert entry.sections() == ["Desktop Entry"]
    rows = dict(entry["Desktop Entry"])
    assert (rows["Type"], rows["Name"], rows["Terminal"]) == ("Application", "VeloxQuant Chat", "false")
    assert rows["Exec"] == "veloxquant-chat %f"
    for name in ("Categories", "Keywords", "MimeType"):
        assert rows[name].endswith(";")


def test_the_app_is_added_to_a_desktop_from_any_folder(tmp_path: Path) -> None:
    folder = tmp_path / 'with "quotes" & 100 %'
    folder.mkdir()
    (folder / "veloxquant-chat.desktop").write_text(bundle_facts.desktop_entry())
    script = folder / "add-to-desktop.sh"
    script.write_bytes((PACKAGING / script.name).read_bytes())
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
    subprocess.run(["sh", str(script)], env=environment, check=True, capture_output=True)
    added = tmp_path / "home/.local/share/applications/veloxquant-chat.desktop"
    rows = dict(line.split("=", 1) for line in added.read_text().splitlines()[1:])
    quoted = str(folder).replace('"', '\\\\"').replace("%", "%%")
    assert rows["Exec"] == f'"{quoted}/veloxquant-chat" %f'
    assert rows["Icon"] == f"{folder}/veloxquant-chat.png"
    assert rows["Name"] == "VeloxQuant Chat"


def test_the_icon_is_drawn_in_every_size(tmp_path: Path) -> None:
    icons.write_icns(tmp_path / "icon.icns")
    with Image.open(tmp_path / "icon.icns") as icns:
        assert {(width * scale) for width, _, scale in icns.info["sizes"]} >= {32, 64, 128, 256, 512, 1024}
    for size in (16, 512):
        image = icons.draw(size)
        assert image.size == (size, size)
        alpha = image.getchannel("A")
        assert alpha.getpixel((0, 0)) == 0, "nothing around it"
        assert alpha.getpixel((size // 2, size // 4)) == 255
        assert len(image.getcolors(size * size) or ()) > 20


def test_the_master_of_the_icon_leaves_the_margin_that_macos_wants() -> None:
    root = ET.fromstring(icons.SVG.read_text(encoding="utf-8"))
    assert root.get("viewBox") == "0 0 1024 1024"
    alpha = icons.draw(1024).getchannel("A")
    column = [y for y in range(1024) if alpha.getpixel((512, y)) == 255]
    row = [x for x in range(1024) if alpha.getpixel((x, 512)) == 255]
    assert (row[0], row[-1], column[0], column[-1]) == (100, 923, 100, 923)
