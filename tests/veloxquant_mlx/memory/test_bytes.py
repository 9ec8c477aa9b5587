"""The pool's bytes: what blocks take in each format, a limit on their sum, and the caches' own count beside it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veloxquant_mlx.cache import METHODS, KVCacheConfig, KVCacheFactory
from veloxquant_mlx.cache.coded_cache import CodedKVCache
from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig
from veloxquant_mlx.memory.pool_backed_cache import PoolBackedKVCache
from veloxquant_mlx.memory.pooled_cache import PooledKVCache

BLOCK = 16


def tokens(n: int, heads: int = 2, d: int = 64) -> mx.array:
    return mx.array(np.random.default_rng(n).standard_normal((heads, n, d)).astype(np.float32))


def make(pool: BlockPoolAllocator, method: str, owner: int = 1) -> tuple[PooledKVCache, CodedKVCache]:
    inner = KVCacheFactory.create(KVCacheConfig(method=method, head_dim=64, n_kv_heads=2, key_bits=4))
    return PooledKVCache(inner, pool, owner), inner


def held(cache: CodedKVCache) -> int:
    """Bytes of the cache without room to spare, which only fp16 has: at most 256 tokens of it."""
    return cache.memory_bytes() - cache.spare_bytes()


def slack(cache: CodedKVCache, n_tokens: int) -> int:
    """What the pool may count more: of each stream the last block may be partly filled, and one partly coded."""
    exact = 2 * 64 * 4
    return 2 * 2 * BLOCK * exact if n_tokens else 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [1, 112, 113, 300, 2048])
def test_bytes_in_use_are_the_bytes_of_the_cache_rounded_up_to_blocks(method: str, n: int) -> None:
    pool = BlockPoolAllocator(PoolConfig(block_size=BLOCK))
    cache, inner = make(pool, method)
    for start in range(0, n, 100):
        k = tokens(min(100, n - start))
        cache.append(k, k)
    whole = n % BLOCK == 0
    assert 0 <= pool.bytes_in_use - held(inner) <= (0 if whole else slack(inner, n))
    cache.release()
    assert pool.bytes_in_use == 0


def test_blocks_are_renamed_when_all_their_tokens_are_coded() -> None:
    pool = BlockPoolAllocator(PoolConfig(block_size=BLOCK))
    cache, _ = make(pool, "turboquant_mse")
    cache.append(tokens(160), tokens(160))  # 16 sink, 64 coded, 80 window
    formats = [b.format for b in pool.blocks_for(1) if b.stream == "k"]
    assert formats == ["fp16"] + ["turboquant_mse-4"] * 4 + ["fp16"] * 5
    coded, exact = 2 * (32 + 2) * BLOCK, 2 * 64 * 4 * BLOCK
    mean = 2 * 64 * 4  # a float32 vector for each head, in the first block
    assert pool.bytes_by_format() == {"turboquant_mse-4": 2 * 4 * coded, "fp16": 2 * (6 * exact + mean)}
    assert pool.bytes_in_use == 2 * (4 * coded + 6 * exact + mean) == pool.stats.bytes_in_use


def test_a_name_given_for_the_blocks_stays_theirs() -> None:
    pool = BlockPoolAllocator(PoolConfig(block_size=BLOCK))
    inner = KVCacheFactory.create(KVCacheConfig(head_dim=64, n_kv_heads=2))
    cache = PooledKVCache(inner, pool, 1, format="mine")
    cache.append(tokens(300), tokens(300))
    assert {b.format for b in pool.blocks_for(1)} == {"mine"}
    assert 0 <= pool.bytes_in_use - held(inner) <= slack(inner, 300)


def test_a_limit_in_bytes_is_kept_and_compression_makes_room_under_it() -> None:
    exact = 2 * 64 * 4 * BLOCK * 2  # a K and a V block
    limit = 24 * exact
    room = {}
    for method in ("fp16", "turboquant_mse"):
        pool = BlockPoolAllocator(PoolConfig(block_size=BLOCK, max_bytes=limit))
        cache, inner = make(pool, method)
        while pool.can_allocate(1, 1, exact):
            cache.append(tokens(BLOCK), tokens(BLOCK))
            assert pool.bytes_in_use <= limit
        before = (len(cache), pool.bytes_in_use, inner.memory_bytes())
        with pytest.raises(BlockPoolExhaustedError, match=rf"{limit:,}.*max_bytes"):
            cache.append(tokens(BLOCK), tokens(BLOCK))
        assert (len(cache), pool.bytes_in_use, inner.memory_bytes()) == before
        assert pool.stats.peak_bytes_in_use <= limit
        room[method] = len(cache)
    assert room["fp16"] == 24 * BLOCK
    assert room["turboquant_mse"] > 5 * room["fp16"]


def test_room_for_all_layers_is_asked_for_in_bytes_too() -> None:
    pool = BlockPoolAllocator(PoolConfig(max_bytes=1000))
    assert pool.can_allocate(1, 1, 1000)
    assert not pool.can_allocate(1, 1, 1001)
    with pytest.raises(BlockPoolExhaustedError, match="1,001 bytes"):
        pool.require(1, 1, 1001)
    assert (pool.bytes_in_use, pool.stats.n_exhausted) == (0, 1)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_limit_is_a_whole_number_of_bytes(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"PoolConfig\.max_bytes"):
        PoolConfig(max_bytes=wrong)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=30)
@given(
    method=st.sampled_from(["fp16", "turboquant_mse", "spectral", "affine"]),
    steps=st.lists(st.tuples(st.sampled_from(["append", "trim", "release", "reset"]), st.integers(1, 180)), max_size=8),
)
def test_bytes_follow_whatever_is_done(method: str, steps: list[tuple[str, int]]) -> None:
    pool = BlockPoolAllocator(PoolConfig(block_size=BLOCK))
    cache, inner = make(pool, method)
    for act, n in steps:
        if act == "append":
            cache.append(tokens(n), tokens(n))
        elif act == "trim":
            cache.trim(n)
        else:
            getattr(cache, act)()
        if act == "release":
            assert pool.bytes_in_use == 0
        elif cache.n_blocks_held():
            assert 0 <= pool.bytes_in_use - held(inner) <= slack(inner, len(cache))
        by_hand = sum(b.n_bytes for b in pool.blocks_for(1))
        assert pool.bytes_in_use == by_hand == sum(pool.bytes_by_format().values())
    pool.free_all(1)
    assert pool.bytes_in_use == 0


def test_mlx_lms_plain_cache_is_counted_by_its_buffer() -> None:
    pool = BlockPoolAllocator(PoolConfig(block_size=BLOCK))
    cache = PoolBackedKVCache(pool, owner=3)
    cache.update_and_fetch(tokens(300)[None], tokens(300)[None])
    assert pool.bytes_in_use == cache.keys.nbytes + cache.values.nbytes
    cache.release()
    assert pool.bytes_in_use == 0
