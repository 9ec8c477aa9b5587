"""One piece of a message, laid out and painted: a Markdown block, a part of a program, or a part of a plain text."""

from __future__ import annotations

from math import ceil

from PySide6.QtCore import QPointF, QRectF, Qt, QUrl
from PySide6.QtGui import (
    QAbstractTextDocumentLayout,
    QColor,
    QFont,
    QPainter,
    QPalette,
    QPen,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextOption,
)
from PySide6.QtWidgets import QApplication

from app.ui.look.blocks import CodeSegment, PlainSegment, Segment, TextSegment
from app.ui.look.markdown import code_html, document_css
from app.ui.look.theme import theme

CODE_LEFT, CODE_RIGHT, CODE_FOOT, CODE_RADIUS = 14, 6, 12, 10
CODE_HEAD = 34  # the language's name and the button that copies
WRAPS_BEYOND = 2_000  # characters of a line of code; longer ones are broken, since nobody scrolls that far
_INTERSECT = Qt.ClipOperation.IntersectClip
# What stands above and below a block; the larger of two neighbours' is what is between them.
_ABOVE = {"heading": 18}
_BELOW = {"heading": 8, "table": 16}
_GAP = 12


class _Document(QTextDocument):
    """Nothing a model writes may reach the disk or the network: no pictures, no style sheets, no pages."""

    def loadResource(self, kind: int, name: QUrl | str) -> object:
        return None


