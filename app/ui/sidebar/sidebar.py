"""The left side: where one is (Chats or Compare), a new chat, and the list of chats."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QVBoxLayout

from app.engine.messages import CacheChoice
from app.ui.look.icons import icon
from app.ui.look.method_picker import MethodButton
from app.ui.look.small import Segments, button, label
from app.ui.look.theme import theme
from app.ui.session.controller import Controller
from app.ui.sidebar.chat_list import ChatList

WIDTH = 248


class Sidebar(QFrame):
    place_chosen = Signal(int)  # 0 Chats, 1 Compare
    new_chat_asked = Signal()
    choice_changed = Signal()

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.setObjectName("sidebar")
        self.setFixedWidth(WIDTH)
        self._controller = controller
        self.places = Segments(["Chats", "Compare"], "Show", height=32)
        self.places.choose(0)
        self.places.chosen.connect(self.place_chosen)
        self._new = button("New chat", "outline")
        self._new.clicked.connect(self.new_chat_asked)
        self.method = MethodButton(controller.last_choice, "Cache method of new chats", "with ")
        self.method.picked.connect(self._method_picked)
        self.chats = ChatList(controller)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 16, 12, 12)
        layout.setSpacing(0)
        name = label("VeloxQuant Chat", "strong")
        name.setContentsMargins(6, 0, 0, 0)
        layout.addWidget(name)
        layout.addSpacing(16)
        layout.addWidget(self.places)
        layout.addSpacing(16)
        layout.addWidget(self._new)
        layout.addSpacing(2)
        layout.addWidget(self.method)
        layout.addSpacing(12)
        layout.addWidget(self.chats, 1)
        theme().changed.connect(self._tint)
        self._tint()

    def _method_picked(self, choice: CacheChoice) -> None:
        self._controller.last_choice = choice
        self.choice_changed.emit()

    def _tint(self) -> None:
        self._new.setIcon(icon("plus", theme().tokens.text2))
