"""Blocks held over the last two minutes, stacked per chat in the chats' colours; those of forks for each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QColor, QHideEvent, QShowEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.ui.look.theme import theme
from app.ui.look.tokens import blend
from app.ui.session.state import HISTORY_SECONDS, Sample

REDRAW_MS = 250


def stacked(history: Sequence[Sample], ids: Sequence[int], now: float) -> tuple[np.ndarray, list[np.ndarray]]:
    """Times (seconds before now, so 0 is the right edge) and for each id the running total up to and with it.

    The last sample holds until now: nothing is reported while nothing changes.
    """
    samples = [*history, Sample(max(now, history[-1].time), history[-1].blocks)] if history else []
    # Steps, not slopes: each moment twice, with the value before it and its own.
    times = np.repeat(np.array([sample.time - now for sample in samples]), 2)
    totals, running = [], np.zeros(2 * len(samples))
    for chat_id in ids:
        own = np.repeat(np.array([sample.blocks.get(chat_id, 0) for sample in samples]), 2)
        running = running + np.concatenate((own[:1], own[:-1]))
        totals.append(running)
    return times, totals


class MemoryChart(QWidget):
    """The chart; it asks `history` and `colour_of` anew each time it is drawn."""

    def __init__(self, history: Callable[[], Sequence[Sample]], colour_of: Callable[[int], int]) -> None:
        super().__init__()
        self._history, self._colour_of = history, colour_of
        self.setAccessibleName("Blocks held over the last two minutes")
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._plot: Any = pg.PlotWidget()
        self._plot.setAntialiasing(True)
        self._plot.setFrameShape(self._plot.Shape.NoFrame)
        self._plot.setMenuEnabled(False)
        self._plot.hideButtons()
        self._plot.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        item = self._plot.getPlotItem()
        item.getViewBox().setMouseEnabled(False, False)
        item.hideAxis("left")
        item.showAxis("right")
        item.setContentsMargins(0, 4, 0, 0)
        item.hideAxis("bottom")
        self._right = item.getAxis("right")
        self._lines = [pg.InfiniteLine(angle=0) for _ in range(3)]
        for line in self._lines:
            line.setZValue(-1000)
            self._plot.addItem(line, ignoreBounds=True)
        item.setXRange(-HISTORY_SECONDS, 0, padding=0)
        self._right.setStyle(tickLength=0, tickTextOffset=8, autoExpandTextSpace=False)
        self._right.setWidth(36)
        self._curves: dict[int, Any] = {}
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self._plot)
        self._timer = QTimer(self)
        self._timer.setInterval(REDRAW_MS)
        self._timer.timeout.connect(self.draw)
        theme().changed.connect(self._tint)
        self._tint()

    def draw(self) -> None:
        history = list(self._history())
        ids = sorted({chat_id for sample in history for chat_id in sample.blocks}, key=lambda i: (i < 0, abs(i)))
        times, totals = stacked(history, ids, time.monotonic())
        for chat_id in [i for i in self._curves if i not in ids]:
            self._plot.removeItem(self._curves.pop(chat_id))
        for place, chat_id in enumerate(ids):
            curve = self._curves.get(chat_id)
            if curve is None:
                curve = self._curves[chat_id] = pg.PlotCurveItem(fillLevel=0, antialias=True)
                self._plot.addItem(curve)
                self._dress(chat_id)
            # The tallest total is drawn first; each lower one covers what is not its own.
            curve.setZValue(-place)
            curve.setData(times, totals[place])
        self._scale(float(totals[-1].max()) if totals and len(times) else 0.0)

    def showEvent(self, event: QShowEvent) -> None:
        self._timer.start()
        self.draw()  # or the library's own scale would be seen until the timer's first turn
        super().showEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        self._timer.stop()
        super().hideEvent(event)

    def _scale(self, highest: float) -> None:
        top = nice_ceiling(highest)
        self._plot.getPlotItem().setYRange(0, top, padding=0.06)
        for line, height in zip(self._lines, (0.0, top / 2, top), strict=True):
            line.setValue(height)
        ticks = [(height, short(height)) for height in ((0.0, top / 2, top) if highest else (0.0,))]
        self._right.setTicks([ticks])

    def _dress(self, chat_id: int) -> None:
        tokens = theme().tokens
        colour = tokens.chats[self._colour_of(chat_id) % len(tokens.chats)]
        self._curves[chat_id].setPen(pg.mkPen(QColor(colour), width=1.5))
        self._curves[chat_id].setBrush(QColor(blend(colour, tokens.panel, 0.28)))

    def _tint(self) -> None:
        tokens = theme().tokens
        self._plot.setBackground(QColor(tokens.panel))
        font = self.font()
        font.setPixelSize(theme().base - 2)
        self._right.setPen(QColor(tokens.panel))
        self._right.setTextPen(QColor(tokens.text3))
        self._right.setTickFont(font)
        for line in self._lines:
            line.setPen(pg.mkPen(QColor(tokens.hairline), width=1))
        for chat_id in self._curves:
            self._dress(chat_id)


def short(number: float) -> str:
    """1500 is "1.5k": the axis has room for four characters."""
    return f"{number:g}" if number < 1000 else f"{number / 1000:g}k"


def nice_ceiling(value: float) -> float:
    """The least of 10, 20, 40, 100, 200, 400... that is not below the value."""
    scale = 10.0
    while True:
        for step in (1.0, 2.0, 4.0):
            if value <= step * scale:
                return step * scale
        scale *= 10
