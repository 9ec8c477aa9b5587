"""One column of the comparison: its method, its answer as it comes, and what it cost."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from app.engine.messages import CacheChoice
from app.ui.look import words
from app.ui.look.document_view import DocumentView
from app.ui.look.method_picker import MethodButton
from app.ui.look.small import Dot, IconButton, ScrollArea, ThinBar, label, rule, set_tip
from app.ui.look.theme import theme
from app.ui.look.waiting import WaitingLine
from app.ui.session.comparison import Comparison
from app.ui.session.state import ENDINGS, N_COLOURS, Lane
from app.ui.session.textdiff import describe

ALONE = "Measured alone for a few steps after the answer. While lanes are running, all of them share each step."


class LaneView(QFrame):
    """A lane's place: it holds a method before a run, and the lane's answer from then on."""

    remove_asked = Signal()
    choice_changed = Signal()
    budget_asked = Signal()
    free_asked = Signal()

    def __init__(self, choice: CacheChoice, index: int) -> None:
        super().__init__()
        self.setObjectName("lane")
        self.setMinimumWidth(192)
        self.index = index
        self._dot = Dot((N_COLOURS - 1 - index) % N_COLOURS)
        self._method = MethodButton(choice, f"Method of lane {index + 1}")
        self._method.picked.connect(lambda _: self.choice_changed.emit())
        self.remove = IconButton("close", "Remove lane", 24, role="text3", icon_size=14)
        self.remove.clicked.connect(self.remove_asked)
        self._text = DocumentView(f"Answer of lane {index + 1}")
        self._waiting = WaitingLine(stacked=True)
        self._waiting.budget_asked.connect(self.budget_asked)
        self._waiting.free_asked.connect(self.free_asked)
        self._error = label("", "warn", wrap=True)
        self._bytes = label("", "large")
        self._ratio = label("", "2")
        self._bar = ThinBar(4)
        self._speed = label("", "3")
        self._text.set_text_px(theme().base + 1)
        self._differs = label("", "2", wrap=True)
        # Two lines, used or not, so that the captions of neighbours stand at one height.
        self._differs.setMinimumHeight(2 * self._differs.fontMetrics().lineSpacing() + 4)
        self._differs.setAlignment(Qt.AlignmentFlag.AlignTop)
        self._foot = QWidget()
        self._lay_out()
        self.show_lane(None, None, "")

    @property
    def choice(self) -> CacheChoice:
        return self._method.choice

    def _lay_out(self) -> None:
        head = QHBoxLayout()
        head.setContentsMargins(16, 10, 6, 6)
        head.setSpacing(2)
        head.addWidget(self._dot)
        head.addWidget(self._method, 1)
        head.addWidget(self.remove)
        inside = QWidget()
        body = QVBoxLayout(inside)
        body.setContentsMargins(16, 6, 16, 16)
        body.addWidget(self._waiting)
        body.addWidget(self._text)
        body.addWidget(self._error)
        body.addStretch(1)
        scroll = ScrollArea()
        scroll.setWidget(inside)
        foot = QVBoxLayout(self._foot)
        foot.setContentsMargins(16, 12, 16, 14)
        foot.setSpacing(4)
        foot.addWidget(self._bytes)
        foot.addWidget(self._ratio)
        foot.addSpacing(4)
        foot.addWidget(self._bar)
        foot.addSpacing(4)
        foot.addWidget(self._speed)
        foot.addWidget(self._differs)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(1, 1, 1, 1)
        layout.setSpacing(0)
        layout.addLayout(head)
        layout.addWidget(scroll, 1)
        self._rule = rule()
        layout.addWidget(self._rule)
        layout.addWidget(self._foot)

    def show_lane(self, lane: Lane | None, comparison: Comparison | None, dtype: str, can_free: bool = False) -> None:
        """Draw the lane as it is now; None is a place that has not been run.

        `can_free`: an idle chat holds memory, which the lane may be waiting for.
        """
        self._foot.setVisible(lane is not None)
        self._rule.setVisible(lane is not None)
        self._waiting.setVisible(lane is not None and lane.phase in ("queued", "prefill", "waiting"))
        self._error.setVisible(lane is not None and bool(lane.error))
        if lane is None or comparison is None:
            self._text.show_plain("")
            return
        self._waiting.show_progress(lane.phase, lane.fraction, lane.wait_message, can_free)
        self._error.setText(lane.error)
        difference = comparison.difference(lane)
        self._text.setVisible(bool(lane.text))
        self._text.show_plain(lane.text, difference.at if difference else None)
        self._draw_cost(lane, dtype)
        first = comparison.lanes[0]
        says = describe(difference, first.choice.label) if difference else ""
        if lane is first and len(comparison.lanes) > 1:
            says = "The others are compared with this one"
        self._differs.setText(says)

    def _draw_cost(self, lane: Lane, dtype: str) -> None:
        held, whole = 0, 0
        if lane.stats is not None:
            held, whole = lane.stats.memory_bytes, lane.stats.uncompressed_bytes
        elif lane.memory is not None:
            held, whole = lane.memory.memory_bytes, lane.memory.uncompressed_bytes
        self._bytes.setText(words.size(held) if held else "–")
        saved = words.smaller(whole / held) if held else ""
        self._ratio.setText(f"{saved} than fp16" if saved.endswith(("smaller", "larger")) else saved)
        set_tip(self._ratio, f"Uncompressed here means {dtype}, the type this machine computes in." if dtype else "")
        self._bar.show_fraction(held / max(whole, held, 1), lane.colour)
        if lane.stats is not None:
            ending = ENDINGS.get(lane.ending, "") if lane.ending in ("stopped", "context") else ""
            own = lane.stats.own_tokens_per_s
            speed = f"{words.rate(own)} alone" if own > 0 else ""  # 0: it was not measured
            parts = (ending, speed, words.count(lane.stats.tokens, "token"))
            self._speed.setText(" · ".join(part for part in parts if part))
            set_tip(self._speed, ALONE if speed else "")
        else:
            self._speed.setText(lane.state_words)
            set_tip(self._speed, "")
        self._speed.setAlignment(Qt.AlignmentFlag.AlignLeft)
