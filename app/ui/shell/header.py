"""The line above the middle: what is shown, and the buttons of its answers' settings and of the memory panel."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout

from app.ui.look.small import Dot, ElidedLabel, IconButton, label

HEIGHT = 52


class Header(QFrame):
    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("header")
        self.setFixedHeight(HEIGHT)
        self._dot = Dot()
        self._title = ElidedLabel("", "title")
        self._chip = label("", "chip")
        self.answers = IconButton("sliders", "Answer settings…", 32)
        self.memory = IconButton("panel", "Show or hide the memory panel", 32)
        self.memory.setCheckable(True)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(24, 0, 12, 0)
        layout.setSpacing(10)
        layout.addWidget(self._dot)
        layout.addWidget(self._title, 1)
        layout.addWidget(self._chip, 0, Qt.AlignmentFlag.AlignVCenter)
        buttons = QHBoxLayout()
        buttons.setSpacing(2)
        buttons.addWidget(self.answers)
        buttons.addWidget(self.memory)
        layout.addLayout(buttons)

    def show_place(self, title: str, chip: str = "", colour: int | None = None) -> None:
        self._dot.setVisible(colour is not None)
        if colour is not None:
            self._dot.set_colour(colour)
        self._title.set_full(title)
        self._chip.setText(chip)
        self._chip.setVisible(bool(chip))
