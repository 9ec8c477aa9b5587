"""The one cache that owns storage: exact first and last tokens, packed codes between them.

    [ sink: first tokens, exact ][ body: sealed, packed codes ][ window: latest tokens, exact ]

New tokens enter the window. When it is longer than `window + seal_step`, its oldest tokens are sealed into the body,
`seal_step` at a time, so nothing is encoded per token. Why the first and last tokens stay exact, and why the mean is
taken out before coding: on SmolLM2-135M at 4 bits the mean KL divergence to the uncompressed model is 0.085 with the
rotation alone, 0.038 with centring and 16 sink tokens, and 0.0038 with an exact window of 64 as well.

A fork holds the same codes as its parent, in pieces that neither changes (`cache.pieces`); see `cache.side`.
"""

from __future__ import annotations

import copy
from itertools import accumulate
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from veloxquant_mlx.cache.config import METHODS, KVCacheConfig
from veloxquant_mlx.cache.pieces import Piece
from veloxquant_mlx.cache.side import Side
from veloxquant_mlx.cache.softmax import LOG2_E, exp2_weights, wants_base_two
from veloxquant_mlx.cache.token_arrays import capacity
from veloxquant_mlx.core.abstractions import KVCache, Sealed, Stream
from veloxquant_mlx.quantizers.base import Codec, on_cpu


