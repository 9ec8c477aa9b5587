"""The plain text of a segment, as copying it from Qt's rich text would give it."""

from __future__ import annotations

import re
from html import unescape
from typing import Literal

from app.ui.look.pieces import CodeSegment, Segment, TextSegment

_TAG = re.compile(r"<(/?)([a-z0-9]+)[^>]*>")
_BLOCKS = {"p", "li", "ul", "ol", "blockquote", "pre"}
_LISTS = {"ul", "ol"}
_EMPTY = {"br", "hr"}
_CELLS = {"th", "td"}
_TABLE_PARTS = {"table", "thead", "tbody", "tr"}

# White space that Qt joins to one space: all that is white space for it but the one that does not break.
_SPACE = re.compile("([\t-\r \x85\u1680\u2000-\u200a\u2028\u202f\u205f\u3000])")
# These characters begin a block or a line inside Qt's documents.
_LINE_ENDS = str.maketrans({"\u2028": "\n", "\u2029": "\n", "\ufdd0": "\n", "\ufdd1": "\n", "\xa0": " "})


def plain_text(segment: Segment) -> str:
    """What one would copy: text without markup, a line for each paragraph, item and cell; code and plain text as is."""
    if isinstance(segment, TextSegment):
        return _Reader().read(segment.html)
    return segment.code if isinstance(segment, CodeSegment) else segment.text


class _Reader:
    """Follows what Qt makes of our own HTML, block by block; tests hold it against Qt."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._fresh = True
        """The last block has nothing in it, and the next block element takes it over."""
        self._spaces: Literal["joined", "dropped", "kept"] = "dropped"
        """What becomes of the next white space."""
        self._closed = False
        """A block element has just ended."""
        self._open: list[str] = []

    def read(self, html: str) -> str:
        at = 0
        node = ""
        while True:
            tag = _TAG.search(html, at)
            if node in _EMPTY:  # the text behind is not theirs
                self._node(node, "")
                node = ""
            self._node(node, unescape(html[at : tag.start() if tag else len(html)]))
            if tag is None:
                return "".join(self._text).translate(_LINE_ENDS)
            node = "" if tag[1] else tag[2]
            if tag[1]:
                self._close(tag[2])
            elif tag[2] not in _EMPTY:
                self._open.append(tag[2])
            at = tag.end()

    def _node(self, tag: str, text: str) -> None:
        """An element that begins, or none, with the text up to the next tag."""
        if not tag and (not text or (self._closed and len(text) == 1 and _SPACE.match(text))):
            return
        if self._open and self._open[-1] in _TABLE_PARTS:
            self._closed = self._closed and tag != "table"
            return
        # Text that goes on in an empty block leaves it to what follows to begin one.
        closed, self._closed = self._closed, self._closed and not tag and self._fresh
        if closed and tag and tag != "hr" and tag not in _BLOCKS:
            self._fresh = False
        if tag == "br":
            if closed:
                self._begin_block()
            self._text.append("\n")
            self._fresh, self._spaces = False, "dropped"
        elif tag == "hr":
            self._begin_block()
            self._fresh, self._spaces = False, "dropped"
            self._closed = True
        elif tag in _CELLS:
            self._text.append("\n")
            self._fresh, self._spaces = True, "dropped"
        elif tag in _LISTS:
            self._spaces = "dropped"
            return
        elif tag in _BLOCKS or (closed and not self._fresh and text.strip()):
            self._begin_block()
        self._append(text)

    def _begin_block(self) -> None:
        if not self._fresh:
            self._text.append("\n")
            self._spaces = "dropped"
        self._fresh = True

    def _append(self, text: str) -> None:
        if "pre" in self._open:
            self._text.append(text)
            self._fresh, self._spaces = self._fresh and not text, "kept"
            return
        for part in _SPACE.split(text):
            if _SPACE.fullmatch(part):
                if self._spaces == "dropped":
                    continue
                if self._spaces == "joined":
                    self._spaces = "dropped"
                part = " "
            elif part:
                self._spaces = "joined"
            else:
                continue
            self._text.append(part)
            self._fresh = False

    def _close(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
        if tag in _BLOCKS:
            self._closed = True
        if tag == "table":
            # An empty last cell leaves the block behind the table to the next element.
            self._text.append("\n")
            self._closed = True
