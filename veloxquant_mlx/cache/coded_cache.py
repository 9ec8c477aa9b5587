"""The one cache that owns storage: exact first and last tokens, packed codes between them.

    [ sink: first tokens, exact ][ body: sealed, packed codes ][ window: latest tokens, exact ]

New tokens enter the window. When it is longer than `window + seal_step`, its oldest tokens are sealed into the body,
`seal_step` at a time, so nothing is encoded per token. Why the first and last tokens stay exact, and why the mean is
taken out before coding: on SmolLM2-135M at 4 bits the mean KL divergence to the uncompressed model is 0.085 with the
rotation alone, 0.038 with centring and 16 sink tokens, and 0.0038 with an exact window of 64 as well.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from veloxquant_mlx.cache.config import METHODS, KVCacheConfig
from veloxquant_mlx.cache.softmax import LOG2_E, exp2_weights, wants_base_two
from veloxquant_mlx.cache.token_arrays import PackedArrays, TokenArrays, capacity
from veloxquant_mlx.core.abstractions import KVCache, Sealed, Stream
from veloxquant_mlx.quantizers.base import Codec

# Single vectors that are put together before they are stored and coded, since every array operation has a price.
AT_ONCE = 128


class _Side:
    """The keys of one cache, or its values: (n_kv_heads, n_tokens, d) in the order they came."""

    def __init__(self, config: KVCacheConfig, codec: Codec | None, bits: int | None) -> None:
        self.codec = self.unfitted = codec
        self._plain = METHODS[config.method].plain
        self._n_heads = config.n_kv_heads
        self._sink, self._window, self._seal_step = config.sink, config.window, config.seal_step
        if self._plain:
            self._sink = self._window = 0
        self.format = config.method if codec is None else f"{config.method}-{bits}"
        # Sink and window in one array; everything where nothing is coded.
        self.exact: TokenArrays | PackedArrays = TokenArrays() if codec is None else PackedArrays()
        self.body = PackedArrays()
        self.mean: mx.array | None = None  # (n_kv_heads, 1, d) float32, fixed when the first tokens are sealed
        self.dtype: mx.Dtype | None = None  # what tokens come in; None before any came
        self.sealed: Sealed | None = None  # always of what the body holds; None as long as it never held anything
        self._pending: list[npt.NDArray[Any]] = []  # single vectors, (d,) each, that `settle` will store

    def __len__(self) -> int:
        return self.exact.length + self.body.length + len(self._pending)

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

    @property
    def n_sink(self) -> int:
        """How many of the exact tokens stand before the body."""
        return self.exact.length if self.codec is None else min(self._sink, self.exact.length)

    def append(self, x: mx.array) -> None:
        self.settle()
        self._store(x)

    def _store(self, x: mx.array) -> None:
        self.dtype = x.dtype
        if self.codec is None:
            self.exact.append((x,))
            return
        if self._plain:
            self._seal(x, x.shape[1])
            return
        n_window = self.exact.length + x.shape[1] - self._sink
        n_seal = max(0, (n_window - self._window - 1) // self._seal_step * self._seal_step)
        if not n_seal:
            self.exact.append((x,))
            return
        exact = mx.concatenate([*self.exact.arrays, x], axis=1) if self.exact.length else x
        self._seal(exact[:, self._sink :], n_seal)
        rest = mx.concatenate([exact[:, : self._sink], exact[:, self._sink + n_seal :]], axis=1)
        self.exact = PackedArrays((rest,))

    def _seal(self, window: mx.array, n: int) -> None:
        """Code the first n tokens of `window` (n_kv_heads, n_window, d) onto the end of the body."""
        assert self.codec is not None
        if self._plain:
            centred = window
        else:
            if self.mean is None:
                self.mean = window.astype(mx.float32).mean(axis=1, keepdims=True)
            centred = window.astype(mx.float32) - self.mean
        if not self.body.length:
            self.codec = self.codec.fitted(centred)
        self.body.append(self.codec.encode(centred[:, :n]))
        self._note_sealed()

    def _note_sealed(self) -> None:
        assert self.codec is not None
        per_token = self._n_heads * self.codec.bytes_per_token
        constant = sum(array.nbytes for array in self.constants)
        self.sealed = Sealed(self.format, self._sink, self.body.length, per_token, constant)

    def trim(self, n: int) -> None:
        """Forget the last n tokens: from the window, then the body, then the sink."""
        self.settle()
        from_window = min(n, self.exact.length - self.n_sink)
        from_body = min(n - from_window, self.body.length)
        self.exact.truncate(self.exact.length - from_window)
        self.body.truncate(self.body.length - from_body)
        if n > from_window + from_body:
            self.exact.truncate(self.exact.length - (n - from_window - from_body))
        if not self.body.length:
            # The next first seal measures anew, as in a cache that never held these tokens.
            self.mean, self.codec = None, self.unfitted
        if from_body:
            self._note_sealed()

    def centred(self) -> mx.array:
        """The exact tokens without the mean, float32, (n_kv_heads, n_exact, d)."""
        (exact,) = self.exact.arrays
        return exact.astype(mx.float32) if self.mean is None else exact - self.mean

    def decoded(self) -> mx.array:
        """Every token in order, (n_kv_heads, n_tokens, d), in the type they came in."""
        if not self.body.length:
            (exact,) = self.exact.view()
            return exact
        assert self.codec is not None
        assert self.dtype is not None
        body = self.codec.decode(self.body.arrays)
        if self.mean is not None:
            body = body + self.mean
        body = body.astype(self.dtype)
        if not self.exact.length:
            return body
        (exact,) = self.exact.view()
        n = self.n_sink
        return mx.concatenate([exact[:, :n], body, exact[:, n:]], axis=1)

    @property
    def constants(self) -> list[mx.array]:
        """What it holds besides tokens: the mean, and what the codec learned."""
        own = [] if self.codec is None else list(self.codec.own_arrays)
        return own if self.mean is None else [self.mean, *own]

    @property
    def nbytes(self) -> int:
        pending = sum(vector.size for vector in self._pending) * (self.dtype.size if self.dtype is not None else 0)
        return self.exact.nbytes + self.body.nbytes + sum(array.nbytes for array in self.constants) + pending

    @property
    def spare_bytes(self) -> int:
        return self.exact.spare_bytes if isinstance(self.exact, TokenArrays) else 0

    @property
    def arrays(self) -> list[mx.array]:
        return [*self.exact.arrays, *self.body.arrays, *self.constants]


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
        self._keys = _Side(config, key_codec, config.key_bits)
        self._values = _Side(config, value_codec, config.value_bits)

    # ------------------------------------------------------------------ writing
    def append_key(self, k: Any) -> None:
        """Append keys, (d,) or (n_kv_heads, n_tokens, d)."""
        self._append(self._keys, k, self.config.head_dim, "key")

    def append_value(self, v: Any) -> None:
        """Append values, (d_v,) or (n_kv_heads, n_tokens, d_v)."""
        assert self.config.value_head_dim is not None
        self._append(self._values, v, self.config.value_head_dim, "value")

    def _append(self, side: _Side, x: Any, d: int, what: str) -> None:
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
        self._keys = _Side(self.config, self._keys.unfitted, self.config.key_bits)
        self._values = _Side(self.config, self._values.unfitted, self.config.value_bits)

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
        if q.shape[1] == 1 and self._keys.body.length:
            return self._attend_coded(q, scale).reshape(shape)
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
        heads, n_exact = self.config.n_kv_heads, keys.exact.length
        base_two = wants_base_two(n_q_heads * len(self))
        scale = (d**-0.5 if scale is None else scale) * (LOG2_E if base_two else 1.0)
        # Queries that share a key/value head become its rows: (n_kv_heads, n_q_heads / n_kv_heads, d)
        rows = q.reshape(heads, -1, d).astype(mx.float32) * scale
        scores = keys.codec.scores(rows, keys.body.arrays)  # (n_kv_heads, rows, n_body)
        if n_exact:
            # The body's keys were coded without their mean, which would add the same to all their scores and so change
            # no weight; it is taken out of the others too. Softmax has no order: sink and window stay side by side.
            exact = rows @ keys.centred().swapaxes(-1, -2)
            scores = mx.concatenate([exact, scores], axis=-1)  # (n_kv_heads, rows, n_exact + n_body)
        weights, total = exp2_weights(scores) if base_two else (mx.softmax(scores, axis=-1), None)
        if n_exact:
            exact, weights = mx.split(weights, [n_exact], axis=-1)
        out = values.codec.combine(weights, values.body.arrays)
        if n_exact:
            out = mx.addmm(out, exact, values.centred())
        if total is not None:
            out = out / total
        if values.mean is not None:
            out = out + values.mean
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
        return (self._keys if stream == "k" else self._values).sealed

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
