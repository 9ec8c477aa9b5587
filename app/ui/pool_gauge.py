"""One slim bar over all blocks of the pool, with a segment per chat in the chat's colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.ui.theme import theme

# Thinner than this a segment can't be seen, so in a large pool small chats are drawn larger than they are.
LEAST_PX = 3.0


@dataclass(frozen=True, slots=True)
class Share:
    colour: int
    blocks: int


def widths(shares: Sequence[Share], n_blocks: int, width: float) -> list[float]:
    """Pixels of each share: in proportion, at least LEAST_PX, and never more than `width` together."""
    if n_blocks <= 0:
        return [0.0 for _ in shares]
    wanted = [max(share.blocks / n_blocks * width, LEAST_PX) if share.blocks else 0.0 for share in shares]
    total = sum(wanted)
    return [one * width / total for one in wanted] if total > width else wanted


class PoolGauge(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self.setFixedHeight(8)
        self._shares: list[Share] = []
        self._n_blocks = 0
        theme().changed.connect(self.update)

    def show_shares(self, shares: list[Share], n_blocks: int) -> None:
        if shares != self._shares or n_blocks != self._n_blocks:
            self._shares, self._n_blocks = shares, n_blocks
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        path = QPainterPath()
        path.addRoundedRect(QRectF(self.rect()), 4, 4)
        painter.setClipPath(path)
        painter.fillRect(self.rect(), QColor(theme().tokens.track))
        painter.setPen(Qt.PenStyle.NoPen)
        left = 0.0
        for share, width in zip(self._shares, widths(self._shares, self._n_blocks, self.width()), strict=True):
            # A pixel of ground between neighbours tells them apart where there is room for it.
            gap = 1.0 if width >= LEAST_PX else 0.0
            painter.setBrush(theme().chat_colour(share.colour))
            painter.drawRect(QRectF(left, 0, width - gap, self.height()))
            left += width
