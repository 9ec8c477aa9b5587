"""An editor that grows with what is written in it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QDragEnterEvent, QFocusEvent, QFont, QKeyEvent, QResizeEvent, QTextOption
from PySide6.QtWidgets import QFrame, QTextEdit

from app.ui.look.theme import theme

MAX_LINES = 8


class GrowingEdit(QTextEdit):
    """A plain-text editor as high as its text, from one line to `max_lines`. Ctrl+Enter, or Enter too, submits it."""

    submitted = Signal()
    focused = Signal(bool)

    def __init__(self, placeholder: str, says: str, enter_sends: bool = True, max_lines: int = MAX_LINES) -> None:
        super().__init__()
        self._enter_sends, self._max_lines = enter_sends, max_lines
        self.setAcceptRichText(False)
        self.setPlaceholderText(placeholder)
        self.setAccessibleName(says)
        self.setTabChangesFocus(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        font = QFont(self.font())
        font.setPixelSize(theme().base + 2)
        self.setFont(font)
        self.document().setDocumentMargin(2)
        self.document().contentsChanged.connect(self._fit)
        self._fit()

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

    def _fit(self) -> None:
        line = self.fontMetrics().lineSpacing()
        wanted = int(self.document().size().height() + 0.999)
        most = line * self._max_lines + 4
        self.setVerticalScrollBarPolicy(
            Qt.ScrollBarPolicy.ScrollBarAsNeeded if wanted > most else Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        )
        height = max(line + 4, min(wanted, most))
        if height != self.height():
            self.setFixedHeight(height)