class Piece:
    """A segment and, once it is laid out, its document.

    Attributes:
        width: It is laid out for; 0 before.
        height: Known where it is laid out, estimated otherwise; what is above it is not counted.
        shift: Pixels by which wide code is scrolled to the left.
    """

    __slots__ = ("_document", "_longest", "height", "segment", "shift", "width")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.width = 0
        self.height = 0
        self.shift = 0
        self._longest = 0  # pixels of its longest line, if that may be too long
        self._document: QTextDocument | None = None

    # ------------------------------------------------------------ its place
    def gap_after(self, before: Segment | None) -> int:
        """Pixels between it and the segment before it."""
        segment = self.segment
        if before is None or isinstance(segment, PlainSegment):
            return 0
        if isinstance(segment, CodeSegment) and isinstance(before, CodeSegment) and not segment.starts:
            return 0
        above = _ABOVE.get(segment.kind, 0) if isinstance(segment, TextSegment) else 0
        below = _BELOW.get(before.kind, 0) if isinstance(before, TextSegment) else 0
        if isinstance(before, TextSegment) and before.kind == "heading":
            return below
        return max(above, below, _GAP)

    def estimate(self, width: int) -> None:
        """Guess the height, from what is laid out for another width if there is something."""
        if self.width:
            scale = 1.0 if isinstance(self.segment, CodeSegment) else self.width / max(width, 1)
            self.height = max(round(self.height * scale), 1)
        else:
            self.height = guess(self.segment, width)
        self.width = 0

    def lay_out(self, width: int) -> bool:
        """Returns whether there was something to do."""
        if self.width == width and self._document is not None:
            return False
        document = self.document
        left, right = self.margins
        inner = width - left - right
        scrolls = self._scrolls
        document.setTextWidth(-1 if scrolls else inner)
        self.width = width
        self._longest = ceil(document.idealWidth()) if scrolls else 0
        height = ceil(document.size().height())
        if isinstance(self.segment, CodeSegment):
            height += (CODE_HEAD if self.segment.starts else 0) + (CODE_FOOT if self.segment.ends else 0)
        self.height = max(height, 1)
        return True

    def forget(self) -> None:
        """Let the document go; its height stays as it was."""
        self._document = None

    @property
    def is_laid_out(self) -> bool:
        return self._document is not None

    @property
    def is_code(self) -> bool:
        return isinstance(self.segment, CodeSegment)

    @property
    def margins(self) -> tuple[int, int]:
        """Left and right of the words."""
        return (CODE_LEFT, CODE_RIGHT) if isinstance(self.segment, CodeSegment) else (0, 0)

    @property
    def _head(self) -> int:
        return CODE_HEAD if isinstance(self.segment, CodeSegment) and self.segment.starts else 0

    @property
    def _scrolls(self) -> bool:
        """Whether its lines are as long as they are."""
        return isinstance(self.segment, CodeSegment) and not _has_longer_line(self.segment.code, WRAPS_BEYOND)

    def overhang(self, width: int) -> int:
        """Pixels by which its longest line is too long, which is known once it has been laid out."""
        left, right = self.margins
        return max(0, self._longest - (width - left - right)) if self._longest else 0

    @property
    def document(self) -> QTextDocument:
        if self._document is None:
            self._document = _made(self.segment, self._scrolls)
            self.width = 0
        return self._document

    # ------------------------------------------------------------ painting
    def paint(self, painter: QPainter, clip: QRectF, selected: QTextCursor | None) -> None:
        """Draw it at the painter's origin, as far as it is within `clip`."""
        if isinstance(self.segment, CodeSegment):
            self._paint_ground(painter, self.segment)
        left, right = self.margins
        tokens = theme().tokens
        if isinstance(self.segment, TextSegment) and self.segment.kind == "rule":
            painter.fillRect(QRectF(0, self.height // 2, self.width, 1), QColor(tokens.border))
            return
        context = QAbstractTextDocumentLayout.PaintContext()
        palette = QPalette(context.palette)
        palette.setColor(QPalette.ColorRole.Text, QColor(tokens.text))
        context.palette = palette
        x, y = left - self.shift, self._head
        window = QRectF(left, 0, self.width - left - right, self.height) if self._scrolls else QRectF(clip)
        context.clip = clip.intersected(window).translated(-x, -y)
        if selected is not None:
            colours = QTextCharFormat()
            colours.setBackground(QColor(tokens.accent))
            colours.setForeground(QColor(tokens.on_accent))
            selection = QAbstractTextDocumentLayout.Selection()
            selection.cursor, selection.format = selected, colours
            context.selections = [selection]
        painter.save()
        if self._scrolls:
            painter.setClipRect(window, _INTERSECT)
        painter.translate(x, y)
        self.document.documentLayout().draw(painter, context)
        painter.restore()

    def _paint_ground(self, painter: QPainter, segment: CodeSegment) -> None:
        tokens = theme().tokens
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        # A piece in the middle of a block has no corners: they are drawn outside of it.
        rect = QRectF(0, 0, self.width, self.height)
        painter.setClipRect(rect, _INTERSECT)
        rect.adjust(0.5, 0.5 if segment.starts else -CODE_RADIUS, -0.5, -0.5 if segment.ends else CODE_RADIUS)
        painter.setPen(QPen(QColor(tokens.hairline), 1))
        painter.setBrush(QColor(tokens.code_bg))
        painter.drawRoundedRect(rect, CODE_RADIUS, CODE_RADIUS)
        if segment.starts:
            painter.setPen(QColor(tokens.text3))
            font = QFont(painter.font())
            font.setPixelSize(theme().base - 1)
            painter.setFont(font)
            where = QRectF(CODE_LEFT, 4, self.width - CODE_LEFT - 48, 28)
            language = painter.fontMetrics().elidedText(
                segment.language or "text", Qt.TextElideMode.ElideRight, int(where.width())
            )
            painter.drawText(where, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, language)
        painter.restore()

    # ------------------------------------------------------------ words
    def position_at(self, point: QPointF) -> int:
        """The place in the document that is nearest to a point of the piece."""
        return max(0, self.document.documentLayout().hitTest(self._inside(point), Qt.HitTestAccuracy.FuzzyHit))

    def link_at(self, point: QPointF) -> str:
        return self.document.documentLayout().anchorAt(self._inside(point))

    def cursor(self, start: int, end: int) -> QTextCursor:
        """What is selected from one place to another, each within the document's bounds."""
        last = self.document.characterCount() - 1
        cursor = QTextCursor(self.document)
        cursor.setPosition(max(0, min(start, last)))
        cursor.setPosition(max(0, min(end, last)), QTextCursor.MoveMode.KeepAnchor)
        return cursor

    def _inside(self, point: QPointF) -> QPointF:
        left, _ = self.margins
        return QPointF(point.x() - left + self.shift, point.y() - self._head)


def guess(segment: Segment, width: int) -> int:
    """About how high a segment will be."""
    if isinstance(segment, CodeSegment):
        n_lines = segment.code.count("\n") + 1
        return round(n_lines * theme().base * 1.5) + CODE_HEAD * segment.starts + CODE_FOOT * segment.ends
    text = segment.html if isinstance(segment, TextSegment) else segment.text
    return guess_text(len(text), text.count("\n"), width, theme().base + 2)


def guess_text(n_characters: int, n_newlines: int, width: float, text_px: int) -> int:
    """About how high so many characters in so many lines are at a width."""
    per_line = max(width / (text_px * 0.5), 8.0)
    return round((n_characters / per_line + 0.6 * n_newlines + 0.7) * text_px * 1.54)


def _has_longer_line(text: str, n: int) -> bool:
    return len(text) > n and any(len(line) > n for line in text.splitlines())


def _made(segment: Segment, scrolls: bool) -> QTextDocument:
    """The segment's document, not laid out yet."""
    tokens, reading = theme().tokens, theme().base + 2
    document = _Document()
    document.setUndoRedoEnabled(False)
    document.setDocumentMargin(0)
    document.setIndentWidth(24)
    option = QTextOption()
    option.setWrapMode(
        QTextOption.WrapMode.NoWrap
        if scrolls
        else QTextOption.WrapMode.WrapAnywhere
        if isinstance(segment, CodeSegment)
        else QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere
    )
    document.setDefaultTextOption(option)
    code = isinstance(segment, CodeSegment)
    font = QFont(tokens.mono) if code else QFont(QApplication.font())
    font.setPixelSize(theme().base if code else reading)
    document.setDefaultFont(font)
    if isinstance(segment, PlainSegment):
        document.setPlainText(segment.text)
        cursor = QTextCursor(document)
        cursor.select(QTextCursor.SelectionType.Document)
        spacing = QTextBlockFormat()
        spacing.setLineHeight(125, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        cursor.mergeBlockFormat(spacing)
        return document
    if isinstance(segment, CodeSegment):
        document.setDefaultStyleSheet(
            f'pre {{ margin: 0; line-height: 125%; font-family: "{tokens.mono}"; color: {tokens.code_text}; }}'
        )
        document.setHtml(code_html(segment.code, segment.language, tokens))
    else:
        document.setDefaultStyleSheet(document_css(tokens, reading))
        document.setHtml(segment.html)
    _drop_outer_margins(document)
    return document


def _drop_outer_margins(document: QTextDocument) -> None:
    """Space above the first paragraph and below the last one belongs to what is between pieces."""
    for move in (QTextCursor.MoveOperation.Start, QTextCursor.MoveOperation.End):
        cursor = QTextCursor(document)
        cursor.movePosition(move)
        spacing = QTextBlockFormat()
        if move == QTextCursor.MoveOperation.Start:
            spacing.setTopMargin(0)
        else:
            spacing.setBottomMargin(0)
        cursor.mergeBlockFormat(spacing)
