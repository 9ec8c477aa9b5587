"""One slim bar over the whole budget, with a segment per chat in the chat's colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.ui.look.theme import theme

# Thinner than this a segment can't be seen, so in a large budget small chats are drawn larger than they are.
LEAST_PX = 3.0


@dataclass(frozen=True, slots=True)
class Share:
    """One chat's part, in the unit of the whole."""

    colour: int
    amount: float


def widths(shares: Sequence[Share], whole: float, width: float) -> list[float]:
    """Pixels of each share: in proportion, at least LEAST_PX, and never more than `width` together."""
    if whole <= 0:
        return [0.0 for _ in shares]
    wanted = [max(share.amount / whole * width, LEAST_PX) if share.amount else 0.0 for share in shares]
    total = sum(wanted)
    return [one * width / total for one in wanted] if total > width else wanted


class PoolGauge(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self.setFixedHeight(8)
        self._shares: list[Share] = []
        self._whole = 0.0
        theme().changed.connect(self.update)

    def show_shares(self, shares: list[Share], whole: float) -> None:
        if shares != self._shares or whole != self._whole:
            self._shares, self._whole = shares, whole
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
        pixels = widths(self._shares, self._whole, self.width())
        for place, (share, width) in enumerate(zip(self._shares, pixels, strict=True), start=1):
            # A pixel of ground between neighbours tells them apart where there is room for it.
            gap = 1.0 if width >= LEAST_PX and place < len(pixels) else 0.0
            painter.setBrush(theme().chat_colour(share.colour))
            painter.drawRect(QRectF(left, 0, width - gap, self.height()))
            left += width
