"""Attention of several caches at once: the same operations on all of them, instead of the same ones for each.

Attending to a few hundred packed tokens takes some thirty small operations, and what they cost is mostly that there are
so many. A codec does not mind whose heads it is given: caches with the same codecs are put side by side along the axis
of heads, shorter ones filled up with zeros that no weight falls on.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from veloxquant_mlx.cache.coded_cache import CodedKVCache, coded_weight
from veloxquant_mlx.cache.softmax import LOG2_E, exp2_weights, wants_base_two
from veloxquant_mlx.quantizers.shared import shared

# Coded tokens of all caches together, the filling included, from which on taking them one by one is as fast: packed
# tokens are copied to stand side by side, and with many of them the operations themselves are what takes time.
MANY = 16_384


def kin(cache: CodedKVCache) -> tuple[int, ...] | None:
    """What caches must have in common to attend together; None where this one attends by itself.

    It does where nothing is coded yet, or where forks hold its beginning in pieces.
    """
    keys, values = cache.sides
    if keys.codec is None or values.codec is None or not keys.body.length or not values.body.length:
        return None
    if keys.base or values.base or keys.lent or values.lent or not keys.exact.length or keys.mean is None:
        return None
    if keys.body.length != values.body.length or keys.exact.length != values.exact.length:
        return None
    return id(keys.codec), id(values.codec), cache.config.n_kv_heads


def pays(caches: Sequence[CodedKVCache]) -> bool:
    """Whether these, all of one kin, are faster together."""
    lengths = [cache.sides[0].body.length for cache in caches]
    return len(caches) > 1 and max(lengths) * len(caches) <= MANY


def attend_together(caches: Sequence[CodedKVCache], q: mx.array, scale: float | None = None) -> mx.array:
    """One query position of each cache, as `CodedKVCache.attend` would have it.

    Args:
        caches: G of one kin.
        q: (G, n_q_heads, 1, d).
        scale: Of the scores; 1 / sqrt(d) by default.

    Returns:
        (G, n_q_heads, 1, d_v).
    """
    n_caches, n_q_heads, _, d = q.shape
    heads = caches[0].config.n_kv_heads
    keys, values = zip(*(cache.sides for cache in caches), strict=True)
    key_codec, value_codec = keys[0].codec, values[0].codec
    assert key_codec is not None
    assert value_codec is not None
    n_exact = [side.exact.length for side in keys]
    n_coded = [side.body.length for side in keys]
    most = max(n_exact)
    base_two = wants_base_two(n_q_heads * (most + max(n_coded)))  # as each would by itself
    scale = (d**-0.5 if scale is None else scale) * (LOG2_E if base_two else 1.0)
    # (n_kv_heads * G, queries of one key/value head, d): all caches' first heads, then all their second ones.
    rows = q.reshape(n_caches, heads, -1, d).swapaxes(0, 1).reshape(heads * n_caches, -1, d).astype(mx.float32) * scale
    coded_keys = tuple(_side_by_side(list(arrays)) for arrays in zip(*(side.body.arrays for side in keys), strict=True))
    coded_values = tuple(
        _side_by_side(list(arrays)) for arrays in zip(*(side.body.arrays for side in values), strict=True)
    )
    # Exact tokens are several times larger than packed ones, so each cache multiplies with its own where they are.
    exact_parts = [
        side.exact_floats() @ own.swapaxes(-1, -2) for own, side in zip(_one_by_one(rows, n_caches), keys, strict=True)
    ]  # (n_kv_heads, n_exact, m) each
    of_mean = rows @ _side_by_side([side.mean for side in keys]).swapaxes(-1, -2)  # see `exact_scores`
    scores = mx.concatenate(
        [_side_by_side(exact_parts).swapaxes(-1, -2) - of_mean, key_codec.scores(rows, coded_keys)], axis=-1
    )  # (n_kv_heads * G, m, n_exact + n_coded), each as of the longest cache
    if len(set(n_exact)) > 1 or len(set(n_coded)) > 1:
        scores = scores + shared(_Filling).bias(heads, tuple(n_exact), tuple(n_coded))
    weights, total = exp2_weights(scores) if base_two else (mx.softmax(scores, axis=-1), None)
    exact, coded = mx.split(weights, [most], axis=-1)
    out = value_codec.combine(coded, coded_values) + coded_weight(exact, total) * _side_by_side(
        [side.mean for side in values]
    )
    outs = [
        mx.addmm(one, of_exact[..., :n], side.exact_floats())
        for one, of_exact, n, side in zip(
            _one_by_one(out, n_caches), _one_by_one(exact, n_caches), n_exact, values, strict=True
        )
    ]  # (n_kv_heads, m, d_v) each
    out = mx.stack(outs)
    if total is not None:
        out = out / total.reshape(heads, n_caches, -1, 1).swapaxes(0, 1)
    return out.reshape(n_caches, n_q_heads, 1, -1).astype(q.dtype)


def _side_by_side(arrays: Sequence[mx.array | None]) -> mx.array:
    """Arrays (n_kv_heads, n_tokens, ...) as one, (n_kv_heads * G, n_tokens of the longest, ...), then zeros."""
    length = max(array.shape[1] for array in arrays if array is not None)
    parts: list[mx.array] = []
    for array in arrays:
        assert array is not None
        parts.append(array)
        if array.shape[1] < length:
            shape = (array.shape[0], length - array.shape[1], *array.shape[2:])
            parts.append(mx.broadcast_to(shared(_zero, array.dtype), shape))
    joined: mx.array = mx.concatenate(parts, axis=1)  # (n_kv_heads, G * length, ...)
    return joined.reshape(joined.shape[0] * len(arrays), length, *joined.shape[2:])


def _one_by_one(joined: mx.array, n_caches: int) -> list[mx.array]:
    """The inverse of `_side_by_side`: (n_kv_heads, ...) of each cache."""
    apart = joined.reshape(-1, n_caches, *joined.shape[1:])
    return [apart[:, i] for i in range(n_caches)]


def _zero(dtype: mx.Dtype) -> mx.array:
    return mx.zeros((), dtype)


class _Filling:
    """What is added to scores so that no weight falls on the zeros; one for all layers of a step."""

    def __init__(self) -> None:
        self._key: object = None
        self._bias = mx.array(0.0)

    def bias(self, heads: int, n_exact: tuple[int, ...], n_coded: tuple[int, ...]) -> mx.array:
        """(heads * G, 1, longest exact + longest coded): 0 where there is a token, minus infinity elsewhere."""
        if self._key != (heads, n_exact, n_coded):
            there = np.concatenate([np.arange(max(n)) < np.array(n)[:, None] for n in (n_exact, n_coded)], axis=1)
            bias = np.where(there, np.float32(0), np.float32(-np.inf))
            self._key, self._bias = (heads, n_exact, n_coded), mx.array(np.tile(bias, (heads, 1))[:, None])
        return self._bias
