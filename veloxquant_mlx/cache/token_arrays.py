"""Arrays that grow together along the token axis, with spare capacity, so that a token is written and not copied."""

from __future__ import annotations

import mlx.core as mx


def capacity(n_tokens: int) -> int:
    """Tokens that arrays for n_tokens have room for: small steps while they are short, mlx-lm's 256 later.

    Growing copies what is there, so steps may be larger where a step is a small part of the whole.
    """
    step = 64 if n_tokens <= 512 else 256
    return -(-n_tokens // step) * step


def copied(array: mx.array) -> mx.array:
    """The same numbers in memory of their own; a part of an array would hold on to the memory of the whole.

    `mx.contiguous` keeps a buffer that is up to 16 KB too large, which is a lot of coded tokens.
    """
    copy: mx.array = mx.concatenate([array, array[:, :0]], axis=1)
    return copy


class TokenArrays:
    """A tuple of arrays whose axis 1 counts tokens.

    Room for more tokens is made in the steps of `capacity`.
    """

    def __init__(self) -> None:
        self.length = 0
        self._arrays: tuple[mx.array, ...] = ()

    def append(self, new: tuple[mx.array, ...]) -> None:
        """Write `new` behind the last token; every array's axis 1 is the same number of tokens."""
        end = self.length + new[0].shape[1]
        if not self._arrays or end > self._arrays[0].shape[1]:
            self._grow(end, new)
        for mine, more in zip(self._arrays, new, strict=True):
            mine[:, self.length : end] = more
        self.length = end

    def _grow(self, needed: int, like: tuple[mx.array, ...]) -> None:
        room = capacity(needed)
        grown = []
        for i, more in enumerate(like):
            shape = (more.shape[0], room, *more.shape[2:])
            bigger = mx.zeros(shape, more.dtype)
            if self.length:
                bigger[:, : self.length] = self._arrays[i][:, : self.length]
            grown.append(bigger)
        self._arrays = tuple(grown)

    def view(self) -> tuple[mx.array, ...]:
        """The arrays up to the last token; nothing before the first append."""
        if self._arrays and self.length == self._arrays[0].shape[1]:
            return self._arrays
        return tuple(array[:, : self.length] for array in self._arrays)

    def replace(self, arrays: tuple[mx.array, ...]) -> None:
        """Hold exactly `arrays` from now on, in a capacity that fits them."""
        self._arrays, self.length = tuple(mx.zeros((a.shape[0], 0, *a.shape[2:]), a.dtype) for a in arrays), 0
        if arrays[0].shape[1]:
            self.append(arrays)

    def give(self, n: int) -> tuple[mx.array, ...]:
        """Forget the first n tokens and return them, in arrays that nothing writes to any more."""
        given = tuple(copied(array[:, :n]) for array in self._arrays)
        self.replace(tuple(array[:, n : self.length] for array in self._arrays))
        return given

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on, and give back the room that arrays so short don't need."""
        if length >= self.length:
            return
        self.length = length
        if capacity(length) < self._arrays[0].shape[1]:
            self.replace(self.view())

    def copy(self) -> TokenArrays:
        """The same tokens in arrays of their own."""
        twin = TokenArrays()
        if self.length:
            twin.append(self.view())
        return twin

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays held, spare capacity included."""
        return sum(array.nbytes for array in self._arrays)

    @property
    def spare_bytes(self) -> int:
        """Of nbytes, room that no token is in yet."""
        if not self._arrays:
            return 0
        room = self._arrays[0].shape[1]
        return self.nbytes * (room - self.length) // max(room, 1)

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The whole arrays, spare capacity included, to be evaluated."""
        return self._arrays


class PackedArrays:
    """A tuple of arrays whose axis 1 counts tokens, without room to spare.

    Appending copies everything, which pays when many tokens come at once and all are read at every step: kernels run
    over arrays in one piece twice as fast as over the first part of larger ones, one part per head.
    """

    def __init__(self, arrays: tuple[mx.array, ...] = ()) -> None:
        self.arrays = arrays

    def view(self) -> tuple[mx.array, ...]:
        """The arrays; nothing before the first append."""
        return self.arrays

    @property
    def length(self) -> int:
        return self.arrays[0].shape[1] if self.arrays else 0

    def append(self, new: tuple[mx.array, ...]) -> None:
        """Write `new` behind the last token."""
        if self.arrays:
            new = tuple(mx.concatenate([mine, more], axis=1) for mine, more in zip(self.arrays, new, strict=True))
        self.arrays = new

    def give(self, n: int) -> tuple[mx.array, ...]:
        """Forget the first n tokens and return them, in arrays that nothing writes to."""
        whole, self.arrays = self.arrays, ()
        if n == whole[0].shape[1]:
            return whole
        self.arrays = tuple(copied(array[:, n:]) for array in whole)
        return tuple(copied(array[:, :n]) for array in whole)

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on."""
        if length < self.length:
            # Copied, as a part of an array would hold on to the memory of the whole.
            self.arrays = tuple(mx.contiguous(array[:, :length]) for array in self.arrays) if length else ()

    def copy(self) -> PackedArrays:
        """The same tokens. The two may have the same arrays, as neither ever writes into one."""
        return PackedArrays(self.arrays)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)
