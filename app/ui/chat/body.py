"""The words of one message: laid out, painted and selected piece by piece; what can't be seen costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from PySide6.QtCore import QPoint, QPointF, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import (
    QContextMenuEvent,
    QGuiApplication,
    QKeyEvent,
    QKeySequence,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QTextCursor,
    QWheelEvent,
)
from PySide6.QtWidgets import QApplication, QMenu, QSizePolicy, QWidget

from app.ui.chat.heights import Heights
from app.ui.chat.piece import Piece, guess_text
from app.ui.chat.programs import Programs, strung
from app.ui.chat.selection import Place, Selection
from app.ui.look.blocks import SLICE, CodeSegment, MarkdownStream, Segment, plain_segments, slices
from app.ui.look.links import ask_to_open
from app.ui.look.theme import theme

KEPT = 120  # pieces that stay laid out, or more where more can be seen
AT_ONCE_S = 0.02  # of reading, before the window is looked after
NAMED = 20_000  # characters of the name a screen reader is given

Part = tuple[int, int]  # a piece, and pixels below its beginning


class Body(QWidget):
    """A message's words. They are a person's, shown as written, or an answer's, which is Markdown.

    It has no layout: whoever holds it calls `lay_out` with the part that can be seen, and gives it the height that
    returns. `resized` says that this should be done again.
    """

    resized = Signal()
    selecting = Signal()  # a selection begins here
    dragged = Signal()  # the pointer moves while it selects

    def __init__(self, says: str, markdown: bool) -> None:
        super().__init__()
        self._says, self._markdown = says, markdown
        self._text = ""
        self._stream = MarkdownStream()
        self._fed = 0  # characters of the text that the stream has
        self._again = 0  # characters that are shown already, and are being read again
        self._ended = False
        self._pieces: list[Piece] = []
        self._programs = Programs(self, self._pieces)
        self._selection = Selection(self._pieces)
        self._heights = Heights()
        self._laid_out: set[int] = set()
        self._pressed_link = ""
        self._clicks, self._clicked_at = 0, 0
        self._more = QTimer(self)
        self._more.setSingleShot(True)
        self._more.timeout.connect(self._read_more)
        self.setAccessibleName(says)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setMouseTracking(True)
        self.setCursor(Qt.CursorShape.IBeamCursor)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        theme().changed.connect(self._redraw)

    # ------------------------------------------------------------ what it says
    @property
    def text(self) -> str:
        """What was written, with its Markdown."""
        return self._text

    @property
    def words(self) -> str:
        """What is read: without the marks."""
        return strung([piece.segment for piece in self._pieces])

    @property
    def pieces(self) -> Sequence[Piece]:
        return self._pieces

    @property
    def is_reading(self) -> bool:
        """Whether there is more of the text than what is shown yet."""
        return self._more.isActive()

    @property
    def focus_order(self) -> list[QWidget]:
        return self._programs.focus_order

    def show_text(self, text: str, ended: bool = True) -> None:
        """Show a text; one that goes on where the last one ended costs what is new. `ended`: no more will come."""
        if text == self._text and ended == self._ended:
            return
        if not self._markdown:
            self._text, self._ended = text, True
            self._replace_from(0, plain_segments(text))
        else:
            if not text.startswith(self._text):
                self._forget_text()
            elif self._ended:
                # It goes on, and so may its last block. What is there stays until the same is read again.
                self._stream, self._fed, self._again = MarkdownStream(), 0, len(self._text)
            self._text, self._ended = text, ended
            self._read()
        if ended:
            self._name()

    def _read(self) -> None:
        """Read what is not read yet; of a long text a part, and the rest when the window has been looked after."""
        until = perf_counter() + AT_ONCE_S
        first = len(self._stream.segments)
        while self._fed < len(self._text) and perf_counter() < until:
            new = next(slices(self._text[self._fed : self._fed + SLICE]))
            first = min(first, self._stream.feed(new))
            self._fed += len(new)
        if self._fed < len(self._text):
            self._more.start(0)
        elif self._ended:
            first = min(first, self._stream.finish())
        if self._fed < self._again:
            return
        if self._again:
            first, self._again = 0, 0
        self._replace_from(first, self._stream.segments[first:])

    def _read_more(self) -> None:
        self._read()
        self.resized.emit()

    def put_away(self) -> None:
        """Its widget is kept for another message."""
        self.deselect()
        if self.is_reading:
            self._forget_text()

    def _forget_text(self) -> None:
        self._more.stop()
        self._stream, self._fed, self._again = MarkdownStream(), 0, 0
        self._text, self._ended = "", False
        self._replace_from(0, [])
        self._selection.clear()
        self.setAccessibleName(self._says)

    def _name(self) -> None:
        words = self._text if len(self._text) <= NAMED else f"{self._text[:NAMED]}…"
        self.setAccessibleName(f"{self._says}: {words}" if words else self._says)

    def _replace_from(self, first: int, segments: Sequence[Segment]) -> None:
        """The segments from `first` on are these; those that are still the same keep what was made of them."""
        old: list[Piece] = self._pieces[first:]
        new: list[Piece] = []
        for index, segment in enumerate(segments):
            if index < len(old) and old[index].segment == segment:
                new.append(old[index])
                continue
            piece = Piece(segment)
            if isinstance(segment, CodeSegment):
                # It was scrolled sideways before it grew, or the piece before it was.
                like = old[index] if index < len(old) else new[-1] if new else None
                piece.shift = like.shift if like is not None and isinstance(like.segment, CodeSegment) else 0
            if self.width() > 0:
                piece.estimate(self.width())
            new.append(piece)
        self._laid_out = {i for i in self._laid_out if i < first}
        self._laid_out |= {first + i for i, piece in enumerate(new) if piece.is_laid_out}
        self._pieces[first:] = new
        self._heights.replace_from(first, [self._whole(first + i) for i in range(len(new))])
        self.update()

    def _redraw(self) -> None:
        """The colours have changed."""
        for piece in self._pieces:  # one may have a document without being laid out, for what is selected
            piece.forget()
        self._laid_out.clear()
        self.resized.emit()
        self.update()

    # ------------------------------------------------------------ layout
    def lay_out(self, width: int, top: int, bottom: int) -> int:
        """Lay out what is between two heights. Returns the height of all of it, as far as it is known."""
        if width != self.width():
            self.resize(width, self.height())
            for piece in self._pieces:
                piece.estimate(width)
            self._heights.replace_from(0, [self._whole(i) for i in range(len(self._pieces))])
        first = last = 0
        done = bool(self._pieces)
        while done:
            done = False
            first = index = self._heights.at(max(top, 0))
            while index < len(self._pieces) and (index == first or self._heights.y(index) < bottom):
                done |= self._lay_out_piece(index, width)
                last = index
                index += 1
        self._let_go(top, bottom)
        self._programs.place(first, last, lambda index: self._heights.y(index + 1), width)
        rest = len(self._text) - max(self._fed, self._again) if self._markdown else 0
        height = self._heights.total + (guess_text(rest, 0, width, theme().base + 2) if rest else 0)
        if height != self.height():
            self.resize(width, height)
        return height

    def _lay_out_piece(self, index: int, width: int) -> bool:
        """Returns whether there was something to do."""
        piece = self._pieces[index]
        if not piece.lay_out(width):
            return False
        self._laid_out.add(index)
        self._heights.set(index, self._whole(index))
        # It may have been painted before, as nothing: after a change of colours it is as high as it was.
        self.update(0, self._top(index), width, piece.height)
        return True

    def is_laid_out(self, top: int, bottom: int) -> bool:
        """Whether everything between two heights is."""
        if not self._pieces or bottom < 0 or top > self._heights.total:
            return True
        first, last = self._heights.at(max(top, 0)), self._heights.at(max(bottom - 1, 0))  # as `lay_out` takes them
        return all(self._pieces[index].is_laid_out for index in range(first, last + 1))

    def ideal_width(self) -> int:
        """The width the words would take on as few lines as they have; of long texts that of their first part."""
        if not self._pieces:
            return 0
        document = self._pieces[0].document
        document.setTextWidth(-1)
        self._pieces[0].width = 0
        return int(document.idealWidth()) + 2

    def part_at(self, y: int) -> Part | None:
        """What is at a height: a piece, and pixels below its beginning. `y_of` finds it again after changes."""
        if not self._pieces:
            return None
        index = self._heights.at(y)
        return index, y - self._heights.y(index)

    def y_of(self, part: Part) -> int:
        return self._heights.y(min(part[0], len(self._pieces))) + part[1]

    @property
    def n_laid_out(self) -> int:
        return len(self._laid_out)

    def _whole(self, index: int) -> int:
        """A piece's height with the gap above it."""
        before = self._pieces[index - 1].segment if index else None
        return self._pieces[index].gap_after(before) + self._pieces[index].height

    def _top(self, index: int) -> int:
        """Where a piece's words begin."""
        return self._heights.y(index + 1) - self._pieces[index].height

    def _let_go(self, top: int, bottom: int) -> None:
        """Forget the documents of pieces that are farther from what can be seen than that is high, if there are many.

        By their heights, not their number, or on a high screen those around what can be seen would go and come again.
        """
        if len(self._laid_out) > KEPT:
            first = self._heights.at(max(top - (bottom - top), 0)) - KEPT // 4
            last = self._heights.at(max(bottom + (bottom - top), 0)) + KEPT // 4
            for index in [i for i in self._laid_out if not first <= i <= last]:
                self._pieces[index].forget()
                self._laid_out.discard(index)

    # ------------------------------------------------------------ painting
    def paintEvent(self, event: QPaintEvent) -> None:
        clip = event.rect()
        painter = QPainter(self)
        index = self._heights.at(clip.top()) if self._pieces else 0
        while index < len(self._pieces) and self._heights.y(index) <= clip.bottom():
            piece, y = self._pieces[index], self._top(index)
            if piece.is_laid_out:
                painter.save()
                painter.translate(0, y)
                piece.paint(painter, QRectF(clip).translated(0, -y), self._selection.within(index))
                painter.restore()
            index += 1

    # ------------------------------------------------------------ selection
    @property
    def has_selection(self) -> bool:
        return bool(self._selection)

    @property
    def selected_text(self) -> str:
        """What is selected, as it is read."""
        return self._selection.text

    def copy(self) -> None:
        if self._selection:
            QGuiApplication.clipboard().setText(self._selection.text)

    def selectAll(self) -> None:
        self.selecting.emit()
        self._selection.take_all()
        self.update()

    def deselect(self) -> None:
        if self._selection.has_begun:
            self._selection.clear()
            self.update()

    def select_to(self, point: QPoint) -> None:
        """Let the selection go on to a point."""
        self._selection.go_on(self._place_at(point))
        self.update()

    def _piece_at(self, point: QPoint) -> tuple[int, QPointF] | None:
        """The piece at a point, and the point as it sees it."""
        if not self._pieces:
            return None
        index = self._heights.at(max(point.y(), 0))
        if self._lay_out_piece(index, self.width()):  # the pointer may be far from what can be seen
            self.resized.emit()
        return index, QPointF(point.x(), point.y() - self._top(index))

    def _place_at(self, point: QPoint) -> Place | None:
        found = self._piece_at(point)
        return None if found is None else (found[0], self._pieces[found[0]].position_at(found[1]))

    def _link_at(self, point: QPoint) -> str:
        found = self._piece_at(point)
        return "" if found is None else self._pieces[found[0]].link_at(found[1])

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() != Qt.MouseButton.LeftButton:
            super().mousePressEvent(event)
            return
        point = event.position().toPoint()
        place = self._place_at(point)
        self._pressed_link = self._link_at(point)
        if place is None:
            return
        self.selecting.emit()
        if event.modifiers() & Qt.KeyboardModifier.ShiftModifier and self._selection.has_begun:
            self._selection.go_on(place)
        elif self._clicks == 2 and event.timestamp() - self._clicked_at < QApplication.doubleClickInterval():
            self._selection.take_around(place, QTextCursor.SelectionType.BlockUnderCursor)
        else:
            self._selection.begin(place)
        self._clicks = 0
        self.update()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        place = self._place_at(event.position().toPoint())
        if event.button() == Qt.MouseButton.LeftButton and place is not None:
            self.selecting.emit()
            self._selection.take_around(place, QTextCursor.SelectionType.WordUnderCursor)
            self._clicks, self._clicked_at = 2, event.timestamp()
            self.update()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        point = event.position().toPoint()
        if event.buttons() & Qt.MouseButton.LeftButton:
            self.select_to(point)
            self.dragged.emit()
            return
        shape = Qt.CursorShape.PointingHandCursor if self._link_at(point) else Qt.CursorShape.IBeamCursor
        if shape != self.cursor().shape():
            self.setCursor(shape)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() != Qt.MouseButton.LeftButton:
            return
        link, self._pressed_link = self._pressed_link, ""
        if self._selection:
            clipboard = QGuiApplication.clipboard()
            if clipboard.supportsSelection():
                clipboard.setText(self.selected_text, clipboard.Mode.Selection)
        elif link and link == self._link_at(event.position().toPoint()):
            ask_to_open(self.window(), link)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.matches(QKeySequence.StandardKey.Copy):
            self.copy()
        elif event.matches(QKeySequence.StandardKey.SelectAll):
            self.selectAll()
        else:
            super().keyPressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        menu = QMenu(self)
        menu.addAction("Copy", self.copy).setEnabled(self.has_selection)
        if link := self._link_at(event.pos()):
            menu.addAction("Copy link address", lambda: QGuiApplication.clipboard().setText(link))
        menu.addSeparator()
        menu.addAction("Select all", self.selectAll)
        menu.exec(event.globalPos())
        menu.deleteLater()

    def wheelEvent(self, event: QWheelEvent) -> None:
        # The list of messages scrolls; only wide code scrolls by itself, and only sideways.
        delta = event.angleDelta()
        found = self._piece_at(event.position().toPoint())
        bar = self._programs.bar_of(found[0]) if found is not None else None
        if bar is not None and abs(delta.x()) > abs(delta.y()):
            bar.setValue(bar.value() - delta.x())
            event.accept()
            return
        event.ignore()
