"""A full-width line at the top of the window that says something the person should know, with what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QColor, QResizeEvent, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QBoxLayout, QFrame, QHBoxLayout, QLabel, QSizePolicy, QVBoxLayout, QWidget

from app.ui.look.document_view import DocumentView
from app.ui.look.icons import pixmap
from app.ui.look.small import IconButton, button, clear_layout
from app.ui.look.theme import theme
from app.ui.session.controller import Controller

# Below this width the buttons stand under the words, which would be a column of single words otherwise.
NARROW = 860

Action = tuple[str, Callable[[], object]]


class NoticeText(DocumentView):
    """Words that may hold a long path, which breaks anywhere and can be copied as it is."""

    def __init__(self, text: str, role: str) -> None:
        super().__init__("Notice")
        self._role = role
        self.set_text_px(theme().base)
        self.show_plain(text)
        self.setAccessibleName(text)

    def _mark(self) -> None:
        cursor = QTextCursor(self.document())
        cursor.select(QTextCursor.SelectionType.Document)
        voice = QTextCharFormat()
        voice.setForeground(QColor(getattr(theme().tokens, self._role)))
        cursor.setCharFormat(voice)


class Notice(QFrame):
    def __init__(self, text: str, warn: bool, actions: Sequence[Action], dismiss: Callable[[], object] | None) -> None:
        super().__init__()
        self.setObjectName("notice")
        self.setProperty("kind", "warn" if warn else "info")
        role = "warn_text" if warn else "notice_text"
        mark = QLabel()
        mark.setPixmap(pixmap("alert" if warn else "info", getattr(theme().tokens, role)))
        mark.setFixedHeight(22)
        self._body = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._body.setSpacing(8)
        self._body.addWidget(NoticeText(text, role), 1, Qt.AlignmentFlag.AlignVCenter)
        self._has_actions = bool(actions)
        buttons = QHBoxLayout()
        buttons.setSpacing(8)
        for index, (says, does) in enumerate(actions):
            made = button(says)
            made.setProperty("second", index > 0)
            made.clicked.connect(lambda _=False, does=does: does())
            buttons.addWidget(made)
        buttons.addStretch()
        if actions:
            self._body.addLayout(buttons)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(24, 8, 16, 8)
        layout.setSpacing(12)
        layout.addWidget(mark, 0, Qt.AlignmentFlag.AlignTop)
        layout.addLayout(self._body, 1)
        if dismiss is not None:
            away = IconButton("close", "Dismiss", 24, role=role, icon_size=14)
            away.clicked.connect(lambda: dismiss())
            layout.addWidget(away, 0, Qt.AlignmentFlag.AlignTop)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        narrow = self._has_actions and self.width() < NARROW
        self._body.setDirection(QBoxLayout.Direction.TopToBottom if narrow else QBoxLayout.Direction.LeftToRight)


class Notices(QWidget):
    """What the model's state has to say, from top to bottom; nothing when all is well."""

    model_folder_asked = Signal()

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self._dismissed: set[str] = set()
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(1)
        controller.model_changed.connect(self._draw)
        controller.opening.changed.connect(self._draw)
        theme().changed.connect(self._draw)
        self._shown: object = None
        self._draw()

    def _draw(self) -> None:
        model, controller, opening = self._controller.model, self._controller, self._controller.opening
        info_notices = model.info.notices if model.info else ()
        # Loading reports many times a second; a button must not be replaced under the pointer.
        problem = (model.phase in ("failed", "stopped"), model.error, model.can_fetch, controller.save_error)
        now = (problem, opening.problem, info_notices, theme().tokens, len(self._dismissed))
        if now == self._shown:
            return
        self._shown = now
        clear_layout(self._layout)
        if opening.problem:
            self._add(opening.problem, True, dismiss=opening.dismiss_problem)
        if model.phase == "failed":
            lead = "The model used last can't be opened any more. " if opening.resumes else ""
            self._add(lead + model.error, True, self._ways_out())
        elif model.phase == "stopped":
            text = model.error or "The engine has stopped."
            text = text if text.startswith("The engine") else f"The engine has stopped: {text}"
            restart: list[Action] = [("Restart engine", controller.restart_engine)] if controller.can_restart else []
            self._add(text, True, restart)
        notices = [(notice, False) for notice in info_notices]
        if controller.save_error:
            notices.append((f"Changes are not being saved: {controller.save_error}", True))
        for notice, warn in notices:
            if notice not in self._dismissed:
                self._add(notice, warn, dismiss=partial(self._dismiss, notice))
        self.setVisible(self._layout.count() > 0)

    def _ways_out(self) -> list[Action]:
        """What can be done where no model is loaded."""
        controller = self._controller
        if controller.model.can_fetch:
            return [("Download default model (93 MB)", controller.fetch_default_model)]
        ways: list[Action] = []
        if controller.model_folder is not None:
            ways.append(("Use default model", lambda: controller.opening.use(None)))
        return [*ways, ("Choose a model folder…", self.model_folder_asked.emit)]

    def _add(
        self, text: str, warn: bool, actions: Sequence[Action] = (), dismiss: Callable[[], object] | None = None
    ) -> None:
        self._layout.addWidget(Notice(text, warn, actions, dismiss))

    def _dismiss(self, notice: str) -> None:
        self._dismissed.add(notice)
        self._draw()
