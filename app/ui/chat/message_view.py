"""One message: the person's as a bubble, the model's as text and code with what it cost below."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, QTimer, Signal
from PySide6.QtGui import QEnterEvent, QGuiApplication, QTextCursor
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from app.ui.chat.message_editor import MessageEditor
from app.ui.look.blocks import CodeSegment, Segment, TextSegment, segments
from app.ui.look.document_view import DocumentView
from app.ui.look.markdown import code_html
from app.ui.look.small import ElidedLabel, IconButton, button, chain_focus, label, set_tip
from app.ui.look.theme import theme
from app.ui.look.waiting import WaitingLine
from app.ui.session.state import Chat, Turn

FORK = "Fork from here: a new chat that begins like this one"


class CopyButton(IconButton):
    """Puts a text on the clipboard and shows a tick for a moment."""

    def __init__(self, says: str) -> None:
        super().__init__("copy", says, size=28, role="text3")
        self._says = says
        self.text_to_copy = ""
        self.clicked.connect(self._copy)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.text_to_copy)
        self.set_icon("check", "Copied")
        QTimer.singleShot(1500, self, lambda: self.set_icon("copy", self._says))


class CodeBlock(QFrame):
    """Code on its own ground, with its language and a way to copy it."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("codeBlock")
        self._segment = CodeSegment("", "")
        self._language = label("", "3")
        self._copy = self.copy_button = CopyButton("Copy code")
        self._view = DocumentView("Code", wrap=False)
        self._view.set_text_px(theme().base, theme().tokens.mono)
        head = QHBoxLayout()
        head.addWidget(self._language)
        head.addStretch()
        head.addWidget(self._copy)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(14, 4, 6, 12)
        layout.setSpacing(2)
        layout.addLayout(head)
        layout.addWidget(self._view)
        theme().changed.connect(self._draw)

    def show_segment(self, segment: CodeSegment) -> None:
        if segment != self._segment:
            self._segment = segment
            self._draw()

    def _draw(self) -> None:
        tokens = theme().tokens
        self._language.setText(self._segment.language or "text")
        self._copy.text_to_copy = self._segment.code
        self._view.document().setDefaultStyleSheet(
            f'pre {{ margin: 0; line-height: 125%; font-family: "{tokens.mono}"; color: {tokens.code_text}; }}'
        )
        self._view.show_code(code_html(self._segment.code, self._segment.language, tokens))


