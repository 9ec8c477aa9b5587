"""The comparison: one prompt, two to six methods side by side."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from app.engine.messages import CacheChoice
from app.ui.compare.lane_view import LaneView
from app.ui.look.icons import icon
from app.ui.look.input_box import InputBox
from app.ui.look.small import ScrollArea, button
from app.ui.look.status_line import StatusLine
from app.ui.look.theme import theme
from app.ui.session import settings
from app.ui.session.controller import Controller

LEAST, MOST = 2, 6
DEFAULT = (CacheChoice("fp16"), CacheChoice("turboquant_mse", 4, 4), CacheChoice("turboquant_mse", 2, 2))
# Filled in when a lane is added.
SPARE = (*DEFAULT, CacheChoice("spectral", 4, 4), CacheChoice("polar", 4, 4), CacheChoice("affine", 4, 4))


class CompareView(QWidget):
    budget_asked = Signal()

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.setObjectName("compareView")
        self._controller = controller
        self._lanes: list[LaneView] = []
        self.input = InputBox("A prompt for all of them", "Prompt to compare with", "Run (Enter)")
        self.input.sent.connect(self._run)
        self.input.stop_asked.connect(self.stop)
        self._status = StatusLine()
        self._add = button("Add lane", "link")
        self._add.clicked.connect(self._add_lane)
        self._clear = button("Clear", "link")
        self._clear.clicked.connect(controller.clear_comparison)
        # In a window too narrow for all lanes they scroll sideways rather than push the window wider.
        inside = QWidget()
        self._row = QHBoxLayout(inside)
        self._row.setContentsMargins(24, 0, 24, 24)
        self._row.setSpacing(12)
        lanes = ScrollArea(Qt.Orientation.Horizontal)
        lanes.setWidget(inside)
        tools = QHBoxLayout()
        tools.setContentsMargins(24, 8, 24, 8)
        tools.setSpacing(4)
        tools.addWidget(self._status)
        tools.addStretch()
        tools.addWidget(self._clear)
        tools.addWidget(self._add)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 20, 0, 0)
        layout.setSpacing(0)
        top = QHBoxLayout()
        top.setContentsMargins(24, 0, 24, 0)
        top.addWidget(self.input)
        layout.addLayout(top)
        layout.addLayout(tools)
        layout.addWidget(lanes, 1)
        self.setFocusProxy(self.input.edit)
        self._set_lanes(self._remembered())
        controller.lanes_changed.connect(self._lanes_changed)
        controller.lane_changed.connect(self._lane_changed)
        controller.model_changed.connect(self._refresh)
        theme().changed.connect(self._tint)
        self._tint()
        self._refresh()

    def stop(self) -> None:
        self._controller.stop_comparison()

    # ------------------------------------------------------------ lanes
    def _remembered(self) -> list[CacheChoice]:
        text = self._controller.store.setting(settings.LANES, "")
        choices = [settings.parse_choice(part) for part in text.split(",") if part][:MOST]
        return choices if len(choices) >= LEAST else list(DEFAULT)

    def _remember(self) -> None:
        text = ",".join(settings.write_choice(view.choice) for view in self._lanes)
        self._controller.remember(settings.LANES, text)

    def _set_lanes(self, choices: list[CacheChoice]) -> None:
        for view in self._lanes:
            self._row.removeWidget(view)
            view.setParent(None)
            view.deleteLater()
        self._lanes = []
        for index, choice in enumerate(choices):
            view = LaneView(choice, index)
            view.choice_changed.connect(self._remember)
            view.budget_asked.connect(self.budget_asked)
            view.free_asked.connect(self._controller.free_idle)
            view.remove_asked.connect(lambda view=view: self._remove_lane(view))
            self._row.addWidget(view, 1)
            self._lanes.append(view)
        self._refresh()

    def _add_lane(self) -> None:
        choices = [view.choice for view in self._lanes]
        self._controller.clear_comparison()
        self._set_lanes([*choices, next((c for c in SPARE if c not in choices), SPARE[-1])])
        self._remember()

    def _remove_lane(self, gone: LaneView) -> None:
        self._controller.clear_comparison()
        self._set_lanes([view.choice for view in self._lanes if view is not gone])
        self._remember()

    # ------------------------------------------------------------ what changed
    def _lanes_changed(self) -> None:
        comparison = self._controller.comparison
        if comparison.lanes and [lane.choice for lane in comparison.lanes] != [view.choice for view in self._lanes]:
            self._set_lanes([lane.choice for lane in comparison.lanes])
        if comparison.prompt and self.input.text.strip() != comparison.prompt:
            self.input.set_text(comparison.prompt)
        self._draw(range(len(self._lanes)))

    def _lane_changed(self, lane_id: int) -> None:
        lanes = self._controller.comparison.lanes
        changed = next((index for index, lane in enumerate(lanes) if lane.id == lane_id), None)
        if changed is not None:
            # All others are compared with the first, so its change is theirs.
            self._draw(range(len(lanes)) if changed == 0 else (changed,))

    def _draw(self, which: range | tuple[int, ...]) -> None:
        comparison, info = self._controller.comparison, self._controller.model.info
        for index in which:
            lane = comparison.lanes[index] if index < len(comparison.lanes) else None
            self._lanes[index].show_lane(lane, comparison, info.dtype if info else "", self._controller.can_free_idle)
        self._refresh()

    def _refresh(self) -> None:
        comparison, model = self._controller.comparison, self._controller.model
        running = comparison.running
        self.input.show_state(self._controller.can_send, running, model.words)
        self._status.show_words(model.words, model.fraction, model.phase == "loading")
        self._add.setVisible(len(self._lanes) < MOST)
        self._add.setEnabled(not running)
        self._clear.setVisible(bool(comparison.lanes))
        for view in self._lanes:
            view.remove.setVisible(len(self._lanes) > LEAST)
            view.remove.setEnabled(not running)

    def _run(self, prompt: str) -> None:
        self._controller.start_comparison(prompt, [view.choice for view in self._lanes])

    def _tint(self) -> None:
        self._add.setIcon(icon("plus", theme().tokens.link, 14))
        self._add.setCursor(Qt.CursorShape.PointingHandCursor)
