"""The centre: one chat's messages, and the box one writes in."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QStackedLayout, QVBoxLayout, QWidget

from app.ui.chat.context_bar import ContextBar, DroppedLine
from app.ui.chat.empty_state import EmptyState
from app.ui.chat.message_scroll import COLUMN, MessageScroll
from app.ui.chat.message_view import AssistantMessage, UserMessage
from app.ui.look.input_box import Footer, InputBox
from app.ui.look.small import chain_focus
from app.ui.look.status_line import StatusLine
from app.ui.session.controller import Controller
from app.ui.session.state import Chat, Turn


class ChatView(QWidget):
    """Shows the chat `chat_id`; None is a chat that does not exist until something is sent."""

    chat_made = Signal(int)
    fork_made = Signal(int)
    budget_asked = Signal()

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.setObjectName("chatView")
        self._controller = controller
        self._chat_id: int | None = None
        self._drafts: dict[int | None, str] = {}
        self._edits: dict[int | None, dict[int, str]] = {}  # messages that were being written again, by their place
        self._shown: list[tuple[str, UserMessage | AssistantMessage]] = []
        self._empty = EmptyState()
        self._empty.picked.connect(self._take_prompt)
        self._column = QVBoxLayout()
        self._column.setContentsMargins(0, 24, 0, 24)
        self._column.setSpacing(24)
        self._scroll = MessageScroll(self._column)
        self._dropped = DroppedLine()
        self._dropped.setParent(self._scroll.widget())
        self._dropped.hide()
        self.input = InputBox("Write a message", "Message")
        self.input.sent.connect(self._send)
        self.input.stop_asked.connect(self.stop)
        self._status = StatusLine()
        self._context = ContextBar()
        self._context.chosen.connect(self._choose_dropping)
        foot = QWidget()
        below = QVBoxLayout(foot)
        below.setContentsMargins(0, 0, 0, 0)
        below.setSpacing(0)
        below.addWidget(self._status)
        below.addWidget(self._context)
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
        controller.memory_changed.connect(self._draw_waiting)
        self.show_chat(None)

    @property
    def chat_id(self) -> int | None:
        return self._chat_id

    def show_chat(self, chat_id: int | None) -> None:
        """Switch to a chat; what was being written in the other one stays there."""
        if chat_id != self._chat_id:
            self._drafts[self._chat_id] = self.input.text
            self._edits[self._chat_id] = {
                index: view.editor.text
                for index, (_, view) in enumerate(self._shown)
                if isinstance(view, UserMessage) and view.editor is not None
            }
            self._chat_id = chat_id
            self.input.set_text(self._drafts.pop(chat_id, ""))
        self._clear()
        self._draw_turns()
        for index, text in self._edits.pop(chat_id, {}).items():
            if index < len(self._shown) and isinstance(view := self._shown[index][1], UserMessage):
                view.edit(text)
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
            self._draw_waiting()
            self._refresh_state()

    def _draw_waiting(self) -> None:
        chat = self._chat
        if chat is not None and self._shown and isinstance(view := self._shown[-1][1], AssistantMessage):
            pending = bool(chat.turns) and chat.turns[-1].kind == "pending"
            view.show_waiting(chat if pending else None, self._controller.can_free_idle)

    def _refresh_state(self) -> None:
        chat, model = self._chat, self._controller.model
        answering = chat is not None and chat.answering
        self.input.show_state(self._controller.can_send, answering, model.words)
        self._status.show_words(model.words, model.fraction, model.phase == "loading")
        self._context.show_chat(chat, model.info.context_limit if model.info else 0)
        for index, (_, view) in enumerate(self._shown):
            if isinstance(view, UserMessage):
                view.show_state(self._controller.can_send and not answering, index + 1 < len(self._shown))
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
            made = self._made(turn)
            self._column.insertWidget(self._column.count() - 1, made)
            self._shown.append((turn.role, made))
        self._drop_from(len(turns))
        if chat is not None:
            for index, (turn, (_, view)) in enumerate(zip(turns, self._shown, strict=True)):
                if isinstance(view, AssistantMessage):
                    view.show_turn(turn, chat, index == len(turns) - 1, self._controller.can_free_idle)
        self._draw_dropped(chat.dropped if chat else 0)
        self._pages.setCurrentIndex(1 if turns else 0)
        self._refresh_state()
        # From top to bottom; Qt's own order is that in which things were made.
        order = [widget for _, view in self._shown for widget in view.focus_order]
        chain_focus([*order, *self._context.focus_order, *self.input.focus_order])

    def _made(self, turn: Turn) -> UserMessage | AssistantMessage:
        """A message's widget, and what its buttons do."""
        if turn.role == "user":
            asked = UserMessage(turn)
            asked.edited.connect(lambda text: self._edit(asked, text))
            asked.editing_ended.connect(self.setFocus)
            asked.fork_asked.connect(lambda: self._fork(asked))
            return asked
        made = AssistantMessage()
        made.again.connect(self._again)
        made.go_on.connect(self._go_on)
        made.fork_asked.connect(lambda: self._fork(made))
        made.budget_asked.connect(self.budget_asked)
        made.free_asked.connect(self._controller.free_idle)
        return made

    def _draw_dropped(self, before: int) -> None:
        """The line above the first message that the model still reads."""
        shown = 0 < before < len(self._shown)
        self._column.removeWidget(self._dropped)
        if shown:
            self._column.insertWidget(before, self._dropped)
        self._dropped.setVisible(shown)

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

    def _go_on(self) -> None:
        if self._chat_id is not None:
            self._scroll.to_end()
            self._controller.continue_answer(self._chat_id)

    def _index_of(self, wanted: UserMessage | AssistantMessage) -> int:
        return next(index for index, (_, view) in enumerate(self._shown) if view is wanted)

    def _edit(self, view: UserMessage, text: str) -> None:
        if self._chat_id is not None and self._controller.can_answer(self._chat_id):
            index = self._index_of(view)
            view.end_editing()
            self._scroll.to_end()
            self._controller.edit_message(self._chat_id, index, text)
            self.setFocus()

    def _fork(self, view: UserMessage | AssistantMessage) -> None:
        """A new chat up to this answer; or up to before this question, which is there to be asked differently."""
        if self._chat_id is None:
            return
        index, question = self._index_of(view), isinstance(view, UserMessage)
        made = self._controller.fork_chat(self._chat_id, index if question else index + 1)
        if made is not None:
            self._drafts[made] = view.content if isinstance(view, UserMessage) else ""
            self.fork_made.emit(made)

    def _choose_dropping(self, drops: bool) -> None:
        if self._chat_id is not None:
            self._controller.set_drop_oldest(self._chat_id, drops)
            self.setFocus()
