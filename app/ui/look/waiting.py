"""The line before an answer's first word: a thin bar, and what the model is doing, or what it waits for."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QVBoxLayout, QWidget

from app.ui.look.small import ThinBar, button, label


class WaitingLine(QWidget):
    """`stacked` puts the words below the bar, for narrow columns."""

    budget_asked = Signal()
    free_asked = Signal()

    def __init__(self, stacked: bool = False) -> None:
        super().__init__()
        self._bar = ThinBar(4)
        self._bar.setFixedWidth(120)
        self._words = label("", "3")
        self._heading = label("Waiting for memory", "2")
        self._message = label("", "3", wrap=True)
        budget, self._free = button("Memory budget…", "small"), button("Free idle chats", "small")
        self.focus_order: list[QWidget] = [budget, self._free]
        budget.clicked.connect(self.budget_asked)
        self._free.clicked.connect(self.free_asked)
        line = QBoxLayout(QBoxLayout.Direction.TopToBottom if stacked else QBoxLayout.Direction.LeftToRight)
        line.setSpacing(8 if stacked else 12)
        line.addWidget(self._bar)
        line.addWidget(self._words)
        line.addStretch()
        self._actions = QWidget()
        actions = QVBoxLayout(self._actions) if stacked else QHBoxLayout(self._actions)
        actions.setContentsMargins(0, 6, 0, 0)
        actions.setSpacing(8)
        for one in (budget, self._free):
            actions.addWidget(one, 0, Qt.AlignmentFlag.AlignLeft)
        actions.addStretch()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 4, 0, 4)
        layout.setSpacing(4)
        layout.addLayout(line)
        layout.addWidget(self._heading)
        layout.addWidget(self._message)
        layout.addWidget(self._actions)
        self.show_progress("queued", 0.0)

    def show_progress(self, phase: str, fraction: float, message: str = "", can_free: bool = False) -> None:
        """`message` and `can_free`, whether an idle chat holds memory, are for a chat that waits for memory."""
        reading, waiting = phase == "prefill", phase == "waiting"
        self._bar.setVisible(reading)
        self._bar.show_fraction(fraction)
        self._words.setVisible(not waiting)
        self._words.setText(f"Reading the prompt… {fraction * 100:.0f} %" if reading else "Waiting for its turn…")
        self._heading.setVisible(waiting)
        self._message.setText(message)
        self._message.setVisible(waiting and bool(message))
        self._actions.setVisible(waiting)
        self._free.setVisible(can_free)
