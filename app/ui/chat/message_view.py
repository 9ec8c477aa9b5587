"""One message: the person's as a bubble, the model's as text and code with what it cost below.

Messages have no layouts of their own: the conversation tells each its width and which part of it can be seen, and a
message says how high it is. So one that is longer than any window costs as little as a short one.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QEnterEvent, QTextCursor
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QWidget

from app.ui.chat.body import Body, Part
from app.ui.chat.copy_button import CopyButton
from app.ui.chat.message_editor import MessageEditor
from app.ui.look.small import ElidedLabel, IconButton, button, chain_focus, label, set_tip
from app.ui.look.waiting import WaitingLine
from app.ui.session.state import Chat, Turn

FORK = "Fork from here: a new chat that begins like this one"
BUBBLE = (14, 10, 14, 7)  # the bubble's margins
SPACE = 8  # between an answer's parts


class MessageView(QWidget):
    """What both kinds of message share: words, and actions that appear under the pointer."""

    fork_asked = Signal()
    resized = Signal()  # it should be laid out again

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.body.resized.connect(self.resized)
        self.hover_buttons: list[IconButton] = []

    def lay_out(self, width: int, top: int, bottom: int) -> int:
        """Arrange what is inside, the words between two heights for certain. Returns the height of all of it."""
        raise NotImplementedError

    @property
    def focus_order(self) -> list[QWidget]:
        """What the keyboard goes through, from top to bottom."""
        raise NotImplementedError

    @property
    def body_top(self) -> int:
        """Where the words begin."""
        return 0

    @property
    def is_busy(self) -> bool:
        """Whether a person has begun something here that would be lost with the widget."""
        return self.body.has_selection

    def is_laid_out(self, top: int, bottom: int) -> bool:
        """Whether its words between two heights are."""
        return self.body.is_laid_out(top - self.body_top, bottom - self.body_top)

    def part_at(self, y: int) -> Part | None:
        """What of the words is at a height."""
        return self.body.part_at(y - self.body_top)

    def y_of(self, part: Part) -> int:
        return self.body_top + self.body.y_of(part)

    def enterEvent(self, event: QEnterEvent) -> None:
        self.reveal(True)
        super().enterEvent(event)

    def leaveEvent(self, event: QEvent) -> None:
        self.reveal(False)
        super().leaveEvent(event)

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest:
            self.resized.emit()
        return super().event(event)

    def put_away(self) -> None:
        """Leave no trace of what was done here, since another message may be next."""
        self.hide()
        self.reveal(False)
        self.body.put_away()
        for one in self.findChildren(CopyButton):
            one.rest()

    def reveal(self, revealed: bool) -> None:
        for one in self.hover_buttons:
            one.reveal(revealed)


class UserMessage(MessageView):
    """A question, in a bubble on the right, at most three quarters wide; an editor takes its place."""

    edited = Signal(str)
    editing_ended = Signal()

    def __init__(self) -> None:
        super().__init__(Body("Your message", markdown=False))
        self._copy = CopyButton("Copy message", lambda: self.content)
        self.edit_button = IconButton("edit", "Edit message", role="text3")
        self.edit_button.clicked.connect(lambda: self.edit())
        self.fork_button = IconButton("fork", FORK, role="text3")
        self.fork_button.clicked.connect(self.fork_asked)
        self.hover_buttons = [self.fork_button, self._copy, self.edit_button]
        self._bubble = QFrame(self)
        self._bubble.setObjectName("bubble")
        self.body.setParent(self._bubble)
        for one in self.hover_buttons:
            one.setParent(self)
        self.editor: MessageEditor | None = None
        self._ideal = 0
        self._can_edit, self._has_later = True, False
        self._by_keyboard = False
        self.reveal(False)

    @property
    def content(self) -> str:
        return self.body.text

    @property
    def focus_order(self) -> list[QWidget]:
        return [*self.hover_buttons, *(self.editor.focus_order if self.editor is not None else ())]

    @property
    def is_busy(self) -> bool:
        return super().is_busy or self.editor is not None

    @property
    def body_top(self) -> int:
        return BUBBLE[1]

    def show_turn(self, turn: Turn) -> None:
        if turn.content != self.content or not self._ideal:
            self.body.show_text(turn.content)
            self._ideal = self.body.ideal_width()

    def is_laid_out(self, top: int, bottom: int) -> bool:
        return self.editor is not None or super().is_laid_out(top, bottom)

    def lay_out(self, width: int, top: int, bottom: int) -> int:
        if self.editor is not None:
            layout = self.editor.layout()
            if layout is not None:
                layout.activate()
            height = self.editor.sizeHint().height()
            self.editor.setGeometry(0, 0, width, height)
            return height
        left, above, right, below = BUBBLE
        buttons = sum(one.width() for one in self.hover_buttons) + 4
        wide = min(max(48, self._ideal + left + right), (width - buttons) * 3 // 4)
        inner = self.body.lay_out(wide - left - right, top - above, bottom - above)
        self._bubble.setGeometry(width - wide, 0, wide, inner + above + below)
        self.body.move(left, above)
        x = width - wide - buttons
        for one in self.hover_buttons:
            one.move(x, 0)
            x += one.width()
        return inner + above + below

    def show_state(self, can_edit: bool, has_later: bool) -> None:
        """Whether another answer can be asked for now, and whether there are messages after this one."""
        self._can_edit, self._has_later = can_edit, has_later
        self.edit_button.setEnabled(can_edit)
        if self.editor is not None:
            self.editor.show_state(can_edit, has_later)

    def edit(self, text: str | None = None) -> None:
        """Put an editor in the bubble's place, with `text` if that was written in one before."""
        if self.editor is not None:
            return
        self._by_keyboard = self.edit_button.hasFocus()
        self.editor = MessageEditor(self.content if text is None else text)
        self.editor.setParent(self)
        self.editor.show_state(self._can_edit, self._has_later)
        self.editor.sent.connect(self.edited)
        self.editor.cancelled.connect(self.end_editing)
        self._show_bubble(False)
        self.editor.show()
        chain_focus([self.edit_button, *self.editor.focus_order])
        self.resized.emit()
        if text is None:
            self.editor.edit.moveCursor(QTextCursor.MoveOperation.End)
            self.editor.edit.setFocus()

    def end_editing(self) -> None:
        """Put the bubble back."""
        if self.editor is None:
            return
        gone, self.editor = self.editor, None
        gone.hide()
        gone.deleteLater()
        self._show_bubble(True)
        self.resized.emit()
        if self._by_keyboard:
            self.edit_button.setFocus()
        else:
            self.editing_ended.emit()

    def _show_bubble(self, shown: bool) -> None:
        for part in (self._bubble, *self.hover_buttons):
            part.setVisible(shown)


