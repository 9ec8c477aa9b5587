"""The line before an answer's first word: a thin bar, and what the model is doing."""

from __future__ import annotations

from PySide6.QtWidgets import QBoxLayout, QWidget

from app.ui.small import ThinBar, label


class WaitingLine(QWidget):
    """`stacked` puts the words below the bar, for narrow columns."""

    def __init__(self, stacked: bool = False) -> None:
        super().__init__()
        self._bar = ThinBar(4)
        self._bar.setFixedWidth(120)
        self._words = label("", "3")
        layout = QBoxLayout(QBoxLayout.Direction.TopToBottom if stacked else QBoxLayout.Direction.LeftToRight, self)
        layout.setContentsMargins(0, 4, 0, 4)
        layout.setSpacing(8 if stacked else 12)
        layout.addWidget(self._bar)
        layout.addWidget(self._words)
        layout.addStretch()

    def show_progress(self, phase: str, fraction: float) -> None:
        reading = phase == "prefill"
        self._bar.setVisible(reading)
        self._bar.show_fraction(fraction)
        self._words.setText(f"Reading the prompt… {fraction * 100:.0f} %" if reading else "Waiting for its turn…")
