"""The line above the input that says why sending is not possible yet, with the progress of loading."""

from __future__ import annotations

from PySide6.QtWidgets import QHBoxLayout, QWidget

from app.ui.look.small import ThinBar, label


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

    def show_words(self, words: str, fraction: float | None, loading: bool) -> None:
        """`words` says why not, nothing where it is possible; the bar is there while something is `loading`."""
        self.setVisible(bool(words))
        self._words.setText(words)
        self._words.setAccessibleName(words)
        self._bar.setVisible(loading)
        self._bar.show_fraction(fraction)
