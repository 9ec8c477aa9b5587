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

from veloxquant_mlx.cache.config import KVCacheConfig
from veloxquant_mlx.cache.token_arrays import TokenArrays, capacity
from veloxquant_mlx.core.abstractions import KVCache
from veloxquant_mlx.quantizers.base import Codec

EXACT_STEP = 16  # tokens; sink and window are short, so that room is made for them in small steps


class _Side:
    """The keys of one cache, or its values: (n_kv_heads, n_tokens, d) in the order they came."""

    def __init__(self, config: KVCacheConfig, codec: Codec | None) -> None:
        self.codec = codec
        self._sink, self._window, self._seal_step = config.sink, config.window, config.seal_step
        # Sink and window in one array; everything where nothing is coded.
        self.exact = TokenArrays() if codec is None else TokenArrays(lambda n: -(-n // EXACT_STEP) * EXACT_STEP)
        self.body = TokenArrays()
        self.mean: mx.array | None = None  # (n_kv_heads, 1, d) float32, fixed when the first tokens are sealed

    def __len__(self) -> int:
        return self.exact.length + self.body.length

    @property
    def n_sink(self) -> int:
        """How many of the exact tokens stand before the body."""
        return self.exact.length if self.codec is None else min(self._sink, self.exact.length)

    def append(self, x: mx.array) -> None:
        if self.codec is None:
            self.exact.append((x,))
            return
        n_window = self.exact.length + x.shape[1] - self._sink
        n_seal = max(0, (n_window - self._window - 1) // self._seal_step * self._seal_step)
        if not n_seal:
            self.exact.append((x,))
            return
        exact = mx.concatenate([*self.exact.view(), x], axis=1) if self.exact.length else x
        self._seal(exact[:, self._sink :], n_seal)
        self.exact.replace((mx.concatenate([exact[:, : self._sink], exact[:, self._sink + n_seal :]], axis=1),))

    def _seal(self, window: mx.array, n: int) -> None:
        """Code the first n tokens of `window` (n_kv_heads, n_window, d) onto the end of the body."""
        assert self.codec is not None
        if self.mean is None:
            self.mean = window.astype(mx.float32).mean(axis=1, keepdims=True)
        self.body.append(self.codec.encode(window[:, :n].astype(mx.float32) - self.mean))

    def trim(self, n: int) -> None:
        """Forget the last n tokens: from the window, then the body, then the sink."""
        from_window = min(n, self.exact.length - self.n_sink)
        from_body = min(n - from_window, self.body.length)
        self.exact.truncate(self.exact.length - from_window)
        self.body.truncate(self.body.length - from_body)
        if n > from_window + from_body:
            self.exact.truncate(self.exact.length - (n - from_window - from_body))
        if not self.body.length:
            self.mean = None  # the next first seal fixes a new one, as in a cache that never held these tokens

    def decoded(self) -> mx.array:
        """Every token in order, (n_kv_heads, n_tokens, d), in the type they came in."""
        (exact,) = self.exact.view()
        if not self.body.length:
            return exact
        assert self.codec is not None
        assert self.mean is not None
        body = self.codec.decode(self.body.view()) + self.mean
        n = self.n_sink
        return mx.concatenate([exact[:, :n], body.astype(exact.dtype), exact[:, n:]], axis=1)

    @property
    def itemsize(self) -> int:
        """Bytes of one coordinate in the type the tokens come in; 0 before any came."""
        return self.exact.arrays[0].itemsize if self.exact.arrays else 0

    @property
    def nbytes(self) -> int:
        return self.exact.nbytes + self.body.nbytes + (0 if self.mean is None else self.mean.nbytes)

    @property
    def arrays(self) -> list[mx.array]:
        return [*self.exact.arrays, *self.body.arrays, *([] if self.mean is None else [self.mean])]


class CodedKVCache(KVCache):
    """Keys and values of one layer under one method.

    The rotation a codec uses is shared by all caches, like a weight, and is not part of `memory_bytes`.

    Args:
        config: Shapes, sink, window and seal_step.
        key_codec: None keeps keys as they come; so does value_codec for values.
    """

    def __init__(self, config: KVCacheConfig, key_codec: Codec | None, value_codec: Codec | None) -> None:
        self.config = config
        self._keys = _Side(config, key_codec)
        self._values = _Side(config, value_codec)

    # ------------------------------------------------------------------ writing
    def append_key(self, k: Any) -> None:
        """Append keys, (d,) or (n_kv_heads, n_tokens, d)."""
        self._keys.append(_tokens(k, self.config.n_kv_heads, self.config.head_dim, "key"))

    def append_value(self, v: Any) -> None:
        """Append values, (d_v,) or (n_kv_heads, n_tokens, d_v)."""
        assert self.config.value_head_dim is not None
        self._values.append(_tokens(v, self.config.n_kv_heads, self.config.value_head_dim, "value"))

    def extend_and_attend(self, k: Any, v: Any, q: Any, scale: float | None = None) -> mx.array:
        """Append k and v and attend with q; the new tokens see each other exactly and are sealed afterwards."""
        k = _tokens(k, self.config.n_kv_heads, self.config.head_dim, "key")
        assert self.config.value_head_dim is not None
        v = _tokens(v, self.config.n_kv_heads, self.config.value_head_dim, "value")
        q, shape = self._queries(q)  # before anything is appended, since it may be refused
        if k.shape[1] == 1:  # the newest token is in the window in any case
            self._keys.append(k)
            self._values.append(v)
            return self.attend(q, scale).reshape(shape)
        keys, values = k, v
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
        self._keys = _Side(self.config, self._keys.codec)
        self._values = _Side(self.config, self._values.codec)

    # ------------------------------------------------------------------ reading
    def attend(self, q: Any, scale: float | None = None) -> mx.array:
        """Attention output of the queries, in their type and shape.

        Args:
            q: (d,) or (n_q_heads, n_tokens, d); n_q_heads is a multiple of n_kv_heads. With n_tokens > 1 the queries
                are the last n_tokens positions and see only what stands before them.
            scale: Of the scores; 1 / sqrt(d) by default.
        """
        q, shape = self._queries(q)
        if not len(self._keys):
            raise ValueError("This cache is empty, so there is nothing to attend to; append keys and values first.")
        if len(self._keys) != len(self._values):
            raise ValueError(
                f"This cache holds {len(self._keys)} keys and {len(self._values)} values; append as many of each."
            )
        if q.shape[1] == 1 and self._keys.body.length:
            return self._attend_coded(q, scale).reshape(shape)
        return _fused_attention(q, self._keys.decoded(), self._values.decoded(), scale).reshape(shape)

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
        assert keys.mean is not None
        assert values.mean is not None
        n_q_heads, _, d = q.shape
        if scale is None:
            scale = d**-0.5
        # Queries that share a key/value head become its rows: (n_kv_heads, n_q_heads / n_kv_heads, d)
        rows = q.reshape(self.config.n_kv_heads, -1, d).astype(mx.float32) * scale
        (exact_keys,), (exact_values,) = keys.exact.view(), values.exact.view()
        n_exact = exact_keys.shape[1]
        # The body's keys were coded without their mean: its product with the query is the same for all of them.
        body = keys.codec.scores(rows, keys.body.view()) + rows @ keys.mean.swapaxes(-1, -2)
        exact = rows @ exact_keys.astype(mx.float32).swapaxes(-1, -2)
        # Softmax has no order, so sink and window stay side by side: (n_kv_heads, rows, n_exact + n_body)
        weights = mx.softmax(mx.concatenate([exact, body], axis=-1), axis=-1)
        exact, body = weights[..., :n_exact], weights[..., n_exact:]
        out = exact @ exact_values.astype(mx.float32)
        out = out + values.codec.combine(body, values.body.view())
        out = out + body.sum(axis=-1, keepdims=True) * values.mean
        return out.reshape(n_q_heads, 1, -1).astype(q.dtype)

    def decoded(self) -> tuple[mx.array, mx.array]:
        """All keys and values in order, unpacked: (n_kv_heads, n_tokens, d) each."""
        return self._keys.decoded(), self._values.decoded()

    def memory_bytes(self) -> int:
        """Nbytes of every array held for tokens, spare capacity included."""
        return self._keys.nbytes + self._values.nbytes

    def uncompressed_bytes(self) -> int:
        """What the method fp16 would hold for as many tokens of the same type, spare capacity included.

        `fp16` keeps arrays in the type they come in, which is float32 where a model is computed in float32.
        """
        per_token = self.config.n_kv_heads * (self.config.head_dim + (self.config.value_head_dim or 0))
        return capacity(len(self)) * per_token * self._keys.itemsize

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays held, to be evaluated together."""
        return self._keys.arrays + self._values.arrays

    def __len__(self) -> int:
        return min(len(self._keys), len(self._values))


def _tokens(x: Any, n_kv_heads: int, d: int, what: str) -> mx.array:
    """Keys or values as (n_kv_heads, n_tokens, d); a single vector becomes one head's one token."""
    tokens = _array(x)
    if tokens.ndim == 1:
        tokens = tokens[None, None]
    if tokens.ndim != 3 or tokens.shape[0] != n_kv_heads or tokens.shape[2] != d or not tokens.shape[1]:
        raise ValueError(
            f"A {what} of this cache is ({n_kv_heads}, n_tokens, {d}), or ({d},) for one head's one token; "
            f"this one is {tokens.shape}."
        )
    return tokens


def _array(x: Any) -> mx.array:
    array: mx.array = x if isinstance(x, mx.array) else mx.array(x)
    return array


def _fused_attention(q: mx.array, keys: mx.array, values: mx.array, scale: float | None) -> mx.array:
    """Causal attention on unpacked arrays, (n_q_heads, n_tokens, d_v)."""
    mask = "causal" if q.shape[1] > 1 else None
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out: mx.array = mx.fast.scaled_dot_product_attention(q[None], keys[None], values[None], scale=scale, mask=mask)
    return out[0]
