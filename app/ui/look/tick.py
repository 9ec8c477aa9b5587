"""A check box that is drawn by us."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QCheckBox

from app.ui.look.theme import theme


class Tick(QCheckBox):
    """A check box in the window's colours; the style's own can hardly be seen on a dark ground."""

    SIZE = 16
    INDENT = SIZE + 8  # where its words begin

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        theme().changed.connect(self.update)

    def sizeHint(self) -> QSize:
        words_size = self.fontMetrics().size(Qt.TextFlag.TextShowMnemonic, self.text())
        return QSize(self.INDENT + words_size.width() + 2, max(self.SIZE + 4, words_size.height() + 4))

    def hitButton(self, pos: QPoint) -> bool:
        return self.rect().contains(pos)

    def paintEvent(self, event: QPaintEvent) -> None:
        tokens, checked = theme().tokens, self.isChecked()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        box = QRectF(1, (self.height() - self.SIZE) / 2 + 1, self.SIZE - 2, self.SIZE - 2)
        painter.setPen(QPen(QColor(tokens.accent if checked else tokens.text3), 1.2))
        painter.setBrush(QColor(tokens.accent if checked else tokens.raised))
        painter.drawRoundedRect(box, 4, 4)
        if checked:
            corner = box.topLeft()
            hook = [corner + QPointF(x, y) for x, y in ((3.3, 7.3), (5.9, 9.9), (10.7, 4.4))]
            pen = QPen(QColor(tokens.on_accent), 1.8, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap)
            pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
            painter.setPen(pen)
            painter.drawPolyline(hook)
        painter.setPen(QColor(tokens.text))
        where = self.rect().adjusted(self.INDENT, 0, 0, 0)
        painter.drawText(where, Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextShowMnemonic, self.text())
        if self.hasFocus():
            painter.setPen(QPen(QColor(tokens.accent), 2))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(1, 1, -1, -1), 5, 5)
