"""The centre: one chat's messages, and the box one writes in."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QStackedLayout, QVBoxLayout, QWidget

from app.ui.controller import Controller
from app.ui.empty_state import EmptyState
from app.ui.icons import icon
from app.ui.input_box import Footer, InputBox
from app.ui.message_view import AssistantMessage, UserMessage
from app.ui.small import ScrollArea, button
from app.ui.state import Chat
from app.ui.status_line import StatusLine
from app.ui.theme import theme

COLUMN = 720


class ChatView(QWidget):
    """Shows the chat `chat_id`; None is a chat that does not exist until something is sent."""

    chat_made = Signal(int)

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.setObjectName("chatView")
        self._controller = controller
        self._chat_id: int | None = None
        self._drafts: dict[int | None, str] = {}
        self._shown: list[tuple[str, UserMessage | AssistantMessage]] = []
        self._empty = EmptyState()
        self._empty.picked.connect(self._take_prompt)
        self._column = QVBoxLayout()
        self._column.setContentsMargins(0, 24, 0, 24)
        self._column.setSpacing(24)
        self._scroll = MessageScroll(self._column)
        self.input = InputBox("Write a message", "Message")
        self.input.sent.connect(self._send)
        self.input.stop_asked.connect(self.stop)
        self._status = StatusLine()
        foot = QWidget()
        below = QVBoxLayout(foot)
        below.setContentsMargins(0, 0, 0, 0)
        below.setSpacing(0)
        below.addWidget(self._status)
        below.addWidget(self.input)
        empty_frame = Footer(self._empty, COLUMN)
        self._pages = QStackedLayout()
        self._pages.addWidget(empty_frame)
        self._pages.addWidget(self._scroll)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addLayout(self._pages, 1)
        layout.addWidget(Footer(foot, COLUMN))
        self.setFocusProxy(self.input.edit)
        controller.turns_changed.connect(self._turns_changed)
        controller.streamed.connect(self._streamed)
        controller.chat_changed.connect(self._chat_changed)
        controller.model_changed.connect(self._refresh_state)
        self.show_chat(None)

    @property
    def chat_id(self) -> int | None:
        return self._chat_id

    def show_chat(self, chat_id: int | None) -> None:
        """Switch to a chat; what was being written in the other one stays there."""
        if chat_id != self._chat_id:
            self._drafts[self._chat_id] = self.input.text
            self._chat_id = chat_id
            self.input.set_text(self._drafts.pop(chat_id, ""))
        self._clear()
        self._draw_turns()
        self._scroll.to_end()

    def refresh(self) -> None:
        """The choice of method for the next chat has changed."""
        self._refresh_state()

    def stop(self) -> None:
        if self._chat_id is not None and self._chat_id in self._controller.chats:
            self._controller.stop(self._chat_id)

    # ------------------------------------------------------------ what changed
    @property
    def _chat(self) -> Chat | None:
        return None if self._chat_id is None else self._controller.chats.get(self._chat_id)

    def _turns_changed(self, chat_id: int) -> None:
        if chat_id == self._chat_id:
            self._draw_turns()

    def _streamed(self, chat_id: int) -> None:
        chat = self._chat
        if chat_id == self._chat_id and chat is not None and self._shown:
            view = self._shown[-1][1]
            if isinstance(view, AssistantMessage):
                view.show_stream(chat.turns[-1].content)

    def _chat_changed(self, chat_id: int) -> None:
        chat = self._chat
        if chat_id == self._chat_id and chat is not None:
            if self._shown and isinstance(view := self._shown[-1][1], AssistantMessage):
                view.show_waiting(chat if chat.turns and chat.turns[-1].kind == "pending" else None)
            self._refresh_state()

    def _refresh_state(self) -> None:
        chat, model = self._chat, self._controller.model
        answering = chat is not None and chat.answering
        self.input.show_state(self._controller.can_send, answering, model.words)
        self._status.show_model(model)
        choice = chat.choice if chat else self._controller.last_choice
        self._empty.show_state(model, choice.label)

    # ------------------------------------------------------------ drawing
    def _draw_turns(self) -> None:
        """Make the widgets fit the turns; those whose turn is still the same stay."""
        chat = self._chat
        turns = chat.turns if chat else []
        for index, turn in enumerate(turns):
            if index < len(self._shown):
                role, view = self._shown[index]
                if role == turn.role and (isinstance(view, AssistantMessage) or view.content == turn.content):
                    continue
                self._drop_from(index)
            made = UserMessage(turn) if turn.role == "user" else AssistantMessage()
            if isinstance(made, AssistantMessage):
                made.again.connect(self._again)
            self._column.insertWidget(self._column.count() - 1, made)
            self._shown.append((turn.role, made))
        self._drop_from(len(turns))
        if chat is not None:
            for index, (turn, (_, view)) in enumerate(zip(turns, self._shown, strict=True)):
                if isinstance(view, AssistantMessage):
                    view.show_turn(turn, chat, index == len(turns) - 1)
        self._pages.setCurrentIndex(1 if turns else 0)
        self._refresh_state()

    def _drop_from(self, index: int) -> None:
        for _, view in self._shown[index:]:
            self._column.removeWidget(view)
            view.setParent(None)
            view.deleteLater()
        del self._shown[index:]

    def _clear(self) -> None:
        self._drop_from(0)

    # ------------------------------------------------------------ verbs
    def _take_prompt(self, prompt: str) -> None:
        if self._controller.can_send:
            self._send(prompt)
        else:
            self.input.set_text(prompt)
            self.input.edit.setFocus()

    def _send(self, text: str) -> None:
        if not self._controller.can_send:
            return
        self.input.set_text("")
        if self._chat is None:
            self._chat_id = self._controller.new_chat()
            self.chat_made.emit(self._chat_id)
        assert self._chat_id is not None
        self._scroll.to_end()
        self._controller.send(self._chat_id, text)

    def _again(self) -> None:
        if self._chat_id is not None:
            self._scroll.to_end()
            self._controller.answer_again(self._chat_id)


class MessageScroll(ScrollArea):
    """The messages' scroll area: stays at the end while it grows, unless one has scrolled up to read."""

    def __init__(self, column: QVBoxLayout) -> None:
        super().__init__()
        inside, middle = QWidget(), QWidget()
        middle.setMaximumWidth(COLUMN)
        middle.setLayout(column)
        column.addStretch(1)
        centred = self._centred = QHBoxLayout(inside)
        centred.setContentsMargins(24, 0, 24, 0)
        centred.addStretch(1)
        centred.addWidget(middle, 1000)
        centred.addStretch(1)
        self.setWidget(inside)
        self._at_end = True
        self._latest = button("Jump to latest")
        self._latest.setObjectName("latest")
        self._latest.setParent(self)
        self._latest.setFixedHeight(32)
        self._latest.clicked.connect(self.to_end)
        self._latest.hide()
        theme().changed.connect(self._tint)
        self._tint()
        bar = self.verticalScrollBar()
        bar.valueChanged.connect(self._scrolled)
        bar.rangeChanged.connect(self._grown)

    def to_end(self) -> None:
        self._at_end = True
        self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())
        self._latest.hide()

    def _scrolled(self, value: int) -> None:
        self._at_end = value >= self.verticalScrollBar().maximum() - 8
        self._latest.setVisible(not self._at_end)

    def _grown(self, _: int, maximum: int) -> None:
        # The scroll bar takes its room from the margin, so that the messages stay in line with the input below them.
        bar = self.verticalScrollBar()
        self._centred.setContentsMargins(24, 0, 24 - (bar.sizeHint().width() if maximum > 0 else 0), 0)
        if self._at_end:
            bar.setValue(maximum)
        self._latest.setVisible(not self._at_end)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        size = self._latest.sizeHint()
        self._latest.move((self.width() - size.width()) // 2, self.height() - 40)
        self._latest.resize(size.width(), 32)

    def _tint(self) -> None:
        self._latest.setIcon(icon("latest", theme().tokens.text2))
