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
        self._moment = QTimer(self)
        self._moment.setSingleShot(True)
        self._moment.setInterval(1500)
        self._moment.timeout.connect(self.rest)
        self.clicked.connect(self._copy)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.copies())
        self.set_icon("check", "Copied")
        self._moment.start()

    def rest(self) -> None:
        """The moment is over, or what was copied is not here any more."""
        self._moment.stop()
        self.set_icon("copy", self._says)
