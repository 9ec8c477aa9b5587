"""Draws resources/icon.svg in every size the systems ask for: PNG files for Linux, one .icns file for macOS."""

from __future__ import annotations

import io
import os
from pathlib import Path

from bundle_facts import ROOT
from PIL import Image

SVG = ROOT / "resources" / "icon.svg"
# What an .icns file may hold, in pixels; the larger ones serve as the smaller ones of screens with two pixels a point.
ICNS_SIZES = (16, 32, 64, 128, 256, 512, 1024)


def draw(size: int) -> Image.Image:
    """The icon, `size` pixels wide and high, on nothing."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")  # builds have no screen
    from PySide6.QtCore import QBuffer, QIODevice
    from PySide6.QtGui import QImage, QPainter
    from PySide6.QtSvg import QSvgRenderer

    image = QImage(size, size, QImage.Format.Format_ARGB32_Premultiplied)
    image.fill(0)
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    QSvgRenderer(str(SVG)).render(painter)
    painter.end()
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    image.save(buffer, "PNG")
    return Image.open(io.BytesIO(buffer.data().data())).convert("RGBA")


def write_png(path: Path, size: int) -> None:
    """Write the icon as a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(size).save(path)


def write_icns(path: Path) -> None:
    """Write the icon as an .icns file, each size drawn by itself rather than made from the largest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = [draw(size) for size in ICNS_SIZES]
    drawn[-1].save(path, format="ICNS", append_images=drawn[:-1])
