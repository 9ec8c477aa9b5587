"""Where a text that is still coming may be divided so that nothing before that place will change any more.

Markdown looks ahead in few places. A paragraph, a heading or a table ends at a blank line for good; a list may go on
after one. Where a block is ended by the next without one, that line and the one after it (which may make a table of
both) decide. Only the title or the label of a link's definition may go on until a blank line.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from app.ui.look.markdown import PARSER
from app.ui.look.pieces import character_cut

# The most that is parsed at once: about 20 ms of work (measured). A text weighs its characters and what the parser
# has to do for them (and Qt, for tables): plain prose of this many characters, a list of a quarter.
LIMIT = 12_288
_COSTS = {"\n": 14, "[": 12, "![": 8, "|": 8, "<": 3} | dict.fromkeys("*_~", 4) | dict.fromkeys("!#$%&+-:=>@\\]^`{}", 1)
_MARKER_COST = 12

_LIST_MARKER = re.compile(r"[-+*]\s|\d[.)]\s")

_LIST_ITEM = re.compile(r"^(?:[-+*]|\d{1,9}[.)])[ \t]", re.MULTILINE)
_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_FENCE = re.compile(r"( {0,3})(?:(`{3,})([^`\n]*)|(~{3,})([^\n]*))\n")

# No definition of a link goes on over the first line of one of these.
_ENDS_DEFINITIONS = {"fence", "hr", "blockquote_open", "bullet_list_open", "ordered_list_open"}
_LISTS = {"bullet_list_open", "ordered_list_open"}


class BlockLike(Protocol):
    """A top-level block in the parsed text."""

    @property
    def type(self) -> str: ...  # of the token that opens it
    @property
    def line(self) -> int: ...  # its first
    @property
    def end(self) -> int: ...  # the line after its last
    @property
    def underlined(self) -> bool: ...  # a heading with a line below


def weight(text: str) -> int:
    """What parsing costs, in characters of plain prose; never more for a part than for the whole."""
    marks = sum(cost * text.count(mark) for mark, cost in _COSTS.items())
    return len(text) + marks + _MARKER_COST * len(_LIST_MARKER.findall(text))


def window_end(text: str, limit: int = LIMIT) -> int:
    """How much of the text may be parsed at once; depends on nothing behind that."""
    if len(text) <= limit and weight(text) <= limit:
        return len(text)
    return max(bisect_right(range(min(len(text), limit) + 1), limit, key=lambda end: weight(text[:end])) - 1, 1)


def settled_blocks(blocks: Sequence[BlockLike], lines: Sequence[str]) -> int:
    """The index of the last block before which nothing can change any more; -1 where there is none.

    Args:
        blocks: The top-level blocks, in order.
        lines: The parsed text's, without their ends; the last one may be going on.
    """
    for index in range(len(blocks) - 1, -1, -1):
        if blocks[index].line > 0 and _is_settled(blocks, index, lines):
            return index
    return -1


def _is_settled(blocks: Sequence[BlockLike], index: int, lines: Sequence[str]) -> bool:
    line = blocks[index].line
    before = blocks[index - 1] if index else None
    if not lines[line - 1].strip(" \t"):
        return before is None or before.type not in _LISTS or lines[line][0] not in " \t-+*0123456789"
    if before is not None and before.type == "fence" and before.end == line:
        return True
    if line + 2 >= len(lines):  # either of the two lines that decide may still change
        return False
    block = blocks[index]
    if block.type in _ENDS_DEFINITIONS or (block.type == "heading_open" and not block.underlined):
        return True
    while line > 0 and lines[line - 1].strip(" \t"):
        line -= 1
        if "[" in lines[line]:
            return False
    return True


def forced_cut(text: str, blocks: Sequence[BlockLike]) -> tuple[int, str]:
    """Where to cut a text that goes on where there is no better place, and what to put before the rest.

    Returns:
        A place within the text or at its end, and the head of a table that goes on, or nothing.
    """
    lines = text.split("\n")
    last = blocks[-1] if blocks else None
    if last is not None and last.type == "table_open":
        # Before a whole row, because of half a row nobody knows what it will be.
        row = min(last.end, len(lines) - 1) - 1
        head = "\n".join(lines[last.line : last.line + 2]) + "\n"
        if row > last.line + 2 and weight(head) < LIMIT // 4:
            return sum(len(line) + 1 for line in lines[:row]), head
    for places in (
        [item.start() for item in _LIST_ITEM.finditer(text)],
        [blank.end() for blank in _BLANK_LINE.finditer(text)],
        [text.rfind("\n") + 1],
        [text.rfind(" ") + 1],
    ):
        if places and places[-1] > 0:
            return places[-1], ""
    return character_cut(text, 0, len(text)), ""


class Fence:
    """The opening line of a code block that stands at the beginning of a text."""

    def __init__(self, opening: re.Match[str]) -> None:
        indent, ticks, tick_info, tildes, tilde_info = opening.groups()
        marker = ticks or tildes
        self.length = opening.end()
        words = (tick_info or tilde_info or "").split()
        self.language = words[0] if words else ""
        self._indent = len(indent)
        self._closing = re.compile(rf" {{0,3}}{marker[0]}{{{len(marker)},}}[ \t]*")

    @classmethod
    def at_start(cls, text: str) -> Fence | None:
        """The fence that `text` begins with, whatever follows."""
        opening = _FENCE.match(text)
        if opening is None:
            return None
        if "|" in opening.group():  # this and the next line may be the head of a table
            second = text.find("\n", opening.end())
            if second < 0 or PARSER.parse(text[: second + 1])[0].type != "fence":
                return None
        return cls(opening)

    def is_closed_by(self, line: str) -> bool:
        return self._closing.fullmatch(line) is not None

    def content(self, line: str) -> str:
        """A line of the code, without the spaces that the fence is indented by."""
        column = at = 0
        while at < len(line) and column < self._indent and line[at] in " \t":
            column += 1 if line[at] == " " else 4 - column % 4
            at += 1
        return " " * (column - self._indent) + line[at:]