class CodedKVCache(KVCache):
    """Keys and values of one layer under one method.

    Rotations and tables that don't depend on data are shared by all caches, like weights, and not part of
    `memory_bytes`. Means, and the bases that `spectral` measures, are.

    Args:
        config: Shapes, sink, window and seal_step.
        key_codec: None keeps keys as they come; so does value_codec for values.
    """

    def __init__(self, config: KVCacheConfig, key_codec: Codec | None, value_codec: Codec | None) -> None:
        self.config = config
        self._keys = Side(config, key_codec, config.key_bits)
        self._values = Side(config, value_codec, config.value_bits)

    # ------------------------------------------------------------------ writing
    def append_key(self, k: Any) -> None:
        """Append keys, (d,) or (n_kv_heads, n_tokens, d)."""
        self._append(self._keys, k, self.config.head_dim, "key")

    def append_value(self, v: Any) -> None:
        """Append values, (d_v,) or (n_kv_heads, n_tokens, d_v)."""
        assert self.config.value_head_dim is not None
        self._append(self._values, v, self.config.value_head_dim, "value")

    def _append(self, side: Side, x: Any, d: int, what: str) -> None:
        if self.config.n_kv_heads == 1 and getattr(x, "shape", None) == (d,):
            vector = _array(x)
            side.push(_finite(vector, what), vector.dtype)
        else:
            side.append(_tokens(x, self.config.n_kv_heads, d, what))

    def extend_and_attend(self, k: Any, v: Any, q: Any, scale: float | None = None) -> mx.array:
        """Append k and v and attend with q; the new tokens see each other exactly and are sealed afterwards."""
        k = _tokens(k, self.config.n_kv_heads, self.config.head_dim, "key")
        assert self.config.value_head_dim is not None
        v = _tokens(v, self.config.n_kv_heads, self.config.value_head_dim, "value")
        q, shape = self._queries(q)  # before anything is appended, since it may be refused
        # A single new token is in the window in any case; a plain method codes everything before it is used.
        if k.shape[1] == 1 or METHODS[self.config.method].plain:
            self._keys.append(k)
            self._values.append(v)
            return self.attend(q, scale).reshape(shape)
        keys, values = k, v
        self._settle()
        if len(self):
            keys = mx.concatenate([self._keys.decoded(), k], axis=1)
            values = mx.concatenate([self._values.decoded(), v], axis=1)
        out = _fused_attention(q, keys, values, scale)
        self._keys.append(k)
        self._values.append(v)
        return out.reshape(shape)

    def trim(self, n: int) -> int:
        """Forget the last n tokens (all, if it holds fewer). Returns how many were forgotten."""
        n = max(0, min(n, len(self)))
        if n:
            self._keys.trim(n)
            self._values.trim(n)
        return n

    def reset(self) -> None:
        """Forget every token and give their memory back."""
        self._keys = Side(self.config, self._keys.unfitted, self.config.key_bits)
        self._values = Side(self.config, self._values.unfitted, self.config.value_bits)

    # ------------------------------------------------------------------ forking
    def fork(self, n_tokens: int | None = None, multiple_of: int = 1) -> CodedKVCache:
        """A cache with the first n_tokens of this one, whose further life is its own, and this one's too.

        What is sealed (with `fp16`, everything) is not copied, in whole multiples of multiple_of tokens; nor are the
        exact tokens, until one of the two caches seals or forgets them. Evaluates what it shares.

        Args:
            n_tokens: None is all of them.
            multiple_of: Tokens of a block, counted from the cache's first token. One cache sticks to one number.

        Raises:
            ValueError: This cache has fewer tokens, or multiple_of is below 1; nothing was changed.
        """
        n_tokens = self._check_fork(n_tokens, multiple_of)
        twin = copy.copy(self)
        twin._keys = self._keys.fork(n_tokens, multiple_of)
        twin._values = self._values.fork(n_tokens, multiple_of)
        # Parts of arrays that were not computed yet would hold on to the whole.
        mx.eval(self.arrays, twin.arrays)
        return twin

    def fork_shares(self, stream: Stream, n_tokens: int | None = None, multiple_of: int = 1) -> tuple[int, int]:
        """What `fork` would share for good: of keys ("k") or values ("v"), the first token and the end."""
        n_tokens = self._check_fork(n_tokens, multiple_of)
        return self._side(stream).fork_shares(n_tokens, multiple_of)

    def shared(self, stream: Stream) -> tuple[int, int]:
        """First token and end, multiples of `fork`'s multiple_of, of the keys ("k") or values ("v") held in pieces.

        Other caches may hold those pieces, too. (0, 0) where there are none.
        """
        return self._side(stream).shared

    @property
    def sides(self) -> tuple[Side, Side]:
        """Keys and values, settled, for reading."""
        self._settle()
        return self._keys, self._values

    @property
    def pieces(self) -> list[Piece]:
        """What this cache may hold together with forks: its tokens' pieces, and one of means and bases.

        All that hold a piece have the same object, so that a sum over caches can count each once.
        """
        return self._keys.pieces + self._values.pieces

    def _check_fork(self, n_tokens: int | None, multiple_of: int) -> int:
        if type(multiple_of) is not int or multiple_of < 1:
            raise ValueError(f"fork() shares multiples of a number of tokens of at least 1, not {multiple_of!r}.")
        held = len(self)
        if n_tokens is None:
            return held
        if type(n_tokens) is not int or not 0 <= n_tokens <= held:
            raise ValueError(f"This cache holds {held} tokens, so a fork can begin with 0 to {held}, not {n_tokens!r}.")
        return n_tokens

    # ------------------------------------------------------------------ reading
    def attend(self, q: Any, scale: float | None = None) -> mx.array:
        """Attention output of the queries, in their type and shape.

        Args:
            q: (d,) or (n_q_heads, n_tokens, d); n_q_heads is a multiple of n_kv_heads. With n_tokens > 1 the queries
                are the last n_tokens positions and see only what stands before them.
            scale: Of the scores; 1 / sqrt(d) by default.
        """
        q, shape = self._queries(q)
        self._settle()
        if not len(self._keys):
            raise ValueError("This cache is empty, so there is nothing to attend to; append keys and values first.")
        if len(self._keys) != len(self._values):
            raise ValueError(
                f"This cache holds {len(self._keys)} keys and {len(self._values)} values; append as many of each."
            )
        if q.shape[1] == 1:
            if self._keys.n_coded and self._keys.codec is not None:
                return self._attend_coded(q, scale).reshape(shape)
            if self._keys.base or on_cpu():
                return self._attend_plain(q, scale).reshape(shape)
        return _fused_attention(q, self._keys.decoded(), self._values.decoded(), scale).reshape(shape)

    def _settle(self) -> None:
        self._keys.settle()
        self._values.settle()

    def _queries(self, q: Any) -> tuple[mx.array, tuple[int, ...]]:
        """Queries as (n_q_heads, n_tokens, d), and the shape of the output, whose last axis is the values'."""
        q = _array(q)
        shape = (*q.shape[:-1], -1)
        if q.ndim == 1:
            q = q[None, None]
        heads, d = self.config.n_kv_heads, self.config.head_dim
        if q.ndim != 3 or q.shape[2] != d or q.shape[0] % heads or not q.shape[0]:
            raise ValueError(
                f"Queries of this cache are (n_q_heads, n_tokens, {d}), n_q_heads a multiple of {heads}, or ({d},); "
                f"these are {q.shape}."
            )
        return q, shape

    def _attend_coded(self, q: mx.array, scale: float | None) -> mx.array:
        """One query position against the packed body; q is (n_q_heads, 1, d)."""
        keys, values = self._keys, self._values
        assert keys.codec is not None
        assert values.codec is not None
        n_q_heads, _, d = q.shape
        heads, n_exact = self.config.n_kv_heads, keys.n_exact
        base_two = wants_base_two(n_q_heads * len(self))
        scale = (d**-0.5 if scale is None else scale) * (LOG2_E if base_two else 1.0)
        # Queries that share a key/value head become its rows: (n_kv_heads, n_q_heads / n_kv_heads, d)
        rows = q.reshape(heads, -1, d).astype(mx.float32) * scale
        # The body is one row of codes, or several where forks hold its beginning: (n_kv_heads, rows, n_tokens) each
        scores = [keys.codec.scores(rows, coded) for coded in keys.coded]
        if n_exact:
            # Softmax has no order: sink and window stay side by side.
            scores.insert(0, exact_scores(rows, keys))
        together = _joined(scores)  # (n_kv_heads, rows, n_exact + n_body)
        weights, total = exp2_weights(together) if base_two else (mx.softmax(together, axis=-1), None)
        coded = values.coded
        parts = _parted(weights, [n_exact] * (n_exact > 0) + [arrays[0].shape[1] for arrays in coded])
        exact = parts.pop(0) if n_exact else None
        out = values.codec.combine(parts[0], coded[0])
        for part, arrays in zip(parts[1:], coded[1:], strict=True):
            out = out + values.codec.combine(part, arrays)
        if exact is not None:
            out = mx.addmm(out, exact, values.exact_floats())
        if values.mean is not None:
            out = out + coded_weight(exact, total) * values.mean
        if total is not None:
            out = out / total
        return out.reshape(n_q_heads, 1, -1).astype(q.dtype)

    def _attend_plain(self, q: mx.array, scale: float | None) -> mx.array:
        """One query position against what is not coded, as one array or in pieces; q is (n_q_heads, 1, d).

        On CPU, MLX's own attention takes half as long again for one query (mlx 0.32.4; 30 layers of 3 heads of 64 with
        9 query heads, two x86 cores: 24.5 ms against 16 for 2,000 tokens, 4.0 against 2.9 for 256).
        """
        n_q_heads, _, d = q.shape
        keys, values = (side.plain if side.codec is None else [side.decoded()] for side in (self._keys, self._values))
        rows = q.reshape(self.config.n_kv_heads, -1, d) * (d**-0.5 if scale is None else scale)
        scores = _joined([rows @ k.swapaxes(-1, -2) for k in keys])  # (n_kv_heads, rows, n_tokens)
        parts = _parted(mx.softmax(scores, axis=-1, precise=True), [v.shape[1] for v in values])
        out = parts[0] @ values[0]
        for part, v in zip(parts[1:], values[1:], strict=True):
            out = mx.addmm(out, part, v)
        return out.reshape(n_q_heads, 1, -1).astype(q.dtype)

    def decoded(self) -> tuple[mx.array, mx.array]:
        """All keys and values in order, unpacked: (n_kv_heads, n_tokens, d) each."""
        self._settle()
        return self._keys.decoded(), self._values.decoded()

    def memory_bytes(self) -> int:
        """Nbytes of every array held for tokens, spare capacity included."""
        return self._keys.nbytes + self._values.nbytes

    def sealed(self, stream: Stream) -> Sealed | None:
        """Which keys ("k") or values ("v") are packed codes; None before any were. The same object until it changes."""
        return self._side(stream).sealed

    def _side(self, stream: Stream) -> Side:
        return self._keys if stream == "k" else self._values

    def spare_bytes(self) -> int:
        """Of memory_bytes, room that no token is in yet."""
        return self._keys.spare_bytes + self._values.spare_bytes

    def constant_bytes(self) -> int:
        """Of memory_bytes, what does not grow with tokens: means, and what the codecs learned."""
        return sum(array.nbytes for array in self._keys.constants + self._values.constants)

    def uncompressed_bytes(self) -> int:
        """What the method fp16 would hold for as many tokens of the same type, spare capacity included.

        `fp16` keeps arrays in the type they come in, which is float32 where a model is computed in float32.
        """
        per_token = self.config.n_kv_heads * (self.config.head_dim + (self.config.value_head_dim or 0))
        return capacity(len(self)) * per_token * (self._keys.dtype.size if self._keys.dtype is not None else 0)

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays held, to be evaluated together."""
        self._settle()
        return self._keys.arrays + self._values.arrays

    def __len__(self) -> int:
        return min(len(self._keys), len(self._values))


def _tokens(x: Any, n_kv_heads: int, d: int, what: str) -> mx.array:
    """Keys or values as (n_kv_heads, n_tokens, d); a single vector becomes one head's one token."""
    tokens = _array(x)
    if tokens.ndim == 1:
        _finite(tokens, what)
        tokens = tokens[None, None]
    if tokens.ndim != 3 or tokens.shape[0] != n_kv_heads or tokens.shape[2] != d or not tokens.shape[1]:
        raise ValueError(
            f"A {what} of this cache is ({n_kv_heads}, n_tokens, {d}), or ({d},) for one head's one token; "
            f"this one is {tokens.shape}."
        )
    return tokens


