"""What is true of the packaged app on every system: its names, its version, what it opens, its Info.plist.

The one place for them: the spec, the scripts that build, sign and check, and the tests read them from here. The
version is `app.__version__`. No Qt, no PyInstaller.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # run as a script, or from the spec
    sys.path.insert(0, str(ROOT))

from app import __version__ as VERSION  # noqa: E402, N812
from app.models.default_model import DEFAULT_NAME  # noqa: E402

NAME = "VeloxQuant Chat"
# Reverse DNS below github.io, whose subdomains belong to accounts of the same name: nobody's own domain is claimed.
# It names the app's settings and permissions on people's machines, so it must never change.
BUNDLE_ID = "io.github.veloxquant.chat"
# The file that starts, without suffix: Contents/MacOS/veloxquant-chat, dist/veloxquant-chat/veloxquant-chat. It is
# also the name of the .desktop file, which Wayland looks the window's icon up by.
EXECUTABLE = "veloxquant-chat"
# The oldest macOS that mlx-metal has a wheel for.
MIN_MACOS = "14.0"
ICON = "veloxquant-chat.icns"
# Where the default model sits, below sys._MEIPASS and so below Contents/Frameworks (links) and Contents/Resources.
MODEL_FOLDER = f"models/{DEFAULT_NAME}"
# The whole folder or .app, model included, every file counted once.
MAX_BYTES = 450_000_000
COPYRIGHT = "Copyright © 2026 VeloxQuant Chat authors. MIT License."
# GGUF has no identifier that its makers declare, so the app imports one of its own making for the suffix.
GGUF_TYPE = "io.github.veloxquant.gguf"

DIST = ROOT / "dist"
MACOS_APP = DIST / f"{NAME}.app"
LINUX_FOLDER = DIST / EXECUTABLE


def app_path(platform: str = sys.platform) -> Path:
    """The built bundle: the .app on macOS, the folder elsewhere."""
    return MACOS_APP if platform == "darwin" else LINUX_FOLDER


def executable_path(platform: str = sys.platform) -> Path:
    """The file in the built bundle that starts the app."""
    return MACOS_APP / "Contents" / "MacOS" / EXECUTABLE if platform == "darwin" else LINUX_FOLDER / EXECUTABLE


def info_plist() -> dict[str, Any]:
    """Info.plist, in full. Keys: https://developer.apple.com/documentation/bundleresources/information-property-list."""
    why = "{} opens the model files that you choose in this folder.".format
    return {
        "CFBundleDevelopmentRegion": "en",
        "CFBundleDisplayName": NAME,
        "CFBundleDocumentTypes": [
            {
                "CFBundleTypeName": "GGUF model",
                "CFBundleTypeRole": "Viewer",
                "LSHandlerRank": "Alternate",
                "LSItemContentTypes": [GGUF_TYPE],
            },
            {
                "CFBundleTypeName": "Model folder",
                "CFBundleTypeRole": "Viewer",
                "LSHandlerRank": "Alternate",
                "LSItemContentTypes": ["public.folder"],
            },
        ],
        "CFBundleExecutable": EXECUTABLE,
        "CFBundleIconFile": ICON,
        "CFBundleIdentifier": BUNDLE_ID,
        "CFBundleInfoDictionaryVersion": "6.0",
        "CFBundleName": NAME,
        "CFBundlePackageType": "APPL",
        "CFBundleShortVersionString": VERSION,
        "CFBundleVersion": VERSION,
        "LSApplicationCategoryType": "public.app-category.productivity",
        "LSMinimumSystemVersion": MIN_MACOS,
        "NSHighResolutionCapable": True,
        "NSHumanReadableCopyright": COPYRIGHT,
        "NSPrincipalClass": "NSApplication",
        # False: the window follows the system into dark mode.
        "NSRequiresAquaSystemAppearance": False,
        # Asked for by macOS when a model that a person names lies there; the app looks nowhere by itself.
        "NSDesktopFolderUsageDescription": why(NAME),
        "NSDocumentsFolderUsageDescription": why(NAME),
        "NSDownloadsFolderUsageDescription": why(NAME),
        "NSRemovableVolumesUsageDescription": f"{NAME} opens the model files that you choose on this disk.",
        "UTImportedTypeDeclarations": [
            {
                "UTTypeConformsTo": ["public.data"],
                "UTTypeDescription": "GGUF model",
                "UTTypeIdentifier": GGUF_TYPE,
                "UTTypeReferenceURL": "https://github.com/ggml-org/ggml/blob/master/docs/gguf.md",
                "UTTypeTagSpecification": {"public.filename-extension": ["gguf"]},
            }
        ],
    }


def desktop_entry() -> str:
    """The .desktop file. Keys: https://specifications.freedesktop.org/desktop-entry-spec/latest/."""
    rows = {
        "Type": "Application",
        "Version": "1.5",
        "Name": NAME,
        "Comment": "Chat with a local model, and see what its memory of each chat costs",
        "Exec": f"{EXECUTABLE} %f",
        "Icon": EXECUTABLE,
        "Terminal": "false",
        "Categories": "Utility;",
        "Keywords": "LLM;GGUF;MLX;KV cache;",
        # GGUF has no registered type; where a desktop knows the suffix, this is what it is called.
        "MimeType": "application/x-gguf;",
        "StartupWMClass": EXECUTABLE,
    }
    return "[Desktop Entry]\n" + "".join(f"{key}={value}\n" for key, value in rows.items())
