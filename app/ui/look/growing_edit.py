"""An editor that grows with what is written in it, and stays quick however much that is."""

from __future__ import annotations

from PySide6.QtCore import QMimeData, Qt, Signal
from PySide6.QtGui import (
    QDragEnterEvent,
    QFocusEvent,
    QFont,
    QKeyEvent,
    QResizeEvent,
    QTextBlock,
    QTextCursor,
    QTextOption,
)
from PySide6.QtWidgets import QFrame, QPlainTextEdit

from app.ui.look.theme import theme

MAX_LINES = 8
AROUND = 4  # pixels above and below the text together
# Wrapping at words takes time by the square of a word's length: two seconds for 200,000 characters without a space,
# and again with every key. Wrapping anywhere takes a hundredth of that, so it is what lines longer than this get.
LONG_LINE = 8_000
_AT_WORDS = QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere
_ANYWHERE = QTextOption.WrapMode.WrapAnywhere


class GrowingEdit(QPlainTextEdit):
    """A plain-text editor as high as its text, from one line to `max_lines`. Ctrl+Enter, or Enter too, submits it.

    A QPlainTextEdit lays out what can be seen of its text, a QTextEdit all of it: so nothing here may ask for the size
    of the whole document, or walk through all of it with every key.
    """

    submitted = Signal()
    focused = Signal(bool)

    def __init__(self, placeholder: str, says: str, enter_sends: bool = True, max_lines: int = MAX_LINES) -> None:
        super().__init__()
        self._enter_sends, self._max_lines = enter_sends, max_lines
        self._long_at: int | None = None  # a position in a line longer than LONG_LINE, while there is one
        self.setPlaceholderText(placeholder)
        self.setAccessibleName(says)
        self.setTabChangesFocus(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWordWrapMode(_AT_WORDS)
        font = QFont(self.font())
        font.setPixelSize(theme().base + 2)
        self.setFont(font)
        # Two pixels around the text. Below it only one is the document's: a QPlainTextEdit that is as high as its
        # document lets its last line scroll up, and needs one pixel more not to.
        self.document().setDocumentMargin(1)
        self.setViewportMargins(1, 1, 1, 0)
        self.document().contentsChange.connect(self._choose_wrapping)
        self.document().contentsChanged.connect(self._fit)
        self._fit()

    @property
    def text(self) -> str:
        """What is written, exactly; every kind of line end is a newline.

        toPlainText(), of this and of every other Qt editor, makes U+00A0, which keeps words together, a plain space.
        """
        return self.document().toRawText().replace("\u2029", "\n").replace("\u2028", "\n")

    @property
    def has_words(self) -> bool:
        """Whether there is more than white space."""
        block = self.document().firstBlock()
        while block.isValid():
            if block.text().strip():
                return True
            block = block.next()
        return False

    def setPlainText(self, text: str) -> None:
        super().setPlainText("")
        if text:
            # Inserted, as Qt's setPlainText() lays a long line out three times.
            self.document().setUndoRedoEnabled(False)
            self.insertPlainText(self._ready_for(text))
            self.document().setUndoRedoEnabled(True)
            self.moveCursor(QTextCursor.MoveOperation.Start)

    def insertFromMimeData(self, source: QMimeData) -> None:
        if source.hasText():
            self.insertPlainText(self._ready_for(source.text()))
            self.ensureCursorVisible()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        held = event.modifiers()
        makes_line = held & (Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.AltModifier)
        if enter and not makes_line and (self._enter_sends or held & Qt.KeyboardModifier.ControlModifier):
            self.submitted.emit()
            return
        if event.key() == Qt.Key.Key_Escape:
            event.ignore()  # What is around it cancels with it, or the window stops the answer.
            return
        pages = event.key() in (Qt.Key.Key_PageUp, Qt.Key.Key_PageDown)
        if pages and self.verticalScrollBarPolicy() == Qt.ScrollBarPolicy.ScrollBarAlwaysOff:
            event.ignore()  # There is nothing to scroll here, but perhaps around it.
            return
        if enter:
            # Qt's own Shift+Enter makes a line within the line, so that many of them were one very long one.
            self.textCursor().insertBlock()
            self.ensureCursorVisible()
            return
        super().keyPressEvent(event)

    # A file that is dropped is a model to open, which is the window's business, and not its path as text.
    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if any(url.isLocalFile() for url in event.mimeData().urls()):
            event.ignore()
        else:
            super().dragEnterEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.focused.emit(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.focused.emit(False)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _ready_for(self, text: str) -> str:
        """Get ready to lay `text` out, which begins before Qt says that it came, and once only.

        Returns it with a newline for U+2028, which would be a line end within one line of the editor.
        """
        text = text.replace("\u2028", "\n")
        if any(len(line) >= LONG_LINE for line in text.splitlines()):
            self._wrap(_ANYWHERE)
            # A long line has more than max_lines, and a scroll bar that comes later would have it laid out again.
            self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)
        return text

    def _choose_wrapping(self, position: int, removed: int, added: int) -> None:
        """Wrap by the longest line. Qt says what changed before it lays it out, so a long line never is at words."""
        document = self.document()
        found = _long_line(document.findBlock(position), position + added)
        if found is None and (at := self._long_at) is not None:
            at = at + added - removed if position + removed <= at else min(at, position)
            block = document.findBlock(at)
            found = block if _is_long(block) else _long_line(document.firstBlock(), document.characterCount())
        self._long_at = None if found is None else found.position()
        self._wrap(_AT_WORDS if found is None else _ANYWHERE)

    def _wrap(self, mode: QTextOption.WrapMode) -> None:
        if mode != self.wordWrapMode():
            self.setWordWrapMode(mode)

    def _fit(self) -> None:
        line = self.fontMetrics().lineSpacing()
        most = line * self._max_lines + AROUND
        wanted = self._height_up_to(most)
        self.setVerticalScrollBarPolicy(
            Qt.ScrollBarPolicy.ScrollBarAlwaysOn if wanted > most else Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        )
        height = max(line + AROUND, min(wanted, most))
        if height != self.height():
            self.setFixedHeight(height)

    def _height_up_to(self, most: int) -> int:
        """The height of the text, or of its first lines if they already need more than `most`."""
        document = self.document()
        layout, block = document.documentLayout(), document.firstBlock()
        height = AROUND - document.documentMargin()  # which is in the last line's height
        while block.isValid() and height <= most:
            height += layout.blockBoundingRect(block).height()
            block = block.next()
        return int(height + 0.999)


def _is_long(block: QTextBlock) -> bool:
    return block.length() > LONG_LINE


def _long_line(block: QTextBlock, end: int) -> QTextBlock | None:
    """The first long line from `block` on that begins by the position `end`."""
    while block.isValid() and block.position() <= end:
        if _is_long(block):
            return block
        block = block.next()
    return None
