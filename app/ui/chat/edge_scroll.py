"""Scrolls on while one selects beyond what can be seen."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QCursor
from PySide6.QtWidgets import QAbstractScrollArea, QApplication

from app.ui.chat.body import Body

EVERY_MS = 30
MOST = 60  # pixels at a time, however far away the pointer is


class EdgeScroll(QTimer):
    """Runs while the pointer, with its button held, is above or below the area."""

    def __init__(self, area: QAbstractScrollArea) -> None:
        super().__init__(area)
        self._area = area
        self._body: Body | None = None
        self.timeout.connect(self._scroll)

    def follow(self, body: Body) -> None:
        """Something in `body` is being selected."""
        self._body = body
        if self._beyond() and not self.isActive():
            self.start(EVERY_MS)

    def let_go(self, body: Body) -> None:
        """`body` is not there any more."""
        if self._body is body:
            self._body = None

    def _beyond(self) -> int:
        """Pixels from the edge of what can be seen to the pointer."""
        viewport = self._area.viewport()
        y = viewport.mapFromGlobal(QCursor.pos()).y()
        return min(y, 0) or max(0, y - viewport.height())

    def _scroll(self) -> None:
        beyond, body = self._beyond(), self._body
        if not beyond or body is None or not QApplication.mouseButtons() & Qt.MouseButton.LeftButton:
            self.stop()
            return
        bar = self._area.verticalScrollBar()
        bar.setValue(bar.value() + max(-MOST, min(beyond, MOST)))
        body.select_to(body.mapFromGlobal(QCursor.pos()))
