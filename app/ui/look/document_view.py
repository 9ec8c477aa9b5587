"""A read-only text that is as high as what it says and loads nothing from anywhere."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt, QUrl
from PySide6.QtGui import (
    QColor,
    QDesktopServices,
    QFont,
    QResizeEvent,
    QTextCharFormat,
    QTextCursor,
    QTextOption,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextBrowser, QWidget

from app.ui.look.confirm import confirm
from app.ui.look.markdown import document_css
from app.ui.look.theme import theme
from app.ui.look.words import elided

# Anything else in a link is shown but never opened.
_OPENABLE = ("http", "https", "mailto")


class DocumentView(QTextBrowser):
    """Shows plain text or our own rendering of Markdown; its height follows its width and its text."""

    def __init__(self, says: str, wrap: bool = True, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._wrap = wrap
        self._html: str | None = None
        self._marked_from: int | None = None
        self.setAccessibleName(says)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setOpenLinks(False)
        self.anchorClicked.connect(self._ask_to_open)
        self.setUndoRedoEnabled(False)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(
            Qt.ScrollBarPolicy.ScrollBarAlwaysOff if wrap else Qt.ScrollBarPolicy.ScrollBarAsNeeded
        )
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere if wrap else QTextOption.WrapMode.NoWrap)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.DefaultContextMenu)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setStyleSheet("background: transparent; border: none;")
        self.document().setDocumentMargin(0)
        self.document().setIndentWidth(24)
        self.set_text_px(theme().base + 2)

    def set_text_px(self, pixels: int, family: str = "") -> None:
        font = QFont(family) if family else QFont(self.font())
        font.setPixelSize(pixels)
        self.document().setDefaultFont(font)

    # Nothing a model writes may reach the disk or the network: no pictures, no style sheets, no pages.
    def loadResource(self, kind: int, name: QUrl | str) -> object:
        return None

    def show_html(self, html: str) -> None:
        """Show our own rendering of Markdown."""
        self._html = html
        self.document().setDefaultStyleSheet(document_css(theme().tokens, theme().base + 2))
        self.setHtml(html)
        self._drop_last_margin()
        self._fit()

    def show_code(self, html: str) -> None:
        """Show a preformatted block; the caller has set the document's style sheet."""
        self._html = html
        self.setHtml(html)
        self._drop_last_margin()
        self._fit()

    def show_plain(self, text: str, marked_from: int | None = None) -> None:
        """Show text as it is, from the character `marked_from` on with the ground that says "differs"."""
        self._html, self._marked_from = None, marked_from
        if text != self.toPlainText():
            self.setPlainText(text)
            cursor = QTextCursor(self.document())
            cursor.select(QTextCursor.SelectionType.Document)
            spacing = cursor.blockFormat()
            spacing.setLineHeight(125, 1)  # proportional
            cursor.setBlockFormat(spacing)
        self._mark()
        self._fit()

    def ideal_width(self) -> int:
        """The width the text would take on as few lines as it has."""
        document = self.document().clone()
        document.setTextWidth(-1)
        width = int(document.idealWidth()) + 2
        document.deleteLater()
        return width

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

    def _drop_last_margin(self) -> None:
        """Space below the last paragraph belongs to what follows, which keeps its own distance."""
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        spacing = cursor.blockFormat()
        spacing.setBottomMargin(0)
        cursor.setBlockFormat(spacing)

    def _fit(self) -> None:
        document = self.document()
        document.setTextWidth(self.viewport().width() if self._wrap else -1)
        height = int(document.size().height() + 0.999)
        if not self._wrap and document.idealWidth() > self.viewport().width():
            height += self.horizontalScrollBar().sizeHint().height()
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
        # The list of messages scrolls; only wide code scrolls by itself, and only sideways.
        if self._wrap or abs(event.angleDelta().y()) >= abs(event.angleDelta().x()):
            event.ignore()
        else:
            super().wheelEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.StyleChange and self._html is None and self.toPlainText():
            self._mark()

    def _ask_to_open(self, url: QUrl) -> None:
        if url.scheme().lower() not in _OPENABLE:
            return
        question = "Open this link in your browser? The model wrote it, and nobody has checked it."
        # A long address has nowhere to break but after its slashes; who it belongs to stands first.
        address = elided(url.toDisplayString(), 300).replace("/", "/\u200b")
        if confirm(self.window(), question, address, "Open link"):
            QDesktopServices.openUrl(url)
