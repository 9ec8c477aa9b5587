"""Where a chat's messages scroll."""

from __future__ import annotations

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from app.ui.look.icons import icon
from app.ui.look.small import ScrollArea, button
from app.ui.look.theme import theme

COLUMN = 720


class MessageScroll(ScrollArea):
    """The messages' scroll area: stays at the end while it grows, unless one has scrolled up to read."""

    def __init__(self, column: QVBoxLayout) -> None:
        super().__init__()
        inside, middle = QWidget(), QWidget()
        middle.setMaximumWidth(COLUMN)
        middle.setLayout(column)
        column.addStretch(1)
        centred = self._centred = QHBoxLayout(inside)
        centred.setContentsMargins(24, 0, 24, 0)
        centred.addStretch(1)
        centred.addWidget(middle, 1000)
        centred.addStretch(1)
        self.setWidget(inside)
        self._at_end = True
        self._latest = button("Jump to latest")
        self._latest.setObjectName("latest")
        self._latest.setParent(self)
        self._latest.setFixedHeight(32)
        self._latest.clicked.connect(self.to_end)
        self._latest.hide()
        theme().changed.connect(self._tint)
        self._tint()
        bar = self.verticalScrollBar()
        bar.valueChanged.connect(self._scrolled)
        bar.rangeChanged.connect(self._grown)

    def to_end(self) -> None:
        self._at_end = True
        self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())
        self._latest.hide()

    def _scrolled(self, value: int) -> None:
        self._at_end = value >= self.verticalScrollBar().maximum() - 8
        self._latest.setVisible(not self._at_end)

    def _grown(self, _: int, maximum: int) -> None:
        # The scroll bar takes its room from the margin, so that the messages stay in line with the input below them.
        bar = self.verticalScrollBar()
        self._centred.setContentsMargins(24, 0, 24 - (bar.sizeHint().width() if maximum > 0 else 0), 0)
        if self._at_end:
            bar.setValue(maximum)
        self._latest.setVisible(not self._at_end)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        size = self._latest.sizeHint()
        self._latest.move((self.width() - size.width()) // 2, self.height() - 40)
        self._latest.resize(size.width(), 32)

    def _tint(self) -> None:
        self._latest.setIcon(icon("latest", theme().tokens.text2))
