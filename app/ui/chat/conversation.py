"""The messages of a chat, of which only those that can be seen, and a screen around them, are there as widgets.

The heights of the others are estimated. Where one turns out to be otherwise, what the reader looks at stays where it
is: a place is remembered as a message, a piece of it and a distance from there, never as a distance from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QPoint, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QResizeEvent
from PySide6.QtWidgets import QAbstractScrollArea, QApplication, QFrame, QWidget

from app.ui.chat.body import Body, Part
from app.ui.chat.edge_scroll import EdgeScroll
from app.ui.chat.heights import Heights
from app.ui.chat.message_view import MessageView
from app.ui.chat.rows import FOOT, Row, guess_rows
from app.ui.look.icons import icon
from app.ui.look.small import button
from app.ui.look.theme import theme
from app.ui.session.state import Turn

COLUMN = 720
MARGIN = 24  # left, right, above the first and below the last message, and between two
SPARES = 6  # widgets of either kind that are kept for the next message
WHEEL = 20  # pixels of a step, of which the wheel takes three


@dataclass(frozen=True, slots=True)
class Anchor:
    """What the reader looks at: a row, and how far below its beginning (or that of a part of its words) the top is."""

    row: int = 0
    part: Part | None = None
    below: int = 0


class Conversation(QAbstractScrollArea):
    """Stays at the end while it grows, unless one has scrolled up to read.

    Args:
        made: Makes the widget of a role, and connects what its buttons do.
        fill: Lets a widget show the message at an index.
    """

    changed = Signal()  # other widgets are there than before

    def __init__(self, made: Callable[[str], MessageView], fill: Callable[[int, MessageView], None]) -> None:
        super().__init__()
        self._made, self._fill = made, fill
        self._rows: list[Row] = []
        self._heights = Heights()
        self._width = 0  # of the column the heights are for
        self._spares: dict[str, list[MessageView]] = {"user": [], "assistant": []}
        self._shown: dict[int, MessageView] = {}
        self._anchor = Anchor()
        self._at_end = True
        self._quiet = False
        self._divider: QWidget | None = None
        self._divides = 0  # the row below the divider; 0 where there is none
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setAutoFillBackground(False)
        self.verticalScrollBar().setSingleStep(WHEEL)
        self.verticalScrollBar().sliderReleased.connect(self._settle)
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.timeout.connect(self._settle)
        self._ahead = QTimer(self)
        self._ahead.setSingleShot(True)
        self._ahead.timeout.connect(self._prepare)
        self._edges = EdgeScroll(self)
        self._latest = button("Jump to latest")
        self._latest.setObjectName("latest")
        self._latest.setParent(self)
        self._latest.setFixedHeight(32)
        self._latest.clicked.connect(self.to_end)
        self._latest.hide()
        theme().changed.connect(self._tint)
        self._tint()

    # ------------------------------------------------------------ what is in it
    def show_turns(self, turns: Sequence[Turn], same: int) -> None:
        """These are the messages now, of which the first `same` are as they were."""
        same = min(same, len(self._rows))
        for index in [i for i in self._shown if i >= same]:
            self._take_away(index)
        rows = []
        for turn in turns[same:]:
            row = Row(turn.role)
            row.measure(turn)
            rows.append(row)
        self._rows[same:] = rows
        self._divides = self._divides if self._divides < len(self._rows) else 0
        self._guess_from(same)
        if self._anchor.row >= same:
            self._anchor = Anchor(max(same - 1, 0))

    def refresh(self, index: int, turn: Turn) -> None:
        """The message at an index has changed; nothing is laid out before the next `settle`."""
        row = self._rows[index]
        if row.view is not None:
            self._fill(index, row.view)
        else:
            row.measure(turn)
            self._heights.set(index, self._guess(index))

    def view(self, index: int) -> MessageView | None:
        """The widget of a message, if there is one."""
        return self._rows[index].view if 0 <= index < len(self._rows) else None

    def bring(self, index: int) -> MessageView:
        """The widget of a message, which there is from now on as long as somebody is busy with it."""
        return self._rows[index].view or self._bring(index)

    def index_of(self, view: MessageView) -> int:
        return next(index for index, shown in self._shown.items() if shown is view)

    @property
    def shown(self) -> list[tuple[int, MessageView]]:
        """The messages that are there as widgets, from top to bottom."""
        return sorted(self._shown.items())

    def divide(self, before: int, line: QWidget) -> None:
        """Show a line above a message; 0 shows none."""
        if line is not self._divider:
            self._divider = line
            line.setParent(self.viewport())
        if before != self._divides:
            old, self._divides = self._divides, before
            for index in {old, before} - {0}:
                if index < len(self._rows):
                    view = self._rows[index].view
                    height = self._lead(index) + view.height() if view is not None else self._guess(index)
                    self._heights.set(index, height)
        line.setVisible(before > 0)

    # ------------------------------------------------------------ where one is
    @property
    def is_at_end(self) -> bool:
        return self._at_end

    def to_end(self) -> None:
        self._at_end = True
        self.settle()

    def to_row(self, index: int) -> None:
        """Bring a message to the top."""
        self._at_end, self._anchor = False, Anchor(index, None, -MARGIN)
        self.settle()

    def page(self, n: int) -> None:
        """Scroll by `n` screens, less a line."""
        bar = self.verticalScrollBar()
        bar.setValue(bar.value() + n * (bar.pageStep() - MARGIN))

    def settle(self) -> None:
        """Lay out what can be seen, now."""
        self._soon.stop()
        self._settle()

    def settle_soon(self) -> None:
        if not self._soon.isActive():
            self._soon.start(0)

    # ------------------------------------------------------------ layout
    def _column(self) -> tuple[int, int]:
        """Where the column begins, and its width."""
        # The scroll bar takes its room from the margin, so that the messages stay in line with the input below them.
        bar = self.verticalScrollBar()
        whole = self.viewport().width() + (bar.width() if bar.isVisibleTo(self) else 0)
        width = max(min(COLUMN, whole - 2 * MARGIN), 40)
        return (whole - width) // 2, width

    def _lead(self, index: int) -> int:
        """Pixels above a message."""
        if index and index == self._divides and self._divider is not None:
            return 2 * MARGIN + self._divider.sizeHint().height()
        return MARGIN

    def _guess(self, index: int) -> int:
        return self._lead(index) + guess_rows([self._rows[index]], self._width or COLUMN)[0]

    def _guess_from(self, first: int) -> None:
        """Estimate the heights of all messages from one on."""
        guesses = [MARGIN + height for height in guess_rows(self._rows[first:], self._width or COLUMN)]
        self._heights.replace_from(first, guesses)
        if first <= self._divides < len(self._rows):
            self._heights.set(self._divides, self._guess(self._divides))

    def _top(self) -> int:
        """The height at which the window's top edge is."""
        last = max(0, self._total() - self.viewport().height())
        if self._at_end or not self._rows:
            return last
        anchor = self._anchor
        view = self._rows[anchor.row].view
        inside = view.y_of(anchor.part) if view is not None and anchor.part is not None else 0
        return max(0, min(self._heights.y(anchor.row) + self._lead(anchor.row) + inside + anchor.below, last))

    def _total(self) -> int:
        return self._heights.total + MARGIN if self._rows else 0

    def _settle(self) -> None:
        _, width = self._column()
        if width != self._width:
            self._width = width
            self._guess_from(0)
            for index in self._shown:  # a widget is always as high as its place, seen or not
                self._lay_out_row(index, 0, 0)
        high = self.viewport().height()
        done = bool(self._rows)
        while done:
            top = self._top()
            done = self._lay_out(top, top + high)
        self._place()

    def _lay_out(self, top: int, bottom: int) -> bool:
        """Lay out what is between two heights. Returns whether anything turned out to be of another height."""
        changed = False
        index = self._heights.at(top)
        while index < len(self._rows) and self._heights.y(index) < bottom:
            changed |= self._lay_out_row(index, top, bottom)
            index += 1
        return changed

    def _lay_out_row(self, index: int, top: int, bottom: int) -> bool:
        row = self._rows[index]
        view = row.view or self._bring(index)
        lead = self._lead(index)
        start = self._heights.y(index) + lead
        height = view.lay_out(self._width, top - start, bottom - start)
        if (view.width(), view.height()) != (self._width, height):
            view.resize(self._width, height)
        if view.height() > FOOT:
            row.compare(height, self._width)
        return self._heights.set(index, lead + height)

    def _place(self) -> None:
        """Put every widget where it belongs, and let the scroll bar agree."""
        high, top = self.viewport().height(), self._top()
        left, width = self._column()
        if top >= self._total() - high:  # the window grew, or what is below became shorter
            self._at_end = True
        for index in [i for i, view in self._shown.items() if self._is_far(i, top, high) and not self._is_kept(view)]:
            self._take_away(index)
        for index, view in self._shown.items():
            view.move(left, self._heights.y(index) + self._lead(index) - top)
        if self._divider is not None and self._divides:
            size = self._divider.sizeHint().height()
            self._divider.setGeometry(left, self._heights.y(self._divides) + MARGIN - top, width, size)
        self._quiet = True
        bar = self.verticalScrollBar()
        bar.setPageStep(high)
        if not bar.isSliderDown():  # a slider in one's hand stays there
            bar.setRange(0, max(0, self._total() - high))
            bar.setValue(top)
        self._quiet = False
        self._latest.setVisible(not self._at_end)
        self._ahead.start(0)

    def _is_far(self, index: int, top: int, high: int) -> bool:
        """Whether a message is more than a screen and a half away."""
        y = self._heights.y(index)
        away = max(high * 3 // 2, high + MARGIN)  # farther than what `_prepare` lays out, and the margins around it
        return y > top + high + away or y + self._heights[index] < top - away

    def _is_kept(self, view: MessageView) -> bool:
        focused = QApplication.focusWidget()
        return view.is_busy or (focused is not None and view.isAncestorOf(focused))

    def _prepare(self) -> None:
        """Lay out the next message around what can be seen that isn't yet, one at a time while nothing else happens."""
        high = self.viewport().height()
        if not self._rows or not high:
            return
        top = self._top()
        first, last = self._heights.at(max(top - high, 0)), self._heights.at(top + 2 * high)
        for index in sorted(range(first, last + 1), key=lambda i: abs(self._heights.y(i) - top)):
            view, start = self._rows[index].view, self._heights.y(index) + self._lead(index)
            above, below = top - high - start, top + 2 * high - start
            if view is None or view.width() != self._width or not view.is_laid_out(above, below):
                if not self._at_end:
                    self._anchor_at(top)
                self._lay_out_row(index, top - high, top + 2 * high)
                self._place()
                return
        self._put_in_order()
        self.changed.emit()

    def _put_in_order(self) -> None:
        """A screen reader goes through widgets in the order of the children, which is not that in which they came."""
        views = [view for _, view in self.shown]
        shown = set(views)
        if views != [child for child in self.viewport().children() if child in shown]:
            for view in views:
                view.raise_()

    def _bring(self, index: int) -> MessageView:
        """The widget of a message that had none."""
        row = self._rows[index]
        spares = self._spares[row.role]
        view = spares.pop() if spares else self._made(row.role)
        if view.parent() is not self.viewport():
            view.setParent(self.viewport())
            view.resized.connect(self.settle_soon)
        row.view = self._shown[index] = view
        self._fill(index, view)
        view.show()
        return view

    def _take_away(self, index: int) -> None:
        view = self._shown.pop(index)
        row = self._rows[index]
        row.view = None
        self._edges.let_go(view.body)
        spares = self._spares[row.role]
        if len(spares) < SPARES and not view.is_busy:
            view.put_away()
            spares.append(view)
        else:
            view.hide()
            view.setParent(None)
            view.deleteLater()

    # ------------------------------------------------------------ scrolling
    def scrollContentsBy(self, dx: int, dy: int) -> None:
        if self._quiet:
            return
        bar = self.verticalScrollBar()
        self._at_end = bar.value() >= bar.maximum() - 8
        self._anchor_at(bar.value())
        self._settle()

    def _anchor_at(self, top: int) -> None:
        """Hold on to what is at a height."""
        if not self._rows:
            return
        row = self._heights.at(top)
        below = top - self._heights.y(row) - self._lead(row)
        view = self._rows[row].view
        part = view.part_at(below) if view is not None else None
        if view is not None and part is not None:
            below -= view.y_of(part)
        self._anchor = Anchor(row, part, below)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        bar = self.verticalScrollBar()
        if event.matches(QKeySequence.StandardKey.MoveToStartOfDocument) or event.key() == Qt.Key.Key_Home:
            bar.setValue(0)
        elif event.matches(QKeySequence.StandardKey.MoveToEndOfDocument) or event.key() == Qt.Key.Key_End:
            self.to_end()
        else:
            super().keyPressEvent(event)

    def focusNextPrevChild(self, forwards: bool) -> bool:
        """What Tab gives the keyboard to is scrolled to, as in every scroll area, and is there for that."""
        # Qt also asks for this when what has the keyboard is hidden or disabled. Nobody wants to be elsewhere then, and
        # the messages may just be being replaced.
        before = QApplication.focusWidget()
        lost = before is not None and not (before.isVisible() and before.isEnabled())
        if before is not None and not lost:
            self._bring_next(before, 1 if forwards else -1)
        if not super().focusNextPrevChild(forwards):
            return False
        if lost:
            return True
        self._settle()
        focused = QApplication.focusWidget()
        if focused is not None and self.viewport().isAncestorOf(focused):
            self.ensure_visible(focused)
        return True

    def _bring_next(self, focused: QWidget, step: int) -> None:
        """Let the message next to the one with the keyboard be there, though that is higher than what is laid out."""
        index = next((index for index, view in self._shown.items() if view.isAncestorOf(focused)), None)
        if index is None or not 0 <= index + step < len(self._rows) or index + step in self._shown:
            return
        if not self._at_end:
            self._anchor_at(self._top())
        self._lay_out_row(index + step, 0, 0)
        self.changed.emit()

    def ensure_visible(self, widget: QWidget) -> None:
        """Scroll as little as needed for a widget inside to be seen."""
        y = widget.mapTo(self.viewport(), QPoint(0, 0)).y()
        bar, high = self.verticalScrollBar(), self.viewport().height()
        if y < MARGIN or widget.height() > high - 2 * MARGIN:
            bar.setValue(bar.value() + y - MARGIN)
        elif y + widget.height() > high - MARGIN:
            bar.setValue(bar.value() + y + widget.height() + MARGIN - high)

    def follow_drag(self, body: Body) -> None:
        """While one selects, and the pointer is above or below what can be seen, scroll there."""
        self._edges.follow(body)

    def deselect_others(self, view: MessageView) -> None:
        """There is one selection at a time."""
        for other in self._shown.values():
            if other is not view:
                other.body.deselect()

    # ------------------------------------------------------------ its own size
    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._settle()
        size = self._latest.sizeHint()
        self._latest.move((self.width() - size.width()) // 2, self.height() - 40)
        self._latest.resize(size.width(), 32)

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest:
            self.settle_soon()
        return super().viewportEvent(event)

    def _tint(self) -> None:
        self._latest.setIcon(icon("latest", theme().tokens.text2))