class Answer(QWidget):
    """The text of an answer. While it streams, only the segments that changed are drawn again."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[tuple[Segment, DocumentView | CodeBlock]] = []
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(12)
        theme().changed.connect(self._redraw)

    @property
    def focus_order(self) -> list[QWidget]:
        return [view.copy_button for _, view in self._parts if isinstance(view, CodeBlock)]

    def show_text(self, text: str) -> None:
        new = segments(text)
        for index, segment in enumerate(new):
            if index < len(self._parts) and type(self._parts[index][0]) is type(segment):
                old, view = self._parts[index]
                if old == segment:
                    continue
            else:
                self._drop_from(index)
                view = CodeBlock() if isinstance(segment, CodeSegment) else DocumentView("Answer")
                self._layout.addWidget(view)
                self._parts.append((segment, view))
            self._parts[index] = (segment, view)
            self._draw(segment, view)
        self._drop_from(len(new))

    def _draw(self, segment: Segment, view: DocumentView | CodeBlock) -> None:
        if isinstance(segment, CodeSegment) and isinstance(view, CodeBlock):
            view.show_segment(segment)
        elif isinstance(segment, TextSegment) and isinstance(view, DocumentView):
            view.show_html(segment.html)

    def _redraw(self) -> None:
        for segment, view in self._parts:
            if isinstance(view, DocumentView):
                self._draw(segment, view)

    def _drop_from(self, index: int) -> None:
        for _, view in self._parts[index:]:
            self._layout.removeWidget(view)
            view.setParent(None)
            view.deleteLater()
        del self._parts[index:]


class MessageView(QWidget):
    """What both kinds of message share: actions that appear under the pointer."""

    def __init__(self) -> None:
        super().__init__()
        self.hover_buttons: list[IconButton] = []

    def enterEvent(self, event: QEnterEvent) -> None:
        self._reveal(True)
        super().enterEvent(event)

    def leaveEvent(self, event: QEvent) -> None:
        self._reveal(False)
        super().leaveEvent(event)

    def _reveal(self, revealed: bool) -> None:
        for one in self.hover_buttons:
            one.reveal(revealed)


class UserMessage(MessageView):
    """A question, in a bubble on the right, at most three quarters wide; an editor takes its place."""

    edited = Signal(str)
    editing_ended = Signal()
    fork_asked = Signal()

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.content = turn.content
        self._copy = CopyButton("Copy message")
        self._copy.text_to_copy = turn.content
        self.edit_button = IconButton("edit", "Edit message", role="text3")
        self.edit_button.clicked.connect(lambda: self.edit())
        self.fork_button = IconButton("fork", FORK, role="text3")
        self.fork_button.clicked.connect(self.fork_asked)
        self.hover_buttons = [self.fork_button, self._copy, self.edit_button]
        self._text = DocumentView("Your message")
        self._text.show_plain(turn.content)
        self._bubble = QFrame()
        self._bubble.setObjectName("bubble")
        inside = QVBoxLayout(self._bubble)
        inside.setContentsMargins(14, 10, 14, 7)
        inside.addWidget(self._text)
        self._shown = QWidget()
        line = QHBoxLayout(self._shown)
        line.setContentsMargins(0, 0, 0, 0)
        line.setSpacing(0)
        line.addStretch(1)
        for one in self.hover_buttons:
            line.addWidget(one, 0, Qt.AlignmentFlag.AlignTop)
        line.addSpacing(4)
        line.addWidget(self._bubble, 3)
        self._bubble.setMaximumWidth(max(48, self._text.ideal_width() + 28))
        self.editor: MessageEditor | None = None
        self._can_edit, self._has_later = True, False
        self._by_keyboard = False
        self._place = QVBoxLayout(self)
        self._place.setContentsMargins(0, 0, 0, 0)
        self._place.setSpacing(0)
        self._place.addWidget(self._shown)
        self._reveal(False)

    @property
    def focus_order(self) -> list[QWidget]:
        return [*self.hover_buttons, *(self.editor.focus_order if self.editor is not None else ())]

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
        self.editor.show_state(self._can_edit, self._has_later)
        self.editor.sent.connect(self.edited)
        self.editor.cancelled.connect(self.end_editing)
        self._shown.hide()
        self._place.addWidget(self.editor)
        chain_focus([self.edit_button, *self.editor.focus_order])
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
        self._shown.show()
        if self._by_keyboard:
            self.edit_button.setFocus()
        else:
            self.editing_ended.emit()


class AssistantMessage(MessageView):
    """An answer: waiting line, text, failure or quiet line, whichever apply."""

    again = Signal()
    go_on = Signal()
    fork_asked = Signal()
    budget_asked = Signal()
    free_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._waiting = WaitingLine()
        self._waiting.budget_asked.connect(self.budget_asked)
        self._waiting.free_asked.connect(self.free_asked)
        self._answer = Answer()
        self._failure = QFrame()
        self._failure.setObjectName("failure")
        self._failure_text = label("", wrap=True)
        self._failure_text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._try_again = button("Try again")
        self._try_again.clicked.connect(self.again)
        self._go_on_failed = button("Continue")
        self._go_on_failed.clicked.connect(self.go_on)
        inside = QHBoxLayout(self._failure)
        inside.setContentsMargins(16, 12, 12, 12)
        inside.setSpacing(8)
        inside.addWidget(self._failure_text, 1)
        inside.addSpacing(4)
        inside.addWidget(self._go_on_failed, 0, Qt.AlignmentFlag.AlignTop)
        inside.addWidget(self._try_again, 0, Qt.AlignmentFlag.AlignTop)
        self._note = ElidedLabel("", "3")
        self._note.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        self._copy = CopyButton("Copy answer")
        self._regenerate = IconButton("again", "Answer again", role="text3")
        self._regenerate.clicked.connect(self.again)
        self._go_on = button("Continue", "small")
        self._go_on.clicked.connect(self.go_on)
        set_tip(self._go_on, "Let the model write on where the answer ends")
        self.fork_button = IconButton("fork", FORK, role="text3")
        self.fork_button.clicked.connect(self.fork_asked)
        self.hover_buttons = [self._copy, self._regenerate, self.fork_button]
        self._foot = QWidget()
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
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        for part in (self._answer, self._waiting, self._failure, self._foot):
            layout.addWidget(part)
        self._reveal(False)

    @property
    def focus_order(self) -> list[QWidget]:
        failed = [self._go_on_failed, self._try_again]
        foot = [self._go_on, self._regenerate, self._copy, self.fork_button]
        return [*self._answer.focus_order, *self._waiting.focus_order, *failed, *foot]

    def show_turn(self, turn: Turn, chat: Chat, is_last: bool, can_free: bool = False) -> None:
        """Draw the turn as it is now. `can_free`: an idle chat holds memory, which this one may be waiting for."""
        self._answer.setVisible(bool(turn.content))
        self._answer.show_text(turn.content)
        pending, failed = turn.kind == "pending", turn.kind == "failed"
        goes_on = is_last and turn.can_go_on
        self.show_waiting(chat if pending else None, can_free)
        self._failure.setVisible(failed)
        self._failure_text.setText(turn.note if failed else "")
        self._try_again.setVisible(is_last)
        self._go_on_failed.setVisible(goes_on)
        self._foot.setVisible(not pending and (not failed or bool(turn.content)))
        quiet = "" if failed else turn.quiet_line
        self._note.set_full(quiet, turn.cost.tip)
        self._note.setVisible(bool(quiet))
        self._note_gap.setVisible(bool(quiet))
        self._go_on.setVisible(goes_on and not failed)
        self._copy.text_to_copy = turn.content
        self._copy.setVisible(bool(turn.content))
        self._regenerate.setVisible(is_last and not failed)

    def show_stream(self, text: str) -> None:
        """Draw more text of an answer that is being written."""
        self._answer.setVisible(bool(text))
        self._answer.show_text(text)

    def show_waiting(self, chat: Chat | None, can_free: bool = False) -> None:
        """What the chat is doing before its first word, or waits for; None where it is doing neither."""
        waiting = chat is not None and chat.phase in ("queued", "prefill", "waiting")
        self._waiting.setVisible(waiting)
        if waiting and chat is not None:
            self._waiting.show_progress(chat.phase, chat.fraction, chat.wait_message, can_free)
