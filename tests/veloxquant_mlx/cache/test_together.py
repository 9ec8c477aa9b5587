"""Caches that attend together give what each gives by itself."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from veloxquant_mlx import KVCacheConfig, KVCacheFactory
from veloxquant_mlx.cache.coded_cache import CodedKVCache
from veloxquant_mlx.cache.together import MANY, attend_together, kin, pays

HEADS, QUERY_HEADS, D = 2, 6, 32


def filled(method: str, n_tokens: int, seed: int, bits: int = 4) -> CodedKVCache:
    cache = KVCacheFactory.create(
        KVCacheConfig(method=method, key_bits=bits, n_kv_heads=HEADS, head_dim=D, sink=4, window=16, seal_step=8)
    )
    k, v = (mx.random.normal((HEADS, n_tokens, D), key=mx.random.key(seed + i)) + 1.0 for i in range(2))
    cache.append(k, v)
    return cache


def alone(caches: Sequence[CodedKVCache], q: mx.array) -> mx.array:
    return mx.stack([cache.attend(row) for cache, row in zip(caches, q, strict=True)])


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("method", ["turboquant_mse", "turboquant_prod", "qjl", "polar"])
def test_caches_of_different_lengths_attend_as_each_does_by_itself(method: str, bits: int) -> None:
    caches = [filled(method, n, 10 * n, bits) for n in (40, 97, 41, 200)]
    assert len({kin(cache) for cache in caches}) == 1
    q = mx.random.normal((4, QUERY_HEADS, 1, D), key=mx.random.key(5))
    found, expected = attend_together(caches, q), alone(caches, q)
    assert found.shape == expected.shape
    assert np.allclose(np.array(found), np.array(expected), atol=2e-5)


def test_caches_of_one_length_and_a_scale_of_ones_own() -> None:
    caches = [filled("turboquant_mse", 80, seed) for seed in (1, 2)]
    q = mx.random.normal((2, QUERY_HEADS, 1, D), key=mx.random.key(6))
    expected = mx.stack([cache.attend(row, 0.3) for cache, row in zip(caches, q, strict=True)])
    assert np.allclose(np.array(attend_together(caches, q, 0.3)), np.array(expected), atol=2e-5)


def test_many_scores_take_the_fast_exponential() -> None:
    caches = [filled("turboquant_mse", n, n) for n in (900, 1_400)]
    q = mx.random.normal((2, QUERY_HEADS, 1, D), key=mx.random.key(7))
    assert np.allclose(np.array(attend_together(caches, q)), np.array(alone(caches, q)), atol=1e-3)


def test_what_attends_by_itself() -> None:
    coded = filled("turboquant_mse", 100, 1)
    assert kin(coded) is not None
    assert kin(filled("fp16", 100, 1)) is None  # nothing is coded
    assert kin(filled("affine", 100, 1)) is None  # nothing is exact, and there is no mean
    assert kin(filled("turboquant_mse", 10, 1)) is None  # nothing is coded yet
    coded.fork()
    assert kin(coded) is None  # its beginning is in pieces
    assert kin(filled("turboquant_mse", 100, 1)) != kin(filled("turboquant_mse", 100, 1, bits=2))
    assert kin(filled("spectral", 100, 1)) != kin(filled("spectral", 100, 2))  # bases of their own


def test_together_pays_for_several_short_ones() -> None:
    short = [filled("turboquant_mse", 100, seed) for seed in range(3)]
    assert pays(short)
    assert not pays(short[:1])
    assert not pays([*short, filled("turboquant_mse", MANY // 2, 9)])
