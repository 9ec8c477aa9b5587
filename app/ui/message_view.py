"""One message: the person's as a bubble, the model's as text and code with what it cost below."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, QTimer, Signal
from PySide6.QtGui import QEnterEvent, QGuiApplication
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from app.ui.document_view import DocumentView
from app.ui.markdown import CodeSegment, Segment, TextSegment, code_html, segments
from app.ui.small import ElidedLabel, IconButton, button, label
from app.ui.state import Chat, Turn
from app.ui.theme import theme
from app.ui.waiting import WaitingLine


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
        self._copy = CopyButton("Copy code")
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
    """A question, in a bubble on the right, at most three quarters wide."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.content = turn.content
        self._copy = CopyButton("Copy message")
        self._copy.text_to_copy = turn.content
        self._copy.reveal(False)
        self.hover_buttons = [self._copy]
        self._text = DocumentView("Your message")
        self._text.show_plain(turn.content)
        self._bubble = QFrame()
        self._bubble.setObjectName("bubble")
        inside = QVBoxLayout(self._bubble)
        inside.setContentsMargins(14, 10, 14, 7)
        inside.addWidget(self._text)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addStretch(1)
        layout.addWidget(self._copy, 0, Qt.AlignmentFlag.AlignTop)
        layout.addWidget(self._bubble, 3)
        self._bubble.setMaximumWidth(max(48, self._text.ideal_width() + 28))


class AssistantMessage(MessageView):
    """An answer: waiting line, text, failure or quiet line, whichever apply."""

    again = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._waiting = WaitingLine()
        self._answer = Answer()
        self._failure = QFrame()
        self._failure.setObjectName("failure")
        self._failure_text = label("", wrap=True)
        self._failure_text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._try_again = button("Try again")
        self._try_again.clicked.connect(self.again)
        inside = QHBoxLayout(self._failure)
        inside.setContentsMargins(16, 12, 12, 12)
        inside.setSpacing(12)
        inside.addWidget(self._failure_text, 1)
        inside.addWidget(self._try_again, 0, Qt.AlignmentFlag.AlignTop)
        self._note = ElidedLabel("", "3")
        self._note.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        self._copy = CopyButton("Copy answer")
        self._regenerate = IconButton("again", "Answer again", role="text3")
        self._regenerate.clicked.connect(self.again)
        self.hover_buttons = [self._copy, self._regenerate]
        self._foot = QWidget()
        foot = QHBoxLayout(self._foot)
        foot.setContentsMargins(0, 0, 0, 0)
        foot.setSpacing(2)
        foot.addWidget(self._note)
        foot.addSpacing(6)
        foot.addWidget(self._copy)
        foot.addWidget(self._regenerate)
        foot.addStretch()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        for part in (self._answer, self._waiting, self._failure, self._foot):
            layout.addWidget(part)
        self._reveal(False)

    def show_turn(self, turn: Turn, chat: Chat, is_last: bool) -> None:
        """Draw the turn as it is now."""
        self._answer.setVisible(bool(turn.content))
        self._answer.show_text(turn.content)
        pending = turn.kind == "pending"
        self.show_waiting(chat if pending else None)
        failed = turn.kind == "failed"
        self._failure.setVisible(failed)
        self._failure_text.setText(turn.note if failed else "")
        self._try_again.setVisible(is_last)
        self._foot.setVisible(not pending and not failed)
        self._note.set_full(turn.quiet_line)
        self._note.setVisible(bool(turn.quiet_line))
        self._copy.text_to_copy = turn.content
        self._copy.setVisible(bool(turn.content))
        self._regenerate.setVisible(is_last)

    def show_stream(self, text: str) -> None:
        """Draw more text of an answer that is being written."""
        self._answer.setVisible(bool(text))
        self._answer.show_text(text)

    def show_waiting(self, chat: Chat | None) -> None:
        """What the chat is doing before its first word; None where it is not waiting for that."""
        waiting = chat is not None and chat.phase in ("queued", "prefill")
        self._waiting.setVisible(waiting)
        if waiting and chat is not None:
            self._waiting.show_progress(chat.phase, chat.fraction)
