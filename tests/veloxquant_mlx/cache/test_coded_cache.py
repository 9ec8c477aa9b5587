"""The storage-owning cache against attention in float64, for every method it has."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veloxquant_mlx.cache import KVCacheConfig, KVCacheFactory
from veloxquant_mlx.cache.coded_cache import CodedKVCache


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention in float64: q (n_q_heads, n, d), k and v (n_kv_heads, n_all, d)."""
    repeats = q.shape[0] // k.shape[0]
    k, v = np.repeat(k, repeats, 0).astype(np.float64), np.repeat(v, repeats, 0).astype(np.float64)
    scores = q.astype(np.float64) @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    n, n_all = scores.shape[1:]
    late = np.arange(n_all)[None] > np.arange(n_all - n, n_all)[:, None]
    scores = np.where(late, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out: np.ndarray = (weights / weights.sum(-1, keepdims=True)) @ v
    return out


def tokens(n: int, heads: int = 2, d: int = 64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((heads, n, d)).astype(np.float32)


def make(method: str = "turboquant_mse", bits: int = 8, heads: int = 2, d: int = 64, **sizes: int) -> CodedKVCache:
    return KVCacheFactory.create(
        KVCacheConfig(method=method, head_dim=d, n_kv_heads=heads, key_bits=bits, value_bits=bits, **sizes)
    )


# Relative error of the attention output on Gaussian data; 8 bits are near exact, 2 bits are rough by nature.
TOLERANCE = {8: 0.02, 4: 0.15, 2: 0.5}


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("bits", TOLERANCE)
def test_attention_is_right_through_sink_body_and_window(heads: int, repeats: int, bits: int) -> None:
    k, v = tokens(400, heads, seed=1) + 0.5, tokens(400, heads, seed=2) - 1.0
    q = tokens(1, heads * repeats, seed=3)
    cache = make(bits=bits, heads=heads)
    cache.append(mx.array(k), mx.array(v))
    assert len(cache) == 400
    out, exact = np.array(cache.attend(mx.array(q))), attention(q, k, v)
    assert out.shape == q.shape
    assert np.linalg.norm(out - exact) / np.linalg.norm(exact) < TOLERANCE[bits]


def test_fp16_equals_attention_in_float64() -> None:
    k, v, q = tokens(300, seed=1), tokens(300, seed=2), tokens(5, 6, seed=3)
    cache = make("fp16")
    cache.append(mx.array(k), mx.array(v))
    np.testing.assert_allclose(np.array(cache.attend(mx.array(q))), attention(q, k, v), atol=1e-5)


def test_tokens_in_sink_and_window_are_exact() -> None:
    """Until something is sealed, the method changes nothing."""
    k, v, q = tokens(112, seed=1), tokens(112, seed=2), tokens(1, 2, seed=3)
    cache = make(bits=1)
    cache.append(mx.array(k), mx.array(v))
    np.testing.assert_allclose(np.array(cache.attend(mx.array(q))), attention(q, k, v), atol=1e-5)
    assert np.array_equal(np.array(cache.decoded()[0]), k)


def test_one_token_at_a_time_is_the_same_as_all_at_once() -> None:
    k, v, q = tokens(230, seed=1), tokens(230, seed=2), tokens(1, 2, seed=3)
    single, bulk = make(sink=4, window=16, seal_step=16), make(sink=4, window=16, seal_step=16)
    for i in range(230):
        single.append_key(mx.array(k[:, i : i + 1]))
        single.append_value(mx.array(v[:, i : i + 1]))
    bulk.append(mx.array(k), mx.array(v))
    a, b = np.array(single.attend(mx.array(q))), np.array(bulk.attend(mx.array(q)))
    np.testing.assert_allclose(a, b, atol=0.02)
    assert single.memory_bytes() == bulk.memory_bytes()


def test_a_chunk_sees_itself_exactly_before_it_is_sealed() -> None:
    k, v, q = tokens(300, seed=1), tokens(300, seed=2), tokens(300, 2, seed=3)
    cache = make(bits=1)
    out = cache.extend_and_attend(mx.array(k), mx.array(v), mx.array(q))
    np.testing.assert_allclose(np.array(out), attention(q, k, v), atol=1e-5)
    assert not np.allclose(np.array(cache.decoded()[0]), k, atol=0.1)  # and it is sealed now


def test_several_queries_see_only_what_stands_before_them() -> None:
    k, v, q = tokens(200, seed=1), tokens(200, seed=2), tokens(150, 4, seed=3)
    cache = make(bits=8)
    cache.append(mx.array(k), mx.array(v))
    np.testing.assert_allclose(np.array(cache.attend(mx.array(q))), attention(q, k, v), atol=0.05)


def test_the_single_vector_interface() -> None:
    cache = make(bits=4, heads=1, d=128)
    for k, v in zip(tokens(150, 1, 128, 1)[0], tokens(150, 1, 128, 2)[0], strict=True):
        cache.append_key(mx.array(k))
        cache.append_value(v)  # NumPy arrays are as good
    out = cache.attend(mx.array(tokens(1, 1, 128, 3)[0, 0]))
    assert out.shape == (128,)
    assert np.isfinite(np.array(out)).all()


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
@pytest.mark.parametrize("method", ["fp16", "turboquant_mse"])
def test_the_output_has_the_queries_type(method: str, dtype: mx.Dtype) -> None:
    cache = make(method, bits=4)
    cache.append(mx.array(tokens(200, seed=1)).astype(dtype), mx.array(tokens(200, seed=2)).astype(dtype))
    out = cache.attend(mx.array(tokens(1, 2, seed=3)).astype(dtype))
    assert out.dtype == dtype
    exact = attention(tokens(1, 2, seed=3), tokens(200, seed=1), tokens(200, seed=2))
    assert np.linalg.norm(np.array(out.astype(mx.float32)) - exact) / np.linalg.norm(exact) < 0.16


def test_keys_and_values_may_differ_in_size() -> None:
    cache = KVCacheFactory.create(KVCacheConfig(head_dim=96, value_head_dim=64, n_kv_heads=2, key_bits=8, value_bits=8))
    k, v, q = tokens(250, 2, 96, 1), tokens(250, 2, 64, 2), tokens(1, 2, 96, 3)
    cache.append(mx.array(k), mx.array(v))
    np.testing.assert_allclose(np.array(cache.attend(mx.array(q))), attention(q, k, v), atol=0.05)


@pytest.mark.parametrize("fill", [0.0, 3.0])
def test_constant_vectors_give_finite_results(fill: float) -> None:
    cache = make(bits=2)
    cache.append(mx.full((2, 300, 64), fill), mx.full((2, 300, 64), fill))
    np.testing.assert_allclose(np.array(cache.attend(mx.ones((2, 1, 64)))), fill, atol=1e-3)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(0, 160), trims=st.lists(st.integers(0, 170), max_size=3), more=st.integers(1, 120))
def test_after_trim_and_append_it_equals_a_cache_that_never_held_the_rest(n: int, trims: list[int], more: int) -> None:
    """Across all seams: window, sealed body, sink."""
    k, v, q = tokens(300, seed=1), tokens(300, seed=2), tokens(1, 2, seed=3)
    cache, length = make(sink=8, window=16, seal_step=16), n
    if n:
        cache.append(mx.array(k[:, :n]), mx.array(v[:, :n]))
    for trim in trims:
        assert cache.trim(trim) == min(trim, length)
        length -= min(trim, length)
        assert len(cache) == length
    cache.append(mx.array(k[:, length : length + more]), mx.array(v[:, length : length + more]))
    length += more
    np.testing.assert_allclose(
        np.array(cache.attend(mx.array(q))), attention(q, k[:, :length], v[:, :length]), atol=0.03
    )


@pytest.mark.parametrize("method", ["fp16", "turboquant_mse"])
def test_a_long_answer_taken_back_gives_its_memory_back(method: str) -> None:
    """The panel said of a chat whose long answer was asked for again that it was twenty times larger than fp16."""
    cache, short = make(method), make(method)
    cache.append(mx.array(tokens(1100)), mx.array(tokens(1100)))
    cache.trim(1040)
    short.append(mx.array(tokens(60)), mx.array(tokens(60)))
    assert cache.memory_bytes() <= short.memory_bytes() * 1.1


def test_without_a_sink_the_whole_window_can_be_trimmed() -> None:
    k, v, q = tokens(200, seed=1), tokens(200, seed=2), tokens(1, 2, seed=3)
    cache = make(sink=0)
    cache.append(mx.array(k), mx.array(v))
    cache.trim(150)
    np.testing.assert_allclose(np.array(cache.attend(mx.array(q))), attention(q, k[:, :50], v[:, :50]), atol=0.05)
    assert cache.decoded()[0].shape == (2, 50, 64)
    out = cache.extend_and_attend(mx.array(k[:, 50:51]), mx.array(v[:, 50:51]), mx.array(q))
    np.testing.assert_allclose(np.array(out), attention(q, k[:, :51], v[:, :51]), atol=0.05)


def test_queries_of_the_wrong_shape_are_refused_before_anything_is_appended() -> None:
    cache = make(heads=2)
    for wrong in (mx.zeros((3, 1, 64)), mx.zeros((2, 1, 32)), mx.zeros((2, 64))):
        with pytest.raises(ValueError, match="Queries of this cache"):
            cache.extend_and_attend(mx.zeros((2, 1, 64)), mx.zeros((2, 1, 64)), wrong)
    assert len(cache) == 0


def test_reset_gives_all_memory_back() -> None:
    cache = make()
    cache.append(mx.array(tokens(300)), mx.array(tokens(300)))
    cache.reset()
    assert (len(cache), cache.memory_bytes()) == (0, 0)


@pytest.mark.parametrize(("method", "bits"), [("fp16", 4), ("turboquant_mse", 4), ("turboquant_mse", 3)])
def test_memory_bytes_is_what_mlx_says(method: str, bits: int) -> None:
    """MLX's own counter agrees within 3 % for a layer of 4,096 tokens."""
    k, v = mx.array(tokens(4096, 8, 128, 1)), mx.array(tokens(4096, 8, 128, 2))
    cache = make(method, bits, heads=8, d=128)
    mx.eval(k, v)
    before = mx.get_active_memory()
    for i in range(0, 4096, 512):
        cache.append(k[:, i : i + 512], v[:, i : i + 512])
        mx.eval(cache.arrays)
    grown = mx.get_active_memory() - before
    assert abs(grown - cache.memory_bytes()) <= 0.03 * cache.memory_bytes()


@pytest.mark.parametrize("n", [1, 64, 65, 512, 513, 700])
def test_uncompressed_bytes_is_what_fp16_holds(n: int) -> None:
    fp16, coded = make("fp16"), make()
    for cache in (fp16, coded):
        cache.append(mx.array(tokens(n)), mx.array(tokens(n)))
    assert coded.uncompressed_bytes() == fp16.memory_bytes() == fp16.uncompressed_bytes()


def test_wrong_shapes_are_refused_and_change_nothing() -> None:
    cache = make(heads=2, d=64)
    for wrong in (mx.zeros((3, 5, 64)), mx.zeros((2, 5, 32)), mx.zeros((64,)), mx.zeros((2, 0, 64)), mx.zeros((2, 64))):
        with pytest.raises(ValueError, match=r"\(2, n_tokens, 64\)"):
            cache.append_key(wrong)
    assert cache.memory_bytes() == 0


def test_an_empty_or_uneven_cache_says_what_is_missing() -> None:
    cache = make()
    with pytest.raises(ValueError, match="empty"):
        cache.attend(mx.zeros((2, 1, 64)))
    cache.append_key(mx.zeros((2, 1, 64)))
    with pytest.raises(ValueError, match="1 keys and 0 values"):
        cache.attend(mx.zeros((2, 1, 64)))
