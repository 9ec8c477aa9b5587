"""Every method through the same interface: sizes, types, odd data, trim, memory, and what it costs in accuracy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.veloxquant_mlx.cache.test_coded_cache import attention, tokens
from veloxquant_mlx.cache import METHODS, KVCacheConfig, KVCacheFactory
from veloxquant_mlx.cache.coded_cache import CodedKVCache

CODED = [method for method, row in METHODS.items() if row.bits]
STANDALONE = [method for method in CODED if method != "affine"]
HEAD_SIZES = [64, 80, 96, 128, 192, 256]


def make(method: str, bits: int = 8, heads: int = 2, d: int = 64, **sizes: Any) -> CodedKVCache:
    return KVCacheFactory.create(
        KVCacheConfig(method=method, head_dim=d, n_kv_heads=heads, key_bits=bits, value_bits=bits, **sizes)
    )


def error(out: mx.array, exact: np.ndarray) -> float:
    return float(np.linalg.norm(np.array(out.astype(mx.float32)) - exact) / np.linalg.norm(exact))


# Relative error of the attention output at 8 bits. The signs of QJL still err by 7 % of a key's squared length there.
AT_8_BITS = {method: 0.3 if method == "qjl" else 0.03 for method in CODED}


@pytest.mark.parametrize("method", CODED)
@pytest.mark.parametrize("d", HEAD_SIZES)
@pytest.mark.parametrize("repeats", [1, 4])
def test_attention_is_right_for_every_head_size_and_grouping(method: str, d: int, repeats: int) -> None:
    k, v, q = tokens(200, 2, d, 1) + 0.5, tokens(200, 2, d, 2) - 1, tokens(1, 2 * repeats, d, 3)
    cache = make(method, d=d)
    cache.append(mx.array(k), mx.array(v))
    out = cache.attend(mx.array(q))
    assert out.shape == q.shape
    assert error(out, attention(q, k, v)) < AT_8_BITS[method]


@pytest.mark.parametrize("method", CODED)
def test_every_number_of_bits_works_and_more_are_better(method: str) -> None:
    k, v, q = tokens(300, seed=1), tokens(300, seed=2), tokens(1, 6, seed=3)
    errors = []
    for bits in METHODS[method].bits:
        cache = make(method, bits)
        cache.append(mx.array(k), mx.array(v))
        errors.append(error(cache.attend(mx.array(q)), attention(q, k, v)))
    assert errors[-1] < errors[0]
    assert all(later < earlier * 1.1 for earlier, later in pairwise(errors))


@pytest.mark.parametrize("method", CODED)
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_the_output_has_the_queries_type(method: str, dtype: mx.Dtype) -> None:
    k, v, q = (mx.array(tokens(n, seed=n)).astype(dtype) for n in (200, 201, 1))
    v = v[:, :200]
    cache = make(method)
    cache.append(k, v)
    out = cache.attend(q)
    assert out.dtype == dtype
    assert cache.decoded()[0].dtype == dtype
    exact = attention(*(np.array(x.astype(mx.float32)) for x in (q, k, v)))
    assert error(out, exact) < AT_8_BITS[method] + 0.03


@pytest.mark.parametrize("method", CODED)
def test_keys_and_values_may_differ_in_size(method: str) -> None:
    config = KVCacheConfig(method=method, head_dim=96, value_head_dim=64, n_kv_heads=2, key_bits=8, value_bits=8)
    cache = KVCacheFactory.create(config)
    k, v, q = tokens(250, 2, 96, 1), tokens(250, 2, 64, 2), tokens(1, 4, 96, 3)
    cache.append(mx.array(k), mx.array(v))
    assert error(cache.attend(mx.array(q)), attention(q, k, v)) < AT_8_BITS[method]


@pytest.mark.parametrize("method", CODED)
@pytest.mark.parametrize("fill", [0.0, -3.0])
def test_constant_vectors_stay_what_they_are(method: str, fill: float) -> None:
    cache = make(method, METHODS[method].bits[0])
    cache.append(mx.full((2, 300, 64), fill), mx.full((2, 300, 64), fill))
    np.testing.assert_allclose(np.array(cache.attend(mx.ones((2, 1, 64)))), fill, atol=1e-3)


@pytest.mark.parametrize("method", CODED)
def test_one_huge_channel_leaves_a_sensible_result(method: str) -> None:
    """A channel a thousand times larger than the others, as some models have."""
    k, v, q = tokens(300, seed=1), tokens(300, seed=2), tokens(1, 2, seed=3)
    k[..., 5] *= 1000
    q[..., 5] /= 1000
    cache = make(method, 5)
    cache.append(mx.array(k), mx.array(v))
    out = cache.attend(mx.array(q))
    assert np.isfinite(np.array(out)).all()
    assert np.abs(np.array(out)).max() <= np.abs(v).max() * 1.1


@pytest.mark.parametrize("method", CODED)
def test_very_long_vectors_do_not_overflow(method: str) -> None:
    """Norms beyond float16's range, from float32 or bfloat16 models."""
    k, v, q = tokens(200, seed=1) * 1e6, tokens(200, seed=2) * 1e6, tokens(1, 2, seed=3) / 1e6
    cache = make(method)
    cache.append(mx.array(k), mx.array(v))
    assert error(cache.attend(mx.array(q)), attention(q, k, v)) < AT_8_BITS[method]