class AssistantMessage(MessageView):
    """An answer: waiting line, text, failure or quiet line, whichever apply."""

    again = Signal()
    go_on = Signal()
    budget_asked = Signal()
    free_asked = Signal()

    def __init__(self) -> None:
        super().__init__(Body("Answer", markdown=True))
        self.body.setParent(self)
        # Most answers neither wait nor fail, so what says so is made when it is needed.
        self._waiting: WaitingLine | None = None
        self._failure: Failure | None = None
        self._note = ElidedLabel("", "3")
        self._note.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        self._copy = CopyButton("Copy answer", lambda: self.body.text)
        self._regenerate = IconButton("again", "Answer again", role="text3")
        self._regenerate.clicked.connect(self.again)
        self._go_on = button("Continue", "small")
        self._go_on.clicked.connect(self.go_on)
        set_tip(self._go_on, "Let the model write on where the answer ends")
        self.fork_button = IconButton("fork", FORK, role="text3")
        self.fork_button.clicked.connect(self.fork_asked)
        self.hover_buttons = [self._copy, self._regenerate, self.fork_button]
        self._foot = QWidget(self)
        foot = QHBoxLayout(self._foot)
        foot.setContentsMargins(0, 0, 0, 0)
        foot.setSpacing(2)
        foot.addWidget(self._note)
        self._note_gap = QWidget()
        self._note_gap.setFixedWidth(4)
        foot.addWidget(self._note_gap)
        foot.addWidget(self._go_on)
        foot.addWidget(self._regenerate)
        foot.addWidget(self._copy)
        foot.addWidget(self.fork_button)
        foot.addStretch()
        self.reveal(False)

    @property
    def focus_order(self) -> list[QWidget]:
        waiting = self._waiting.focus_order if self._waiting is not None else []
        failed = self._failure.focus_order if self._failure is not None else []
        foot = [self._go_on, self._regenerate, self._copy, self.fork_button]
        return [*self.body.focus_order, *waiting, *failed, *foot]

    @property
    def failure_words(self) -> str:
        """Why the answer ended, where it failed."""
        return self._failure.words if self._failure is not None and not self._failure.isHidden() else ""

    def lay_out(self, width: int, top: int, bottom: int) -> int:
        y = 0
        if not self.body.isHidden():
            y = self.body.lay_out(width, top, bottom)
            self.body.move(0, 0)
        for part in (self._waiting, self._failure, self._foot):
            if part is None or part.isHidden():
                continue
            y += SPACE if y else 0
            height = part.heightForWidth(width) if part.hasHeightForWidth() else part.sizeHint().height()
            part.setGeometry(0, y, width, height)
            y += height
        return y

    def show_turn(self, turn: Turn, chat: Chat, is_last: bool, can_free: bool = False) -> None:
        """Draw the turn as it is now. `can_free`: an idle chat holds memory, which this one may be waiting for."""
        pending, failed = turn.kind == "pending", turn.kind == "failed"
        self.body.setVisible(bool(turn.content))
        self.body.show_text(turn.content, ended=not pending)
        goes_on = is_last and turn.can_go_on
        self.show_waiting(chat if pending else None, can_free)
        self._show_failure(turn.note if failed else "", is_last, goes_on)
        self._foot.setVisible(not pending and (not failed or bool(turn.content)))
        quiet = "" if failed else turn.quiet_line
        self._note.set_full(quiet, turn.cost.tip)
        self._note.setVisible(bool(quiet))
        self._note_gap.setVisible(bool(quiet))
        self._go_on.setVisible(goes_on and not failed)
        self._copy.setVisible(bool(turn.content))
        self._regenerate.setVisible(is_last and not failed)

    def show_stream(self, text: str) -> None:
        """Draw more text of an answer that is being written."""
        self.body.setVisible(bool(text))
        self.body.show_text(text, ended=False)

    def show_waiting(self, chat: Chat | None, can_free: bool = False) -> None:
        """What the chat is doing before its first word, or waits for; None where it is doing neither."""
        waiting = chat is not None and chat.phase in ("queued", "prefill", "waiting")
        if self._waiting is None:
            if not waiting:
                return
            self._waiting = WaitingLine()
            self._waiting.setParent(self)
            self._waiting.budget_asked.connect(self.budget_asked)
            self._waiting.free_asked.connect(self.free_asked)
        if self._waiting.isHidden() == waiting:
            self._waiting.setVisible(waiting)
            self.resized.emit()
        if waiting and chat is not None:
            self._waiting.show_progress(chat.phase, chat.fraction, chat.wait_message, can_free)

    def _show_failure(self, words: str, is_last: bool, goes_on: bool) -> None:
        if self._failure is None:
            if not words:
                return
            self._failure = Failure()
            self._failure.setParent(self)
            self._failure.again.connect(self.again)
            self._failure.go_on.connect(self.go_on)
        self._failure.show_words(words, is_last, goes_on)


class Failure(QFrame):
    """Why an answer could not go on, and what can be done."""

    again = Signal()
    go_on = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("failure")
        self._words = label("", wrap=True)
        self._words.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._again, self._go_on = button("Try again"), button("Continue")
        self._again.clicked.connect(self.again)
        self._go_on.clicked.connect(self.go_on)
        self.focus_order: list[QWidget] = [self._go_on, self._again]
        inside = QHBoxLayout(self)
        inside.setContentsMargins(16, 12, 12, 12)
        inside.setSpacing(8)
        inside.addWidget(self._words, 1)
        inside.addSpacing(4)
        inside.addWidget(self._go_on, 0, Qt.AlignmentFlag.AlignTop)
        inside.addWidget(self._again, 0, Qt.AlignmentFlag.AlignTop)

    @property
    def words(self) -> str:
        return self._words.text()

    def show_words(self, words: str, can_try: bool, can_go_on: bool) -> None:
        """Nothing where there are no words."""
        self.setVisible(bool(words))
        self._words.setText(words)
        self._again.setVisible(can_try)
        self._go_on.setVisible(can_go_on)
