"""A full-width line at the top of the window that says something the person should know, with what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.ui.controller import Controller
from app.ui.icons import pixmap
from app.ui.small import IconButton, button, clear_layout, label
from app.ui.theme import theme


class Notice(QFrame):
    def __init__(
        self, text: str, warn: bool, action: tuple[str, Callable[[], None]] | None, dismiss: Callable[[], None] | None
    ) -> None:
        super().__init__()
        self.setObjectName("notice")
        self.setProperty("kind", "warn" if warn else "info")
        tokens = theme().tokens
        mark = QLabel()
        mark.setPixmap(pixmap("alert" if warn else "info", tokens.warn_text if warn else tokens.notice_text))
        words = label(text, wrap=True)
        words.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(24, 10, 16, 10)
        layout.setSpacing(12)
        layout.addWidget(mark)
        layout.addWidget(words, 1)
        if action is not None:
            does = button(action[0])
            does.clicked.connect(action[1])
            layout.addWidget(does)
        if dismiss is not None:
            away = IconButton("close", "Dismiss", 24, role="notice_text", icon_size=14)
            away.clicked.connect(dismiss)
            layout.addWidget(away)


class Notices(QWidget):
    """What the model's state has to say, from top to bottom; nothing when all is well."""

    model_folder_asked = Signal()

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self._dismissed: set[str] = set()
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(1)
        controller.model_changed.connect(self._draw)
        theme().changed.connect(self._draw)
        self._shown: object = None
        self._draw()

    def _draw(self) -> None:
        model, controller = self._controller.model, self._controller
        info_notices = model.info.notices if model.info else ()
        # Loading reports many times a second; a button must not be replaced under the pointer.
        problem = (model.phase in ("failed", "stopped"), model.error, model.can_fetch, controller.save_error)
        now = (problem, info_notices, theme().tokens, len(self._dismissed))
        if now == self._shown:
            return
        self._shown = now
        clear_layout(self._layout)
        if model.phase == "failed":
            fetch = ("Download default model (93 MB)", controller.fetch_default_model)
            choose = ("Choose a model folder…", self.model_folder_asked.emit)
            self._layout.addWidget(Notice(model.error, True, fetch if model.can_fetch else choose, None))
        elif model.phase == "stopped":
            text = model.error or "The engine has stopped."
            text = text if text.startswith("The engine") else f"The engine has stopped: {text}"
            restart = ("Restart engine", controller.restart_engine) if controller.can_restart else None
            self._layout.addWidget(Notice(text, True, restart, None))
        notices = [(notice, False) for notice in info_notices]
        if controller.save_error:
            notices.append((f"Changes are not being saved: {controller.save_error}", True))
        for notice, warn in notices:
            if notice not in self._dismissed:
                self._layout.addWidget(Notice(notice, warn, None, partial(self._dismiss, notice)))
        self.setVisible(self._layout.count() > 0)

    def _dismiss(self, notice: str) -> None:
        self._dismissed.add(notice)
        self._draw()
