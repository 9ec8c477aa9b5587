"""The line icons of resources/icons, drawn in any colour."""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import QByteArray, QRectF, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from app.ui.look.assets import resource


@lru_cache(maxsize=256)
def pixmap(name: str, colour: str, size: int = 16, ratio: float = 2.0) -> QPixmap:
    """The icon at `size` device-independent pixels; the file's `currentColor` becomes `colour`."""
    text = resource("icons", f"{name}.svg").read_text(encoding="utf-8").replace("currentColor", colour)
    image = QPixmap(round(size * ratio), round(size * ratio))
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    QSvgRenderer(QByteArray(text.encode())).render(painter, QRectF(0, 0, image.width(), image.height()))
    painter.end()
    image.setDevicePixelRatio(ratio)
    return image


def icon(name: str, colour: str, size: int = 16) -> QIcon:
    return QIcon(pixmap(name, colour, size))


def app_icon() -> QIcon:
    """The application's own icon, at any size."""
    return QIcon(str(resource("icon.svg")))
