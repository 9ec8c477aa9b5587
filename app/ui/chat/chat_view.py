"""The centre: one chat's messages, and the box one writes in."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QStackedLayout, QVBoxLayout, QWidget

from app.ui.chat.context_bar import ContextBar, DroppedLine
from app.ui.chat.conversation import COLUMN, Conversation
from app.ui.chat.empty_state import EmptyState
from app.ui.chat.message_view import AssistantMessage, MessageView, UserMessage
from app.ui.look.input_box import Footer, InputBox
from app.ui.look.small import chain_focus
from app.ui.look.status_line import StatusLine
from app.ui.session.controller import Controller
from app.ui.session.state import Chat


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
        self._turns: Sequence[tuple[str, str]] = ()  # that are shown: roles, and what persons wrote
        self._empty = EmptyState()
        self._empty.picked.connect(self._take_prompt)
        self.conversation = Conversation(self._made, self._fill)
        self.conversation.changed.connect(self._chain_focus)
        self._dropped = DroppedLine()
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
        self._pages.addWidget(self.conversation)
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
        self._edits[self._chat_id] = {
            index: view.editor.text
            for index, view in self.conversation.shown
            if isinstance(view, UserMessage) and view.editor is not None
        }
        if chat_id != self._chat_id:
            self._drafts[self._chat_id] = self.input.text
            self._chat_id = chat_id
            self.input.set_text(self._drafts.pop(chat_id, ""))
        self._turns = ()
        self.conversation.show_turns([], 0)
        self.conversation.to_end()  # or the beginning of the chat would be laid out first
        self._draw_turns()
        self._resume_edits()
        self.conversation.to_end()

    def _resume_edits(self) -> None:
        """Go on with the messages that were being written again in this chat."""
        for index, text in self._edits.pop(self._chat_id, {}).items():
            if index < len(self._turns) and isinstance(view := self.conversation.bring(index), UserMessage):
                view.edit(text)

    def refresh(self) -> None:
        """The choice of method for the next chat has changed."""
        self._refresh_state()

    def stop(self) -> None:
        if self._chat_id is not None and self._chat_id in self._controller.chats:
            self._controller.stop(self._chat_id)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """What the input has no use for scrolls the conversation."""
        if event.key() in (Qt.Key.Key_PageUp, Qt.Key.Key_PageDown) and self._turns:
            self.conversation.page(-1 if event.key() == Qt.Key.Key_PageUp else 1)
        else:
            super().keyPressEvent(event)

    # ------------------------------------------------------------ what changed
    @property
    def _chat(self) -> Chat | None:
        return None if self._chat_id is None else self._controller.chats.get(self._chat_id)

    def _turns_changed(self, chat_id: int) -> None:
        if chat_id == self._chat_id:
            self._draw_turns()

    def _streamed(self, chat_id: int) -> None:
        chat = self._chat
        if chat_id == self._chat_id and chat is not None and self._turns:
            last = len(self._turns) - 1
            view = self.conversation.view(last)
            if isinstance(view, AssistantMessage):
                view.show_stream(chat.turns[-1].content)
            else:
                self.conversation.refresh(last, chat.turns[-1])
            self.conversation.settle()

    def _chat_changed(self, chat_id: int) -> None:
        chat = self._chat
        if chat_id == self._chat_id and chat is not None:
            self._draw_waiting()
            self._refresh_state()

    def _draw_waiting(self) -> None:
        chat = self._chat
        if chat is not None and isinstance(view := self.conversation.view(len(self._turns) - 1), AssistantMessage):
            pending = bool(chat.turns) and chat.turns[-1].kind == "pending"
            view.show_waiting(chat if pending else None, self._controller.can_free_idle)

    def _refresh_state(self) -> None:
        chat, model = self._chat, self._controller.model
        answering = chat is not None and chat.answering
        self.input.show_state(self._controller.can_send, answering, model.words)
        self._status.show_words(model.words, model.fraction, model.phase == "loading")
        self._context.show_chat(chat, model.info.context_limit if model.info else 0)
        for index, view in self.conversation.shown:
            if isinstance(view, UserMessage):
                self._show_state(index, view)
        choice = chat.choice if chat else self._controller.last_choice
        self._empty.show_state(model, choice.label)

    # ------------------------------------------------------------ drawing
    def _draw_turns(self) -> None:
        """Let the conversation have the turns; messages whose turn is still the same stay."""
        chat = self._chat
        turns = chat.turns if chat else []
        now = [(turn.role, turn.content if turn.role == "user" else "") for turn in turns]
        same = next((i for i, (a, b) in enumerate(zip(now, self._turns, strict=False)) if a != b), None)
        same = min(len(now), len(self._turns)) if same is None else same
        self._turns = now
        self.conversation.show_turns(turns, same)
        for index, view in self.conversation.shown:
            self._fill(index, view)
        self.conversation.divide(chat.dropped if chat and 0 < chat.dropped < len(turns) else 0, self._dropped)
        self._pages.setCurrentIndex(1 if turns else 0)
        self._refresh_state()
        self.conversation.settle()
        self._chain_focus()

    def _chain_focus(self) -> None:
        """Tab goes from top to bottom; Qt's own order is that in which things were made."""
        order = [widget for _, view in self.conversation.shown for widget in view.focus_order]
        chain_focus([*order, *self._context.focus_order, *self.input.focus_order])

    def _made(self, role: str) -> MessageView:
        """A message's widget, and what its buttons do."""
        if role == "user":
            asked = UserMessage()
            asked.edited.connect(lambda text: self._edit(asked, text))
            asked.editing_ended.connect(self.setFocus)
            asked.fork_asked.connect(lambda: self._fork(asked))
            self._connect_body(asked)
            return asked
        made = AssistantMessage()
        made.again.connect(self._again)
        made.go_on.connect(self._go_on)
        made.fork_asked.connect(lambda: self._fork(made))
        made.budget_asked.connect(self.budget_asked)
        made.free_asked.connect(self._controller.free_idle)
        self._connect_body(made)
        return made

    def _connect_body(self, view: MessageView) -> None:
        view.body.selecting.connect(lambda: self.conversation.deselect_others(view))
        view.body.dragged.connect(lambda: self.conversation.follow_drag(view.body))

    def _fill(self, index: int, view: MessageView) -> None:
        """Let a widget show the turn at an index."""
        chat = self._chat
        assert chat is not None
        turn = chat.turns[index]
        if isinstance(view, UserMessage):
            view.show_turn(turn)
            self._show_state(index, view)
        elif isinstance(view, AssistantMessage):
            view.show_turn(turn, chat, index == len(chat.turns) - 1, self._controller.can_free_idle)

    def _show_state(self, index: int, view: UserMessage) -> None:
        answering = self._chat is not None and self._chat.answering
        view.show_state(self._controller.can_send and not answering, index + 1 < len(self._turns))

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
        self.conversation.to_end()
        self._controller.send(self._chat_id, text)

    def _again(self) -> None:
        if self._chat_id is not None:
            self.conversation.to_end()
            self._controller.answer_again(self._chat_id)

    def _go_on(self) -> None:
        if self._chat_id is not None:
            self.conversation.to_end()
            self._controller.continue_answer(self._chat_id)

    def _edit(self, view: UserMessage, text: str) -> None:
        if self._chat_id is not None and self._controller.can_answer(self._chat_id):
            index = self.conversation.index_of(view)
            view.end_editing()
            self.conversation.to_end()
            self._controller.edit_message(self._chat_id, index, text)
            self.setFocus()

    def _fork(self, view: MessageView) -> None:
        """A new chat up to this answer; or up to before this question, which is there to be asked differently."""
        if self._chat_id is None:
            return
        index, question = self.conversation.index_of(view), isinstance(view, UserMessage)
        made = self._controller.fork_chat(self._chat_id, index if question else index + 1)
        if made is not None:
            self._drafts[made] = view.content if isinstance(view, UserMessage) else ""
            self.fork_made.emit(made)

    def _choose_dropping(self, drops: bool) -> None:
        if self._chat_id is not None:
            self._controller.set_drop_oldest(self._chat_id, drops)
            self.setFocus()
