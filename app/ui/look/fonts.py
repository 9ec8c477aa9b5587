"""Which typefaces the window is set in: the system's own where it is made for that, Inter where it isn't."""

from __future__ import annotations

import sys

from PySide6.QtGui import QFont, QFontDatabase, QGuiApplication

from app.ui.look.assets import resource

# Defaults of Linux systems where nobody chose a font. They are made for wide coverage, not for a calm window.
_NOT_FOR_WINDOWS = {"", "dejavu sans", "bitstream vera sans", "sans serif", "sans", "liberation sans", "nimbus sans"}
_MONOSPACED = ("SF Mono", "Menlo", "JetBrains Mono", "Cascadia Mono", "Ubuntu Mono", "Noto Sans Mono")


def load_bundled() -> None:
    for path in sorted(resource("fonts").glob("*.otf")):
        QFontDatabase.addApplicationFont(str(path))


def base_px() -> int:
    """The height of normal text in pixels that scale with the screen; on Linux, the system's text size counts too."""
    screen = QGuiApplication.primaryScreen()
    if sys.platform == "darwin" or screen is None:
        return 13
    return max(13, round(13 * screen.logicalDotsPerInch() / 96))


def interface_font() -> QFont:
    font = QFontDatabase.systemFont(QFontDatabase.SystemFont.GeneralFont)
    if sys.platform != "darwin" and font.family().lower() in _NOT_FOR_WINDOWS:
        load_bundled()
        font = QFont("Inter")
    font.setPixelSize(base_px())
    font.setHintingPreference(QFont.HintingPreference.PreferNoHinting)
    return font


def monospaced_family() -> str:
    available = set(QFontDatabase.families())
    for family in _MONOSPACED:
        if family in available:
            return family
    return QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont).family()
