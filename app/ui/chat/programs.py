"""What programs in an answer have besides their text: a button that copies, and a bar where lines are long."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QScrollBar, QWidget

from app.ui.chat.copy_button import CopyButton
from app.ui.chat.piece import CODE_FOOT, CODE_LEFT, Piece
from app.ui.look.blocks import CodeSegment, PlainSegment, Segment, plain_text


class Programs:
    """The buttons and bars of the programs that are laid out. Those of others are kept for the next ones.

    Args:
        inside: The widget they are in.
        pieces: All pieces of the message, always the same list.
    """

    def __init__(self, inside: QWidget, pieces: list[Piece]) -> None:
        self._inside, self._pieces = inside, pieces
        self._buttons: dict[int, CopyButton] = {}  # by the piece a program begins with
        self._bars: dict[int, QScrollBar] = {}  # by the piece one ends with
        self._spare_buttons: list[CopyButton] = []
        self._spare_bars: list[QScrollBar] = []

    @property
    def focus_order(self) -> list[QWidget]:
        return [self._buttons[index] for index in sorted(self._buttons)]

    def of(self, index: int) -> range:
        """All pieces of the program that one belongs to."""
        first = last = index
        while first > 0 and not _starts(self._pieces[first]):
            first -= 1
        while last + 1 < len(self._pieces) and not _ends(self._pieces[last]):
            last += 1
        return range(first, last + 1)

    def bar_of(self, index: int) -> QScrollBar | None:
        """What scrolls the program a piece belongs to, if anything does."""
        if not self._pieces[index].is_code:
            return None
        bar = self._bars.get(self.of(index)[-1])
        return bar if bar is not None and not bar.isHidden() else None

    def place(self, first: int, last: int, bottom_of: Callable[[int], int], width: int) -> None:
        """Give the programs from one piece to another what they need, and put all there is where it belongs."""
        self._drop()
        for index in range(first, min(last + 1, len(self._pieces))):
            segment = self._pieces[index].segment
            if isinstance(segment, CodeSegment):
                if segment.starts and index not in self._buttons:
                    self._make_button(index)
                if segment.ends:
                    self._fit_bar(index, width)
        for index, button in self._buttons.items():
            button.move(width - 6 - button.width(), bottom_of(index) - self._pieces[index].height + 4)
        for index, bar in self._bars.items():
            bar.move(CODE_LEFT, bottom_of(index) - bar.height() - 1)

    def _drop(self) -> None:
        for index in [i for i in self._buttons if not self._is_there(i) or not _starts(self._pieces[i])]:
            button = self._buttons.pop(index)
            button.hide()
            self._spare_buttons.append(button)
        for index in [i for i in self._bars if not self._is_there(i) or not _ends(self._pieces[i])]:
            bar = self._bars.pop(index)
            bar.hide()
            bar.valueChanged.disconnect()
            self._spare_bars.append(bar)

    def _is_there(self, index: int) -> bool:
        return index < len(self._pieces) and self._pieces[index].is_code and self._pieces[index].is_laid_out

    def _make_button(self, index: int) -> None:
        button = self._spare_buttons.pop() if self._spare_buttons else CopyButton("Copy code")
        button.copies = lambda: strung([self._pieces[i].segment for i in self.of(index)])
        button.setParent(self._inside)
        button.show()
        self._buttons[index] = button

    def _fit_bar(self, index: int, width: int) -> None:
        piece = self._pieces[index]
        over = max(self._pieces[i].overhang(width) for i in self.of(index))
        bar = self._bars.get(index)
        if not over:
            if bar is not None:
                bar.hide()
            if piece.shift:  # or nothing could bring back the beginnings of the lines
                self._shift(index, 0)
            return
        if bar is None:
            bar = self._spare_bars.pop() if self._spare_bars else self._made_bar()
            self._bars[index] = bar
            bar.setValue(0)
            bar.valueChanged.connect(lambda value: self._shift(index, value))
        left, right = piece.margins
        bar.setPageStep(width)
        bar.setRange(0, over)
        bar.setValue(piece.shift)
        bar.resize(width - left - right, min(bar.sizeHint().height(), CODE_FOOT))
        bar.show()

    def _made_bar(self) -> QScrollBar:
        bar = QScrollBar(Qt.Orientation.Horizontal, self._inside)
        bar.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        bar.setCursor(Qt.CursorShape.ArrowCursor)
        bar.setSingleStep(24)
        return bar

    def _shift(self, index: int, value: int) -> None:
        if index < len(self._pieces):
            for i in self.of(index):
                self._pieces[i].shift = value
            self._inside.update()


def strung(segments: Sequence[Segment], words: Sequence[str] | None = None) -> str:
    """What is read in a row of segments, or `words` of each, with what stands between them."""
    said = words if words is not None else [plain_text(segment) for segment in segments]
    between = [_behind(segment) for segment in segments]
    return "".join(part for pair in zip(said, ["", *between], strict=False) for part in reversed(pair))


def _behind(segment: Segment) -> str:
    """What is read between a segment and the next."""
    if isinstance(segment, PlainSegment) or (isinstance(segment, CodeSegment) and not segment.ends):
        return segment.cut
    return "\n\n"


def _starts(piece: Piece) -> bool:
    return not isinstance(piece.segment, CodeSegment) or piece.segment.starts


def _ends(piece: Piece) -> bool:
    return not isinstance(piece.segment, CodeSegment) or piece.segment.ends
