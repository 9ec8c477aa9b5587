"""An answer's Markdown as a list of segments, while it comes: only the last blocks are parsed again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it.common.utils import normalizeReference
from markdown_it.token import Token as MarkdownToken

from app.ui.look.markdown import parse, render
from app.ui.look.pieces import (
    CODE_PIECE,
    LINES,
    PIECE,
    CodePieces,
    CodeSegment,
    Kind,
    PlainSegment,
    Segment,
    TextSegment,
    code_segments,
    joined,
    plain_segments,
)
from app.ui.look.plain import plain_text
from app.ui.look.settling import LIMIT, Fence, forced_cut, settled_blocks, window_end

__all__ = [
    "CODE_PIECE",
    "LIMIT",
    "LINES",
    "PIECE",
    "SLICE",
    "CodeSegment",
    "Kind",
    "MarkdownStream",
    "PlainSegment",
    "Segment",
    "TextSegment",
    "joined",
    "plain_segments",
    "plain_text",
    "segments",
    "slices",
]

# What a slice of a long text weighs at most; the tail before it is parsed once more with each of them.
SLICE = LIMIT // 4

_NEWLINE = re.compile(r"\r\n?")
_BLANK_LINES = re.compile(r"(?:[ \t]*\n)+")

_KINDS: dict[str, Kind] = {
    "paragraph_open": "paragraph",
    "heading_open": "heading",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "blockquote_open": "quote",
    "table_open": "table",
    "hr": "rule",
}


@dataclass(frozen=True, slots=True)
class _Block:
    """A top-level block: where it stands in the parsed text, and what it is shown as."""

    tokens: Sequence[MarkdownToken]
    line: int
    end: int

    @property
    def type(self) -> str:
        return self.tokens[0].type

    @property
    def underlined(self) -> bool:
        return self.type == "heading_open" and self.tokens[0].markup in ("=", "-")

    @property
    def content(self) -> str:
        """Its text, as links may refer to labels in it."""
        return "\n\n".join(token.content for token in self.tokens if token.type == "inline")

    def segments(self) -> list[Segment]:
        first = self.tokens[0]
        if first.type in ("fence", "code_block"):
            words = first.info.split()
            return [*code_segments(first.content, words[0] if words else "")]
        return [TextSegment(render(self.tokens), _KINDS[first.type])]


@dataclass(frozen=True, slots=True)
class _Mention:
    """A settled segment with brackets: some of them may be links whose definition is still to come."""

    index: int
    source: str
    content: str

    def mentions(self, label: str) -> bool:
        # Labels are compared after each run of white space in them has become one space.
        return any(f"[{before}{label}{after}]" in self.content for before in ("", " ") for after in ("", " "))


def _blocks(tokens: list[MarkdownToken]) -> list[_Block]:
    found: list[_Block] = []
    start = 0
    for index, token in enumerate(tokens):
        if token.level == 0 and token.nesting <= 0:
            line, end = tokens[start].map or (0, 0)
            found.append(_Block(tokens[start : index + 1], line, end))
            start = index + 1
    return found


class MarkdownStream:
    """The segments of an answer that comes in pieces, of any size.

    The text is divided at places before which nothing can change any more, whatever follows (see `settling`); only
    what stands behind the last of them is parsed again when more comes. Code between fences is not parsed at all but
    scanned for its last line. The definition of a link holds for the whole text, so that one that comes late renders
    those settled segments again that mention it.

    A text that has no such place for too long is cut all the same, where depends only on the text.
    """

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        """All of them; the last ones may change until `finish`."""
        self.parsed = 0
        """How many characters the parser has been given until now."""
        self._tail = ""
        self._ended_in_return = False
        self._fence: Fence | None = None
        self._code = CodePieces("")
        self._references: dict[str, Any] = {}
        self._mentions: list[_Mention] = []
        self._n_settled = 0
        self._fresh: list[Segment] = []
        self._changed_from = 0

    def feed(self, text: str) -> int:
        """More text. Returns the index of the first segment that is not the same object as before."""
        if self._ended_in_return and text:
            text = text.removeprefix("\n")
            self._ended_in_return = False
        if not text:
            return len(self.segments)
        self._ended_in_return = text.endswith("\r")
        self._tail += _NEWLINE.sub("\n", text).replace("\0", "\ufffd")
        return self._update(final=False)

    def finish(self) -> int:
        """No more will come. Returns the same as `feed`."""
        return self._update(final=True)

    def _update(self, final: bool) -> int:
        self._changed_from = len(self.segments)
        self._fresh = []
        provisional = self._advance(final)
        start = self._n_settled
        new = [*self._fresh, *provisional]
        old = self.segments[start:]
        for index, segment in enumerate(old[: len(new)]):
            if segment == new[index]:
                new[index] = segment
            else:
                self._changed_from = min(self._changed_from, start + index)
        self._changed_from = min(self._changed_from, start + len(new))
        self.segments[start:] = new
        self._n_settled += len(self._fresh)
        return self._changed_from

    def _advance(self, final: bool) -> Sequence[Segment]:
        """Settle what can be; returns the segments of the rest."""
        while True:
            if self._fence is not None:
                if not self._scan(self._fence, final):
                    return self._code.with_line(self._open_line(self._fence))
                continue
            # Every division stands right before a line that says something, so that where a text is cut by force
            # does not depend on the divisions before.
            if blank := _BLANK_LINES.match(self._tail):
                self._tail = self._tail[blank.end() :]
            end = window_end(self._tail)
            window, whole = self._tail[:end], end == len(self._tail)
            if self._open_fence(window):
                continue
            blocks, known = self._parse(window)
            if whole and final:
                self._settle(blocks, window, known)
                self._tail = ""
                return []
            lines = window.split("\n")
            index = settled_blocks(blocks, lines)
            if index >= 0:
                line = blocks[index].line
                settled = sum(len(one) + 1 for one in lines[:line])
                self._settle(blocks[:index], window[:settled], known)
                self._tail = self._tail[settled:]
                if not whole or self._open_fence(self._tail):
                    continue
                return [segment for block in blocks[index:] for segment in block.segments()]
            if whole:
                return [segment for block in blocks for segment in block.segments()]
            cut, head = forced_cut(window, blocks)
            blocks, known = self._parse(window[:cut])
            self._settle(blocks, window[:cut], known)
            self._tail = head + self._tail[cut:]

    def _parse(self, text: str) -> tuple[list[_Block], dict[str, Any]]:
        self.parsed += len(text)
        tokens, known = parse(text, self._references)
        return _blocks(tokens), known

    def _settle(self, blocks: Sequence[_Block], source: str, known: dict[str, Any]) -> None:
        """Keep the segments of `blocks`, which are all of `source`; `known` may hold later definitions too."""
        lines = source.split("\n")
        n_lines = len(lines) - (not lines[-1])
        later = {label: entry for label, entry in known.items() if label not in self._references}
        new = {label: later.pop(label) for label in list(later) if later[label]["map"][0] < n_lines}
        self._references |= new
        self._render_again(new)
        for block in blocks:
            segments = block.segments()
            if isinstance(segments[0], TextSegment) and "[" in (content := block.content):
                text = "\n".join(lines[block.line : block.end]) + ("\n" if block.end < len(lines) else "")
                index = self._n_settled + len(self._fresh)
                mention = _Mention(index, text, normalizeReference(content))
                self._mentions.append(mention)
                if any(mention.mentions(label) for label in later):
                    segments = self._rendered(mention)
            self._fresh += segments

    def _render_again(self, labels: Iterable[str]) -> None:
        """Links of settled segments to these labels, which have only now been defined for good, come alive."""
        for mention in self._mentions if labels else ():
            if not any(mention.mentions(label) for label in labels):
                continue
            (segment,) = self._rendered(mention)
            kept, index = self.segments, mention.index
            if index >= self._n_settled:
                kept, index = self._fresh, index - self._n_settled
            elif segment != kept[index]:
                self._changed_from = min(self._changed_from, index)
            if segment != kept[index]:
                kept[index] = segment

    def _rendered(self, mention: _Mention) -> list[Segment]:
        blocks, _ = self._parse(mention.source)
        return blocks[0].segments()

    def _open_fence(self, text: str) -> bool:
        """If `text`, the beginning of the tail, begins with a fence: scan what follows as its code."""
        self._fence = Fence.at_start(text)
        if self._fence is None:
            return False
        self._tail = self._tail[self._fence.length :]
        self._code = CodePieces(self._fence.language)
        return True

    def _scan(self, fence: Fence, final: bool) -> bool:
        """Take the code's whole lines from the tail. Returns whether the code has ended."""
        *lines, rest = self._tail.split("\n")
        for index, line in enumerate(lines):
            if fence.is_closed_by(line):
                self._tail = "\n".join([*lines[index + 1 :], rest])
                self._fresh += [*self._code.take_done(), *self._code.with_line(None)]
                self._fence = None
                return True
            self._code.add(fence.content(line))
        self._tail = rest
        self._fresh += self._code.take_done()
        if final:
            self._fresh += self._code.with_line(self._open_line(fence))
            self._fence, self._tail = None, ""
        return final

    def _open_line(self, fence: Fence) -> str | None:
        """The code's last line while it has no end, if it is one."""
        if not self._tail.strip(" \t") or fence.is_closed_by(self._tail):
            return None
        return fence.content(self._tail)


def slices(text: str) -> Iterator[str]:
    """A long text in as much as can be fed at once without a pause that is felt."""
    at = 0
    while at < len(text):
        end = at + window_end(text[at : at + SLICE], SLICE)
        yield text[at:end]
        at = end


def segments(text: str) -> list[Segment]:
    """The segments of a whole answer."""
    stream = MarkdownStream()
    for part in slices(text):
        stream.feed(part)
    stream.finish()
    return stream.segments
