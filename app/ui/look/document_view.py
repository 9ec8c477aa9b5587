"""A read-only text that is as high as what it says, and shows it as it is."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QResizeEvent,
    QTextCharFormat,
    QTextCursor,
    QTextOption,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextEdit

from app.ui.look.theme import theme


class DocumentView(QTextEdit):
    """Shows plain text, which can be selected; its height follows its width and its text."""

    def __init__(self, says: str) -> None:
        super().__init__()
        self._marked_from: int | None = None
        self.setAccessibleName(says)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.DefaultContextMenu)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setStyleSheet("background: transparent; border: none;")
        self.document().setDocumentMargin(0)
        self.set_text_px(theme().base + 2)

    def set_text_px(self, pixels: int) -> None:
        font = QFont(self.font())
        font.setPixelSize(pixels)
        self.document().setDefaultFont(font)

    def show_plain(self, text: str, marked_from: int | None = None) -> None:
        """Show text as it is, from the character `marked_from` on with the ground that says "differs"."""
        self._marked_from = marked_from
        if text != self.toPlainText():
            self.setPlainText(text)
            cursor = QTextCursor(self.document())
            cursor.select(QTextCursor.SelectionType.Document)
            spacing = cursor.blockFormat()
            spacing.setLineHeight(125, 1)  # proportional
            cursor.setBlockFormat(spacing)
        self._mark()
        self._fit()

    def _mark(self) -> None:
        cursor = QTextCursor(self.document())
        cursor.select(QTextCursor.SelectionType.Document)
        plain = QTextCharFormat()
        plain.setForeground(QColor(theme().tokens.text))
        cursor.setCharFormat(plain)
        if self._marked_from is not None:
            # Qt counts in UTF-16, where an emoji is two.
            start = len(self.toPlainText()[: self._marked_from].encode("utf-16-le")) // 2
            cursor.setPosition(min(start, self.document().characterCount() - 1))
            cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
            marked = QTextCharFormat()
            marked.setBackground(QColor(theme().tokens.differs_bg))
            cursor.mergeCharFormat(marked)

    def _fit(self) -> None:
        document = self.document()
        document.setTextWidth(self.viewport().width())
        height = int(document.size().height() + 0.999)
        if height != self.height():
            self.setFixedHeight(max(height, 1))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._fit()

    def sizeHint(self) -> QSize:
        return QSize(200, self.height())

    def minimumSizeHint(self) -> QSize:
        return QSize(40, 1)

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # what it is in scrolls

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.StyleChange and self.toPlainText():
            self._mark()
