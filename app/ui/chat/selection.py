"""What is selected in a message, over all of its pieces, laid out or not."""

from __future__ import annotations

import re
from collections.abc import Sequence

from PySide6.QtGui import QTextCursor

from app.ui.chat.piece import Piece
from app.ui.chat.programs import strung
from app.ui.look.blocks import plain_text

Place = tuple[int, int]  # a piece, and a character in its document
END = 1 << 30  # beyond every character


class Selection:
    """From a place to another, either of which may come first.

    Args:
        pieces: All pieces of the message, always the same list.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._anchor: Place | None = None
        self._head: Place | None = None

    def __bool__(self) -> bool:
        return self._anchor is not None and self._anchor != self._head

    @property
    def has_begun(self) -> bool:
        """Whether there is a place it can go on from."""
        return self._anchor is not None

    def begin(self, place: Place) -> None:
        self._anchor = self._head = place

    def go_on(self, place: Place | None) -> None:
        if self._anchor is not None and place is not None:
            self._head = place

    def take(self, first: Place, last: Place) -> None:
        self._anchor, self._head = first, last

    def take_all(self) -> None:
        if self._pieces:
            self.take((0, 0), (len(self._pieces) - 1, END))

    def take_around(self, place: Place, kind: QTextCursor.SelectionType) -> None:
        """The word or the paragraph at a place."""
        cursor = self._pieces[place[0]].cursor(place[1], place[1])
        cursor.select(kind)
        self.take((place[0], cursor.selectionStart()), (place[0], cursor.selectionEnd()))

    def clear(self) -> None:
        self._anchor = self._head = None

    def within(self, index: int) -> QTextCursor | None:
        """What of a piece is selected."""
        if self._anchor is None or self._head is None or self._anchor == self._head:
            return None
        first, last = sorted((self._anchor, self._head))
        if not first[0] <= index <= last[0]:
            return None
        return self._pieces[index].cursor(first[1] if index == first[0] else 0, last[1] if index == last[0] else END)

    @property
    def text(self) -> str:
        """What is selected, as it is read."""
        if self._anchor is None or self._head is None:
            return ""
        first, last = sorted((self._anchor, self._head))
        last = min(last, (len(self._pieces) - 1, END))
        found: list[str] = []
        for index in range(first[0], last[0] + 1):
            piece = self._pieces[index]
            start, end = first[1] if index == first[0] else 0, last[1] if index == last[0] else END
            # Of a whole piece the words are known; nothing is laid out for them.
            found.append(plain_text(piece.segment) if (start, end) == (0, END) else _words_of(piece.cursor(start, end)))
        return strung([piece.segment for piece in self._pieces[first[0] : last[0] + 1]], found)


def _words_of(cursor: QTextCursor) -> str:
    """Qt has characters of its own for the ends of paragraphs, lines and cells; tables have more of them than lines."""
    words = cursor.selectedText().replace("\u2029", "\n").replace("\u2028", "\n").replace("\ufffc", "")
    return re.sub(r"[\n\ufdd0\ufdd1]{2,}", "\n", words) if cursor.document().rootFrame().childFrames() else words
