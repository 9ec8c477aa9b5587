"""The line above the input that says why sending is not possible yet, with the progress of loading."""

from __future__ import annotations

from PySide6.QtWidgets import QHBoxLayout, QWidget

from app.ui.small import ThinBar, label
from app.ui.state import Model


class StatusLine(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self._words = label("", "2")
        self._bar = ThinBar(4)
        self._bar.setFixedWidth(140)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(4, 0, 4, 8)
        layout.setSpacing(12)
        layout.addWidget(self._words)
        layout.addWidget(self._bar)
        layout.addStretch()

    def show_model(self, model: Model) -> None:
        self.setVisible(bool(model.words))
        self._words.setText(model.words)
        self._words.setAccessibleName(model.words)
        self._bar.setVisible(model.phase == "loading")
        self._bar.show_fraction(model.fraction)
