"""Tokens that several caches hold together: pieces that nobody writes to, and the row of them that one cache holds."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx

from veloxquant_mlx.cache.token_arrays import copied


class Piece:
    """Arrays whose axis 1 counts tokens, which any number of caches may hold, and none of them changes.

    A cache that needs the beginning only splits the piece, for all that hold it: its halves take its place, in copies,
    and the memory of what no cache has any more goes.

    Args:
        arrays: From now on nobody assigns into them. (`a[i] = b` changes the very object that others hold.)
    """

    __slots__ = ("_arrays", "_coded", "_halves", "length")

    def __init__(self, arrays: tuple[mx.array, ...]) -> None:
        self.length: int = arrays[0].shape[1]
        self._arrays = arrays
        self._halves: tuple[Piece, Piece] | None = None
        self._coded: tuple[tuple[Any, ...], list[weakref.ref[mx.array]]] | None = None

    @property
    def is_split(self) -> bool:
        return self._halves is not None

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The arrays; none if it was split."""
        return self._arrays

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays)

    def leaves(self) -> list[Piece]:
        """What stands in its place now, in order."""
        return [self] if self._halves is None else [leaf for half in self._halves for leaf in half.leaves()]

    def split(self, at: int) -> None:
        """Put two pieces in its place, the first of `at` tokens; 0 < at < length, and it is not split yet."""
        arrays = self._arrays
        halves = [tuple(copied(array[:, part]) for array in arrays) for part in (slice(at), slice(at, None))]
        mx.eval(halves)  # or they would hold on to the whole until somebody asks for their numbers
        self._halves, self._arrays, self._coded = (Piece(halves[0]), Piece(halves[1])), (), None

    def coded(self, key: tuple[Any, ...], code: Callable[[], tuple[mx.array, ...]]) -> tuple[mx.array, ...]:
        """What `code` makes of it, or what another holder's made with the same key, where that is still held.

        Forks seal the same tokens one after the other, and needn't keep what comes of it twice.
        """
        if self._coded is not None and all(a is b for a, b in zip(self._coded[0], key, strict=True)):
            known = [array() for array in self._coded[1]]
            if all(array is not None for array in known):
                return tuple(array for array in known if array is not None)
        new = code()
        self._coded = key, [weakref.ref(array) for array in new]
        return new


class Pieces:
    """The pieces one cache holds, one after the other."""

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self._pieces = tuple(pieces)
        self.length = sum(piece.length for piece in self._pieces)

    def __bool__(self) -> bool:
        return self.length > 0

    @property
    def leaves(self) -> tuple[Piece, ...]:
        """The pieces as they are now; another holder may have split some."""
        if any(piece.is_split for piece in self._pieces):
            self._pieces = tuple(leaf for piece in self._pieces for leaf in piece.leaves())
        return self._pieces

    def append(self, piece: Piece) -> None:
        self._pieces = (*self._pieces, piece)
        self.length += piece.length

    def part(self, start: int, end: int) -> list[Piece]:
        """The pieces of the tokens start to end; those that reach beyond are split."""
        for at in (start, end):
            first = 0
            for piece in self.leaves:
                if first < at < first + piece.length:
                    piece.split(at - first)
                    break
                first += piece.length
        found, first = [], 0
        for piece in self.leaves:
            if start <= first and first + piece.length <= end:
                found.append(piece)
            first += piece.length
        return found

    def remove(self, start: int, end: int) -> list[Piece]:
        """Let go of the tokens start to end; returns the pieces they were."""
        gone = self.part(start, end)
        self._pieces = tuple(piece for piece in self.leaves if piece not in gone)
        self.length = sum(piece.length for piece in self._pieces)
        return gone

    def joined(self, start: int, end: int) -> tuple[mx.array, ...]:
        """The tokens start to end as one array each, for reading."""
        parts, first = [], 0
        for piece in self.leaves:
            low, high = max(start - first, 0), min(end - first, piece.length)
            if low < high:
                whole = high - low == piece.length
                parts.append(piece.arrays if whole else tuple(array[:, low:high] for array in piece.arrays))
            first += piece.length
        return joined(parts)

    @property
    def arrays(self) -> list[mx.array]:
        return [array for piece in self.leaves for array in piece.arrays]

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.leaves)


def joined(parts: list[tuple[mx.array, ...]]) -> tuple[mx.array, ...]:
    """Tokens one after the other as one array each; nothing of nothing."""
    if len(parts) == 1:
        return parts[0]
    return tuple(mx.concatenate(list(rows), axis=1) for rows in zip(*parts, strict=True))
