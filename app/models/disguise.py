"""Texts that can still be told from a program's own when the program has written them down.

A chat template may cut a message, wrap it, repeat it, or go by what is in it; what it writes doesn't say which
characters were the message's. So a message goes through it in disguise: some of its characters are others that no text
at hand has, one for one, and where those come out, the message was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, SupportsIndex, cast

_PRIVATE = range(0x10FFFD, 0xE0FFF, -1)  # the private planes from their end, where nobody's own characters are


class Disguise:
    """Stand-ins for some characters.

    Args:
        characters: Those that get one. No spaces, so that texts are trimmed and cut into lines as ever.
        texts: None of these has any of the stand-ins.

    Attributes:
        spare: One more character that is in none of the texts, and stands for nothing.

    Raises:
        ValueError: The texts leave no characters over.
    """

    def __init__(self, characters: Iterable[str], texts: Iterable[Iterable[str]]) -> None:
        taken: set[str] = set().union(*texts)
        free = (chr(code) for code in _PRIVATE if chr(code) not in taken)
        try:
            self.spare = next(free)
            self._stand_ins = {character: next(free) for character in characters}
        except (StopIteration, RuntimeError):
            raise ValueError("the text holds every character there is") from None

    def hide(self, text: str) -> str:
        for character, stand_in in self._stand_ins.items():
            text = text.replace(character, stand_in)
        return text

    def reveal(self, text: str) -> str:
        for character, stand_in in self._stand_ins.items():
            text = text.replace(stand_in, character)
        return text

    def of(self, text: str) -> Disguised:
        """The text with its stand-ins, to be given to a template."""
        return Disguised(self.hide(text), self)


class Disguised(str):
    """A text with stand-ins that a template finds to be the text itself.

    Looking at it, comparing it and cutting it go by the text ("'</think>' in content"), and what is cut from it or put
    together with it does so again. Whatever else is made from it keeps the stand-ins, by whatever means it is made.
    """

    _disguise: Disguise

    def __new__(cls, hidden: str, disguise: Disguise) -> Disguised:
        self = super().__new__(cls, hidden)
        self._disguise = disguise
        return self

    @cached_property
    def _text(self) -> str:
        return self._disguise.reveal(str.__str__(self))

    def _like(self, hidden: str) -> Disguised:
        return Disguised(hidden, self._disguise)

    def __str__(self) -> str:
        return self  # as it is, where Jinja asks for a text

    def __repr__(self) -> str:
        return self._like(self._disguise.hide(repr(self._text)))  # which would escape the stand-ins

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return bool(self._text == _revealed(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __contains__(self, part: object) -> bool:
        return _revealed(part) in self._text

    def __iter__(self) -> Iterator[str]:
        return map(self._like, str.__iter__(self))

    def __getitem__(self, at: SupportsIndex | slice) -> str:
        return self._like(str.__getitem__(self, at))

    def __add__(self, other: str) -> str:
        return self._like(str.__add__(self, other))

    def __radd__(self, other: str) -> str:
        return self._like(str.__add__(other, self))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut("split", sep, maxsplit)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut("rsplit", sep, maxsplit)

    def splitlines(self, keepends: bool = False) -> list[str]:
        return [self._like(line) for line in str.splitlines(self, keepends)]

    def partition(self, sep: str) -> tuple[str, str, str]:
        before, found, _ = self._text.partition(_revealed(sep))
        end = len(before) + len(found)
        return self[: len(before)], self[len(before) : end], self[end:]

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        before, found, _ = self._text.rpartition(_revealed(sep))
        end = len(before) + len(found)
        return self[: len(before)], self[len(before) : end], self[end:]

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        if not old:
            return self._like(str.replace(self, old, new, count))
        return self._like(str.join(new, self._cut("split", old, count)))

    def strip(self, chars: str | None = None) -> str:
        return self._like(str.strip(self, self._either(chars)))

    def lstrip(self, chars: str | None = None) -> str:
        return self._like(str.lstrip(self, self._either(chars)))

    def rstrip(self, chars: str | None = None) -> str:
        return self._like(str.rstrip(self, self._either(chars)))

    def removeprefix(self, prefix: str) -> str:
        return self[len(prefix) :] if self._text.startswith(_revealed(prefix)) else self

    def removesuffix(self, suffix: str) -> str:
        return self[: len(self) - len(suffix)] if self._text.endswith(_revealed(suffix)) else self

    def _cut(self, name: str, sep: str | None, maxsplit: SupportsIndex) -> list[str]:
        if sep is None:
            return [self._like(part) for part in getattr(str, name)(self, sep, maxsplit)]
        parts, at = [], 0
        for part in getattr(self._text, name)(_revealed(sep), maxsplit):
            parts.append(self[at : at + len(part)])
            at += len(part) + len(sep)
        return parts

    def _either(self, chars: str | None) -> str | None:
        """These characters, a text's own and a template's."""
        return None if chars is None else str.__add__(chars, self._disguise.hide(chars))


def joined(pieces: Iterable[str]) -> str:
    """The pieces as one text, in disguise if one of them is."""
    pieces = list(pieces)
    disguised = next((piece for piece in pieces if isinstance(piece, Disguised)), None)
    text = "".join(pieces)
    return text if disguised is None else disguised._like(text)


def _revealed(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_revealed, value))
    return value._text if isinstance(value, Disguised) else value


def _asked(name: str) -> Callable[..., Any]:
    """What is asked about a text, which is answered for the text itself."""
    method = getattr(str, name)

    def asked(self: Disguised, *args: Any) -> Any:
        return method(self._text, *map(_revealed, args))

    asked.__name__ = name
    return asked


def _changed(name: str) -> Callable[..., str]:
    """What changes letters one for one."""
    method = getattr(str, name)

    def changed(self: Disguised) -> str:
        return self._like(cast(str, method(self)))

    changed.__name__ = name
    return changed


for _name in ("startswith", "endswith", "find", "rfind", "index", "rindex", "count"):
    setattr(Disguised, _name, _asked(_name))
for _name in ("lower", "upper", "title", "capitalize", "casefold", "swapcase"):
    setattr(Disguised, _name, _changed(_name))
