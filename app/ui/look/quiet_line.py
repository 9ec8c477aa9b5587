"""Small grey words that can turn into a warning without changing their size."""

from __future__ import annotations

from PySide6.QtWidgets import QLabel

from app.ui.look.small import restyle
from app.ui.look.theme import theme


def speak(line: QLabel, warn: bool) -> None:
    """Give a label the warning's voice, or the quiet one."""
    voice = "warn" if warn else "3"
    if line.property("voice") == voice:
        return  # restyling ten times a second would be felt
    line.setProperty("voice", voice)
    restyle(line)
    # The warning's voice has no size of its own, as the quiet one has; restyling puts back the size from before.
    font = line.font()
    font.setPixelSize(theme().base - 1)
    line.setFont(font)
