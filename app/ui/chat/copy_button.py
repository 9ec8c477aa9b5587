"""A button that copies."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QTimer
from PySide6.QtGui import QGuiApplication

from app.ui.look.small import IconButton


class CopyButton(IconButton):
    """Puts what `copies` returns on the clipboard and shows a tick for a moment."""

    def __init__(self, says: str, copies: Callable[[], str] = str) -> None:
        super().__init__("copy", says, size=28, role="text3")
        self._says, self.copies = says, copies
        self.clicked.connect(self._copy)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.copies())
        self.set_icon("check", "Copied")
        QTimer.singleShot(1500, self, lambda: self.set_icon("copy", self._says))
