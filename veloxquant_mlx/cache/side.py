"""Side: the keys of one cache, or its values, in the order they came; what of them is exact, coded, or shared."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from veloxquant_mlx.cache.config import METHODS, KVCacheConfig
from veloxquant_mlx.cache.pieces import Piece, Pieces, joined
from veloxquant_mlx.cache.token_arrays import PackedArrays, TokenArrays, copied
from veloxquant_mlx.core.abstractions import Sealed
from veloxquant_mlx.quantizers.base import Codec, Coded

# Single vectors that are put together before they are stored and coded, since every array operation has a price.
AT_ONCE = 128


class Side:
    """(n_kv_heads, n_tokens, d) of tokens.

    [ sink: exact ][ base, then body: coded ][ window: exact ]

    `base` is what `fork` shared of the coded tokens, and `lent` of the exact ones: pieces that are read and never
    written. What is appended goes behind them into arrays of this side's own. Where nothing is coded, there is no sink,
    all tokens are in `exact`, and `base` stands before them.
    """

    def __init__(self, config: KVCacheConfig, codec: Codec | None, bits: int | None) -> None:
        self.codec = self.unfitted = codec
        self._plain = METHODS[config.method].plain
        self._n_heads = config.n_kv_heads
        self._sink, self._window, self._seal_step = config.sink, config.window, config.seal_step
        if self._plain or codec is None:
            self._sink = self._window = 0
        self.format = config.method if codec is None else f"{config.method}-{bits}"
        # Sink and window in one array; everything where nothing is coded.
        self.exact: TokenArrays | PackedArrays = TokenArrays() if codec is None else PackedArrays()
        self.body = PackedArrays()
        self.base, self.lent = Pieces(), Pieces()
        self.multiple_of = 1  # base ends at a multiple of it
        self.mean: mx.array | None = None  # (n_kv_heads, 1, d) float32, fixed when the first tokens are sealed
        self._known: Piece | None = None  # the constants, where forks have the same ones
        self.dtype: mx.Dtype | None = None  # what tokens come in; None before any came
        self.sealed: Sealed | None = None  # always of what is coded; None as long as nothing ever was
        self._pending: list[npt.NDArray[Any]] = []  # single vectors, (d,) each, that `settle` will store

    def __len__(self) -> int:
        return self.n_exact + self.n_coded + len(self._pending)

    @property
    def n_exact(self) -> int:
        return self.lent.length + self.exact.length

    @property
    def n_coded(self) -> int:
        """Tokens of base and body; where nothing is coded, of base."""
        return self.base.length + self.body.length

    @property
    def n_sink(self) -> int:
        """How many of the exact tokens stand before the coded ones."""
        return min(self._sink, self.n_exact)

    # ------------------------------------------------------------------ writing
    def push(self, numbers: npt.NDArray[Any], dtype: mx.Dtype) -> None:
        """Append one head's one token, (d,), which is of type dtype. What reads the other attributes settles first."""
        if self.dtype is None or dtype != self.dtype:
            self.settle()
            self.dtype = dtype
        self._pending.append(numbers)
        if len(self._pending) == AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Store the vectors that were pushed."""
        if self._pending:
            vectors, self._pending = self._pending, []
            self._store(mx.array(np.stack(vectors)[None], dtype=self.dtype))

    def append(self, x: mx.array) -> None:
        self.settle()
        self._store(x)

    def _store(self, x: mx.array) -> None:
        self.dtype = x.dtype
        if self.codec is None:
            # What is shared has the type of the first tokens, and so has what comes behind it.
            self.exact.append((x.astype(self.base.arrays[0].dtype) if self.base else x,))
            return
        if self._plain:
            self._seal(x, x.shape[1])
            return
        n_window = self.n_exact + x.shape[1] - self._sink
        n_seal = max(0, (n_window - self._window - 1) // self._seal_step * self._seal_step)
        if not n_seal:
            self.exact.append((x,))
            return
        exact = mx.concatenate([*self.lent.arrays, *self.exact.arrays, x], axis=1) if self.n_exact else x
        self._seal(exact[:, self._sink :], n_seal)
        end, n_lent = self._sink + n_seal, self.lent.length
        if n_lent > end:
            # The window begins with tokens that forks have too, and goes on sharing them, as does the sink.
            self.lent.remove(self._sink, end)
            self.exact = PackedArrays((copied(exact[:, n_lent:]),))
            return
        rest = mx.concatenate([exact[:, : self._sink], exact[:, end:]], axis=1)
        self.exact = PackedArrays((rest,))
        self.lent = Pieces()

    def _seal(self, window: mx.array, n: int) -> None:
        """Code the first n tokens of `window` (n_kv_heads, n_window, d) onto the end of the body."""
        assert self.codec is not None
        if self._plain:
            centred = window
        else:
            if self.mean is None:
                self.mean = window.astype(mx.float32).mean(axis=1, keepdims=True)
            centred = window.astype(mx.float32) - self.mean
        if not self.n_coded:
            self.codec = self.codec.fitted(centred)
        codec = self.codec
        coming = self.lent.part(self._sink, self._sink + n) if self.lent.length >= self._sink + n else []
        if len(coming) == 1:
            # All forks of a cache seal these tokens next, and to the same codes.
            self.body.append(coming[0].coded((codec, self.mean), lambda: codec.encode(centred[:, :n])))
        else:
            self.body.append(codec.encode(centred[:, :n]))
        self._note_sealed()

    def _note_sealed(self) -> None:
        assert self.codec is not None
        per_token = self._n_heads * self.codec.bytes_per_token
        constant = sum(array.nbytes for array in self.constants)
        self.sealed = Sealed(self.format, self._sink, self.n_coded, per_token, constant)

    def trim(self, n: int) -> None:
        """Forget the last n tokens: from the window, then the coded ones, then the sink."""
        self.settle()
        from_window = min(n, self.n_exact - self.n_sink)
        from_coded = min(n - from_window, self.n_coded)
        self._keep_exact(self.n_exact - from_window)
        self._keep_coded(self.n_coded - from_coded)
        if n > from_window + from_coded:
            self._keep_exact(self.n_exact - (n - from_window - from_coded))
        if not self.n_coded:
            # The next first seal measures anew, as in a cache that never held these tokens.
            self.mean, self.codec, self._known = None, self.unfitted, None
        if from_coded and self.codec is not None:
            self._note_sealed()

    def _keep_exact(self, n: int) -> None:
        """Keep the first n of the exact tokens."""
        if n < self.lent.length:
            self.lent.remove(n, self.lent.length)
        self.exact.truncate(max(0, n - self.lent.length))

    def _keep_coded(self, n: int) -> None:
        """Keep the first n of the coded tokens."""
        self.body.truncate(max(0, n - self.base.length))
        if n >= self.base.length:
            return
        # Base ends where a block does, as the pool has it: what is kept of the block that is cut becomes our own.
        whole = self._whole(n, self.multiple_of)
        rest = tuple(copied(array) for array in self.base.joined(whole, n))
        mx.eval(rest)
        self.base.remove(whole, self.base.length)
        if not rest:
            return
        if self.codec is None:
            self.exact.append(rest)
        else:
            self.body = PackedArrays(rest)

    # ------------------------------------------------------------------ forking
    def fork(self, n_tokens: int, multiple_of: int) -> Side:
        """A side with the first n_tokens of this one; what it can share moves into pieces."""
        self.settle()
        self.multiple_of = multiple_of
        own = self.exact if self.codec is None else self.body
        n = self._whole(self.base.length + own.length, multiple_of) - self.base.length
        if n > 0:
            self.base.append(Piece(own.give(n)))
        if isinstance(self.exact, PackedArrays) and self.exact.length:
            self.lent.append(Piece(self.exact.give(self.exact.length)))
        if self._known is None and self.constants:
            self._known = Piece(tuple(self.constants))
        twin = copy.copy(self)
        twin._pending = []
        twin.base, twin.lent = Pieces(self.base.leaves), Pieces(self.lent.leaves)
        twin.body, twin.exact = self.body.copy(), self.exact.copy()  # less than a block
        twin.trim(len(self) - n_tokens)
        return twin

    def fork_shares(self, n_tokens: int, multiple_of: int) -> tuple[int, int]:
        """First token and end of what `fork` would leave in base, without the rest of the block the sink ends in."""
        self.settle()
        n_coded = len(self) if self.codec is None else self.n_coded
        return self._blocks_of(self._whole(min(n_coded, max(0, n_tokens - self._sink)), multiple_of), multiple_of)

    @property
    def shared(self) -> tuple[int, int]:
        """First token and end of what is in base, as in `fork_shares`."""
        return self._blocks_of(self._whole(self.base.length, self.multiple_of), self.multiple_of)

    def _whole(self, n: int, multiple_of: int) -> int:
        """Of the first n coded tokens, those that end with a whole block of coded tokens; 0 where there is none."""
        end = (self._sink + n) // multiple_of * multiple_of
        return end - self._sink if end - multiple_of >= self._sink else 0

    def _blocks_of(self, n: int, multiple_of: int) -> tuple[int, int]:
        return (-(-self._sink // multiple_of) * multiple_of, self._sink + n) if n else (0, 0)

    # ------------------------------------------------------------------ reading
    def _exact_tokens(self) -> mx.array:
        """Sink and window, (n_kv_heads, n_exact, d); there are some."""
        if not self.lent:
            (exact,) = self.exact.view()
            return exact
        (exact,) = joined([piece.arrays for piece in self.lent.leaves] + [self.exact.view()] * (self.exact.length > 0))
        return exact

    def exact_floats(self) -> mx.array:
        """Sink and window, float32, (n_kv_heads, n_exact, d); there are some."""
        return self._exact_tokens().astype(mx.float32)

    @property
    def coded(self) -> list[Coded]:
        """The coded tokens in order: those of each piece, then the body's."""
        if not self.base:
            return [self.body.arrays]
        return [piece.arrays for piece in self.base.leaves] + [self.body.arrays] * (self.body.length > 0)

    @property
    def plain(self) -> list[mx.array]:
        """Where nothing is coded, all tokens in order, (n_kv_heads, n, d) each: those of each piece, then our own."""
        return self.base.arrays + list(self.exact.view() if self.exact.length else ())

    def decoded(self) -> mx.array:
        """Every token in order, (n_kv_heads, n_tokens, d), in the type they came in."""
        if not self.n_coded:
            return self._exact_tokens()
        if self.codec is None:
            whole: mx.array = mx.concatenate(self.plain, axis=1)
            return whole
        assert self.dtype is not None
        body = self.codec.decode(joined(self.coded))
        if self.mean is not None:
            body = body + self.mean
        body = body.astype(self.dtype)
        if not self.n_exact:
            return body
        exact, n = self._exact_tokens(), self.n_sink
        return mx.concatenate([exact[:, :n], body, exact[:, n:]], axis=1)

    @property
    def constants(self) -> list[mx.array]:
        """What it holds besides tokens: the mean, and what the codec learned."""
        own = [] if self.codec is None else list(self.codec.own_arrays)
        return own if self.mean is None else [self.mean, *own]

    @property
    def pieces(self) -> list[Piece]:
        """All that forks may hold, too."""
        known = [] if self._known is None else [self._known]
        return [*known, *self.base.leaves, *self.lent.leaves]

    @property
    def nbytes(self) -> int:
        pending = sum(vector.size for vector in self._pending) * (self.dtype.size if self.dtype is not None else 0)
        constant = sum(array.nbytes for array in self.constants)
        return self.exact.nbytes + self.body.nbytes + self.base.nbytes + self.lent.nbytes + constant + pending

    @property
    def spare_bytes(self) -> int:
        return self.exact.spare_bytes if isinstance(self.exact, TokenArrays) else 0

    @property
    def arrays(self) -> list[mx.array]:
        return [*self.base.arrays, *self.lent.arrays, *self.exact.arrays, *self.body.arrays, *self.constants]