def _finite(vector: mx.array, what: str) -> npt.NDArray[Any]:
    """The numbers of a single vector, none of which may be NaN or infinite.

    Single vectors are a caller's own. Whole chunks come from a model, and looking at their numbers would make MLX
    compute them now.
    """
    # NumPy has no bfloat16.
    numbers = np.asarray(vector.astype(mx.float32) if vector.dtype == mx.bfloat16 else vector)
    if not np.logical_and.reduce(np.isfinite(numbers)):
        raise ValueError(f"This {what} has NaN or infinite numbers in it; nothing was stored.")
    return numbers


def _array(x: Any) -> mx.array:
    array: mx.array = x if isinstance(x, mx.array) else mx.array(x)
    return array


def _fused_attention(q: mx.array, keys: mx.array, values: mx.array, scale: float | None) -> mx.array:
    """Causal attention on unpacked arrays, (n_q_heads, n_tokens, d_v)."""
    mask = "causal" if q.shape[1] > 1 else None
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out: mx.array = mx.fast.scaled_dot_product_attention(q[None], keys[None], values[None], scale=scale, mask=mask)
    return out[0]


def exact_scores(rows: mx.array, keys: Side) -> mx.array:
    """Scores of the exact tokens beside those of coded ones, (n_kv_heads, m, n_exact); rows is (n_kv_heads, m, d).

    The others were coded without their mean, which would add the same to all their scores. What is the same for all
    changes no weight, so it is taken out of these instead.
    """
    scores = rows @ keys.exact_floats().swapaxes(-1, -2)
    return scores if keys.mean is None else scores - rows @ keys.mean.swapaxes(-1, -2)


def coded_weight(exact: mx.array | None, total: mx.array | None) -> mx.array | float:
    """The weight that falls on coded tokens, whose mean is added so often, (n_kv_heads, m, 1).

    Args:
        exact: The weights of the exact tokens.
        total: The sum of all weights; None is 1.
    """
    whole: mx.array | float = 1.0 if total is None else total
    return whole if exact is None else whole - exact.sum(axis=-1, keepdims=True)


def _joined(parts: list[mx.array]) -> mx.array:
    """Scores (n_kv_heads, rows, n) of tokens one after the other, as one array."""
    together: mx.array = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)
    return together


def _parted(weights: mx.array, lengths: list[int]) -> list[mx.array]:
    """`weights` (n_kv_heads, rows, n) cut into parts of so many tokens."""
    *ends, _ = accumulate(lengths)
    return list(mx.split(weights, ends, axis=-1)) if ends else [weights]