@pytest.mark.parametrize("method", METHODS)
def test_a_single_token_gets_all_attention(method: str) -> None:
    cache = make(method)
    k, v = tokens(1, seed=1), tokens(1, seed=2)
    cache.append(mx.array(k), mx.array(v))
    np.testing.assert_allclose(np.array(cache.attend(mx.array(tokens(1, 4, seed=3)))), np.repeat(v, 2, 0), atol=0.05)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_with_nan_or_infinity_is_refused_and_changes_nothing(method: str, bad: float) -> None:
    cache = make(method, heads=1)
    good, broken = tokens(1, 1)[0, 0], tokens(1, 1)[0, 0]
    broken[7] = bad
    for given in (broken, mx.array(broken), mx.array(broken).astype(mx.bfloat16), broken.tolist()):
        with pytest.raises(ValueError, match="key has NaN or infinite numbers"):
            cache.append_key(given)
        with pytest.raises(ValueError, match="value has NaN or infinite numbers"):
            cache.append_value(given)
    assert cache.memory_bytes() == 0
    cache.append(mx.array(good), mx.array(good))
    assert len(cache) == 1


@pytest.mark.parametrize("method", METHODS)
def test_the_single_vector_interface_equals_the_one_for_chunks(method: str) -> None:
    k, v, q = tokens(150, 1, 128, 1), tokens(150, 1, 128, 2), tokens(1, 1, 128, 3)
    single, bulk = make(method, heads=1, d=128), make(method, heads=1, d=128)
    for i in range(150):
        single.append_key(mx.array(k[0, i]))
        single.append_value(v[0, i])
        assert len(single) == i + 1
    bulk.append(mx.array(k), mx.array(v))
    a, b = np.array(single.attend(mx.array(q[0, 0]))), np.array(bulk.attend(mx.array(q)))[0, 0]
    assert a.shape == (128,)
    np.testing.assert_allclose(a, b, atol=AT_8_BITS.get(method, 0.001))
    if method != "spectral":  # which measures its axes on the tokens that are there when the first ones are coded
        assert single.memory_bytes() == bulk.memory_bytes()


@pytest.mark.parametrize("method", STANDALONE)
@pytest.mark.parametrize("kept", [5, 30, 100, 290])
def test_after_trim_and_append_it_equals_a_cache_that_never_held_the_rest(method: str, kept: int) -> None:
    """Cut within sink, body and window; each method within its own error."""
    k, v, q = tokens(500, seed=1), tokens(500, seed=2), tokens(1, 4, seed=3)
    cache, never = make(method), make(method)
    cache.append(mx.array(k[:, :300]), mx.array(v[:, :300]))
    assert cache.trim(300 - kept) == 300 - kept
    end = kept + 200
    cache.append(mx.array(k[:, kept:end]), mx.array(v[:, kept:end]))
    never.append(mx.array(k[:, :end]), mx.array(v[:, :end]))
    exact = attention(q, k[:, :end], v[:, :end])
    assert len(cache) == len(never) == end
    assert error(cache.attend(mx.array(q)), exact) < error(never.attend(mx.array(q)), exact) + AT_8_BITS[method] / 3


@pytest.mark.parametrize("method", METHODS)
def test_trimming_everything_leaves_an_empty_cache(method: str) -> None:
    cache = make(method)
    cache.append(mx.array(tokens(250)), mx.array(tokens(250)))
    assert cache.trim(1000) == 250
    assert (len(cache), cache.memory_bytes()) == (0, 0)
    with pytest.raises(ValueError, match="empty"):
        cache.attend(mx.zeros((2, 1, 64)))


@pytest.mark.parametrize("method", METHODS)
def test_memory_bytes_is_what_mlx_says(method: str) -> None:
    """MLX's own counter agrees within 3 % for a layer of 4,096 tokens."""
    k, v = mx.array(tokens(4096, 8, 128, 1)), mx.array(tokens(4096, 8, 128, 2))
    make(method, 4, heads=8, d=128).append(k, v)  # what all caches share is made now
    mx.eval(k, v)
    before = mx.get_active_memory()
    cache = make(method, 4, heads=8, d=128)
    for i in range(0, 4096, 512):
        cache.append(k[:, i : i + 512], v[:, i : i + 512])
        mx.eval(cache.arrays)
    grown = mx.get_active_memory() - before
    assert abs(grown - cache.memory_bytes()) <= 0.03 * cache.memory_bytes()


@pytest.mark.parametrize("method", CODED)
def test_coded_tokens_take_what_their_codec_says(method: str) -> None:
    cache = make(method, 4)
    cache.append(mx.array(tokens(400)), mx.array(tokens(400)))
    mx.eval(cache.arrays)
    exact = 2 * 2 * 64 * 4  # keys and values of two heads in float32
    for stream in ("k", "v"):
        sealed = cache.sealed(stream)
        assert sealed is not None
        assert sealed.n_tokens == (400 if method == "affine" else 288)
    sealed_k, sealed_v = cache.sealed("k"), cache.sealed("v")
    assert sealed_k is not None
    assert sealed_v is not None
    held = cache.memory_bytes() - cache.constant_bytes()
    coded = sealed_k.n_tokens * (sealed_k.bytes_per_token + sealed_v.bytes_per_token)
    assert held == coded + (400 - sealed_k.n_tokens) * exact


def test_affine_codes_what_mlx_lm_codes() -> None:
    """The baseline is mlx-lm's own quantized cache, number for number."""
    from mlx_lm.models.cache import QuantizedKVCache

    k, v = mx.array(tokens(100, 2, 128, 1)), mx.array(tokens(100, 2, 128, 2))
    ours, theirs = make("affine", 4, d=128), QuantizedKVCache(group_size=64, bits=4)
    ours.append(k, v)
    coded, _ = theirs.update_and_fetch(k[None], v[None])
    codes, scales, biases = (part[0] for part in coded)
    decoded = mx.dequantize(codes, scales, biases, group_size=64, bits=4)
    assert mx.array_equal(ours.decoded()[0], decoded)
