"""Draws resources/icon.svg in every size the systems ask for: PNG files for Linux, one .icns file for macOS."""

from __future__ import annotations

import os
from pathlib import Path

from bundle_facts import ROOT
from PIL import Image

SVG = ROOT / "resources" / "icon.svg"
# In pixels, as Pillow writes them; macOS makes the one of 16 from that of 32.
ICNS_SIZES = (32, 64, 128, 256, 512, 1024)


def draw(size: int) -> Image.Image:
    """The icon, `size` pixels wide and high, on nothing."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")  # builds have no screen
    from PySide6.QtGui import QImage, QPainter
    from PySide6.QtSvg import QSvgRenderer

    image = QImage(size, size, QImage.Format.Format_ARGB32_Premultiplied)
    image.fill(0)
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    QSvgRenderer(str(SVG)).render(painter)
    painter.end()
    image = image.convertToFormat(QImage.Format.Format_RGBA8888)
    return Image.frombytes("RGBA", (size, size), bytes(image.constBits()))


def write_png(path: Path, size: int) -> None:
    """Write the icon as a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(size).save(path)


def write_icns(path: Path) -> None:
    """Write the icon as an .icns file, each size drawn by itself rather than made from the largest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = [draw(size) for size in ICNS_SIZES]
    drawn[-1].save(path, format="ICNS", append_images=drawn[:-1])
