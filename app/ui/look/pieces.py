"""The segments a message is shown in, and where a text too long for one of them may be cut.

Qt lays out a segment at once, so that none may be so large that this takes long.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

# The most characters of a piece of plain text, of one of code, and the most lines of either.
PIECE = 4_000
CODE_PIECE = 6_000
LINES = 100

Kind = Literal["paragraph", "heading", "list", "quote", "table", "rule"]

_NEWLINE = re.compile(r"\r\n?|\n")


@dataclass(frozen=True, slots=True)
class TextSegment:
    """One top-level Markdown block, as HTML that Qt's rich text understands."""

    html: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class CodeSegment:
    """A code block, or a piece of a long one; without the newline at its end."""

    code: str
    language: str
    starts: bool = True
    """This is the first piece of its block."""
    ends: bool = True
    """This is the last one."""
    cut: str = ""
    """What stood between this piece and the next: a newline, or nothing where a long line was cut."""


@dataclass(frozen=True, slots=True)
class PlainSegment:
    """Text shown as it was written."""

    text: str
    cut: str = ""
    """What stood between this piece and the next: a newline as it was written, or nothing where a line was cut."""


Segment = TextSegment | CodeSegment | PlainSegment


def joined(segments: Iterable[PlainSegment | CodeSegment]) -> str:
    """The text or the code that was cut into these pieces."""
    return "".join(
        (segment.text if isinstance(segment, PlainSegment) else segment.code) + segment.cut for segment in segments
    )


def plain_segments(text: str) -> list[PlainSegment]:
    """A text in pieces of at most `PIECE` characters and `LINES` lines, cut at line ends where there are any.

    A longer line is cut after a space, or anywhere where it has none, but not within what is seen as one character;
    only one of more than `PIECE` code points is cut all the same.
    """
    pieces: list[PlainSegment] = []
    at = 0
    while at < len(text):
        end = at + PIECE
        newlines: list[re.Match[str]] = []
        # A newline may stand right behind the piece, and that may be two characters.
        for newline in _NEWLINE.finditer(text, at, end + 2):
            if newline.start() > end or len(newlines) == LINES:
                break
            newlines.append(newline)
        if len(text) <= end and len(newlines) < LINES:
            pieces.append(PlainSegment(text[at:]))
            break
        if newlines:
            pieces.append(PlainSegment(text[at : newlines[-1].start()], newlines[-1].group()))
            at = newlines[-1].end()
        else:
            cut = line_cut(text, at, end)
            pieces.append(PlainSegment(text[at:cut]))
            at = cut
    return pieces


def line_cut(text: str, start: int, end: int) -> int:
    """The best place up to `end` to cut a line that begins at `start` and has no line end before `end`."""
    space = text.rfind(" ", start, end)
    while space >= start:
        if _is_boundary(text, space + 1):
            return space + 1
        space = text.rfind(" ", start, space)
    return character_cut(text, start, end)


def character_cut(text: str, start: int, end: int) -> int:
    """The last place from `start` up to `end` that is not within what is seen as one character, or `end`."""
    for place in range(end, start, -1):
        if _is_boundary(text, place):
            return place
    return end


def _is_boundary(text: str, at: int) -> bool:
    """Whether one seen character ends here and another begins; where in doubt, it says no."""
    if at <= 0 or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if before == "\r" and after == "\n":
        return False
    if before < "\u0300" and after < "\u0300":
        return True
    if before in "\r\n":
        return True
    # Joiners, marks, skin tones, the tags of regional flags; vowels and finals of Korean syllables written apart.
    if "\u200d" in (before, after) or unicodedata.category(after).startswith("M"):
        return False
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f" or after in "\u200c\uff9e\uff9f":
        return False
    if "\u1160" <= after <= "\u11ff" or "\ud7b0" <= after <= "\ud7fb":
        return False
    if "\u1100" <= before <= "\u115f" or "\ua960" <= before <= "\ua97c":
        return False
    # A virama joins the letter behind it, and some signs of Indic and Arabic scripts stand before theirs.
    if unicodedata.combining(before) == 9 or _prepends(before):
        return False
    if _is_flag_half(before) and _is_flag_half(after):
        halves = 0
        while halves < at and _is_flag_half(text[at - 1 - halves]):
            halves += 1
        return halves % 2 == 0
    return True


def _is_flag_half(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _prepends(character: str) -> bool:
    return "\u0600" <= character <= "\u0605" or character in "\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd"


@dataclass(slots=True)
class CodePieces:
    """Cuts code into pieces line by line, wherever the lines come from."""

    language: str
    done: list[CodeSegment] = field(default_factory=list)
    """Pieces that more code has followed."""
    _lines: list[str] = field(default_factory=list)
    _size: int = 0
    _started: bool = False

    def add(self, line: str) -> None:
        """One more line, without its newline."""
        if self._lines and (len(self._lines) == LINES or self._size + 1 + len(line) > CODE_PIECE):
            self._finish_piece("\n")
        at = 0
        while len(line) - at > CODE_PIECE:
            cut = character_cut(line, at, at + CODE_PIECE)
            self._lines.append(line[at:cut])
            self._finish_piece("")
            at = cut
        self._size += len(line) - at + bool(self._lines)
        self._lines.append(line[at:])

    def with_line(self, line: str | None) -> list[CodeSegment]:
        """The pieces not done yet if the code ended here, after one more line if there is one."""
        rest = CodePieces(self.language, [], list(self._lines), self._size, self._started)
        if line is not None:
            rest.add(line)
        code = "\n".join(rest._lines)
        return [*rest.done, CodeSegment(code, self.language, starts=not rest._started)]

    def take_done(self) -> list[CodeSegment]:
        """The pieces that will not change any more; the next call returns those that came since."""
        done, self.done = self.done, []
        return done

    def _finish_piece(self, cut: str) -> None:
        self.done.append(CodeSegment("\n".join(self._lines), self.language, not self._started, ends=False, cut=cut))
        self._lines, self._size, self._started = [], 0, True


def code_segments(code: str, language: str) -> list[CodeSegment]:
    """A whole code block in pieces; `code` may end with the newline of its last line."""
    pieces = CodePieces(language)
    for line in code.removesuffix("\n").split("\n"):
        pieces.add(line)
    return [*pieces.take_done(), *pieces.with_line(None)]
