"""PoolBackedKVCache: mlx-lm's answers, with every growth of the buffers in the pool's books."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models import cache as _mlx_lm_cache
from mlx_lm.models import llama

from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig
from veloxquant_mlx.memory.pool_backed_cache import PoolBackedKVCache, build_pooled_caches

mlx_lm_cache: Any = _mlx_lm_cache  # it has no type information
PROMPT = mx.array([(7 * i + 3) % 61 for i in range(37)])


@pytest.fixture(scope="module")
def model() -> Any:
    mx.random.seed(1)
    tiny = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=32,
            num_hidden_layers=3,
            intermediate_size=48,
            num_attention_heads=4,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            vocab_size=61,
        )
    )
    mx.eval(tiny.parameters())
    return tiny


def pool_of(n_blocks: int = 512, **options: Any) -> BlockPoolAllocator:
    return BlockPoolAllocator(PoolConfig(n_blocks=n_blocks, **options))


def greedy(model: Any, caches: list[Any], n: int = 40) -> list[int]:
    return [int(token) for token, _ in generate_step(PROMPT, model, max_tokens=n, prompt_cache=caches)]


def kv(n_tokens: int, seed: int = 0) -> tuple[mx.array, mx.array]:
    key = mx.random.key(seed)
    return mx.random.normal((1, 2, n_tokens, 8), key=key), mx.random.normal((1, 2, n_tokens, 4), key=key)


def test_a_model_answers_as_with_its_own_cache(model: Any) -> None:
    expected = greedy(model, mlx_lm_cache.make_prompt_cache(model))
    pool = pool_of()
    caches = build_pooled_caches(model, pool, owner=1, step=16)
    assert greedy(model, caches) == expected
    assert len(caches) == 3
    assert len(set(expected)) > 1
    # 37 + 40 tokens (the last one is not fed back) in buffers of 16-token steps: 5 blocks, K and V, 3 layers
    assert pool.stats.blocks_in_use() == 5 * 2 * 3


def test_the_buffer_is_charged_before_its_tokens_and_fragmentation_follows_them() -> None:
    pool = pool_of()
    cache = PoolBackedKVCache(pool, owner=1, step=64)
    keys, values = kv(20)
    got_k, got_v = cache.update_and_fetch(keys, values)
    assert mx.array_equal(got_k, keys)
    assert mx.array_equal(got_v, values)
    assert [b.n_used for b in pool.blocks_for(1)] == [16, 4, 0, 0] * 2
    assert pool.stats.fragmentation() == 2 / 512
    cache.update_and_fetch(*kv(12, seed=1))
    assert [b.n_used for b in pool.blocks_for(1)] == [16, 16, 0, 0] * 2
    cache.update_and_fetch(*kv(33, seed=2))
    used = {stream: [b.n_used for b in pool.blocks_for(1) if b.stream == stream] for stream in "kv"}
    assert used == {"k": [16, 16, 16, 16, 1, 0, 0, 0], "v": [16, 16, 16, 16, 1, 0, 0, 0]}
    assert (cache.offset, cache.size(), cache.nbytes) == (65, 65, 128 * 2 * (8 + 4) * 4)


def test_the_step_is_256_or_a_larger_block() -> None:
    assert PoolBackedKVCache(pool_of()).step == 256
    assert PoolBackedKVCache(pool_of(block_size=300)).step == 300
    for bad in (0, -1, 1.5, True):
        step: Any = bad
        with pytest.raises(ValueError, match="step must be"):
            PoolBackedKVCache(pool_of(), step=step)


@pytest.mark.parametrize("step", [1, 7, 16, 100])
def test_any_step_stores_the_same(step: int) -> None:
    pool = pool_of(2048)
    stock, ours = mlx_lm_cache.KVCache(), PoolBackedKVCache(pool, step=step)
    for i, n in enumerate((1, 30, 1, 1, 64, 5)):
        if i == 3:
            assert stock.trim(9) == ours.trim(9) == 9
        for a, b in zip(stock.update_and_fetch(*kv(n, i)), ours.update_and_fetch(*kv(n, i)), strict=True):
            assert mx.array_equal(a, b)
        mask = {"N": 4, "return_array": True, "window_size": None}
        assert mx.array_equal(stock.make_mask(**mask), ours.make_mask(**mask))
        capacity = ours.keys.shape[2]
        assert pool.stats.blocks_in_use() == 2 * -(-capacity // 16)
        assert sum(b.n_used for b in pool.blocks_for(-1)) == 2 * ours.offset


def test_trim_keeps_the_buffer_and_so_its_blocks() -> None:
    pool = pool_of()
    cache = PoolBackedKVCache(pool, step=64)
    cache.update_and_fetch(*kv(40))
    assert cache.is_trimmable()
    assert cache.trim(30) == 30
    assert [b.n_used for b in pool.blocks_for(-1)] == [10, 0, 0, 0] * 2
    assert cache.trim(99) == 10
    assert (cache.offset, pool.stats.blocks_in_use(), pool.stats.fragmentation()) == (0, 8, 0.0)


@pytest.mark.parametrize(("n_blocks", "separate_kv"), [(7, True), (7, False)])
def test_an_exhausted_pool_changes_nothing(n_blocks: int, separate_kv: bool) -> None:
    pool = pool_of(n_blocks, separate_kv=separate_kv)  # 4 for keys and 3 for values, or 7 for both
    cache = PoolBackedKVCache(pool, step=32)
    keys, values = kv(20)
    cache.update_and_fetch(keys, values)
    with pytest.raises(BlockPoolExhaustedError):
        cache.update_and_fetch(*kv(13, seed=1))
    assert (cache.offset, pool.stats.blocks_in_use()) == (20, 4)
    assert mx.array_equal(cache.keys_and_values()[0], keys)
    cache.update_and_fetch(*kv(12, seed=1))
    assert cache.offset == 32


def test_arrays_that_do_not_fit_the_buffer_cost_no_blocks() -> None:
    pool = pool_of()
    cache = PoolBackedKVCache(pool, step=16)
    cache.update_and_fetch(*kv(16))
    with pytest.raises(ValueError, match="concatenate"):
        cache.update_and_fetch(mx.zeros((1, 3, 1, 8)), mx.zeros((1, 3, 1, 4)))
    assert (cache.offset, pool.stats.blocks_in_use()) == (16, 2)


def test_release_frees_all_layers_of_the_owner(model: Any) -> None:
    pool = pool_of()
    caches, others = build_pooled_caches(model, pool, 1, step=16), build_pooled_caches(model, pool, 2, step=16)
    expected = greedy(model, caches, 8)
    assert greedy(model, others, 8) == expected
    caches[0].release()
    assert pool.blocks_for(1) == []
    assert pool.stats.blocks_in_use() == len(pool.blocks_for(2)) == 3 * 2 * 3
    caches[1].release()  # nothing left to free
    # Used on, every layer is charged for its growth only: from 48 to 64 tokens.
    for cache in caches:
        n = 49 - cache.offset
        cache.update_and_fetch(mx.zeros((1, 2, n, 8)), mx.zeros((1, 2, n, 8)))
    assert [b.n_used for b in pool.blocks_for(1)] == [1] * 2 * 3


def test_a_deep_copy_shares_the_pool_and_is_charged_for_growth_only() -> None:
    pool = pool_of()
    cache = PoolBackedKVCache(pool, owner=4, step=32)
    keys, values = kv(20)
    cache.update_and_fetch(keys, values)
    twin = copy.deepcopy([cache])[0]
    assert (twin.pool, twin.owner, twin.step, twin.offset) == (pool, 4, 32, 20)
    assert pool.stats.blocks_in_use() == 4
    twin.update_and_fetch(*kv(20, seed=1))
    assert pool.stats.blocks_in_use() == 8
    assert [b.n_used for b in pool.blocks_for(4)][4:] == [8, 0] * 2
    assert cache.offset == 20
    assert mx.array_equal(cache.keys_and_values()[0], keys)


def test_state_can_be_moved_to_another_cache_and_is_charged() -> None:
    pool = pool_of()
    first, second = PoolBackedKVCache(pool, 1, 32), PoolBackedKVCache(pool, 2, 32)
    keys, values = kv(20)
    first.update_and_fetch(keys, values)
    second.state = first.state
    assert second.offset == 20
    assert [b.n_used for b in pool.blocks_for(2)] == [16, 4] * 2
    second.state = kv(5, seed=1)
    assert (second.offset, [b.n_used for b in pool.blocks_for(2)]) == (5, [5, 5])
    with pytest.raises(TypeError, match="needs its pool"):
        PoolBackedKVCache.from_state(first.state)
    small = PoolBackedKVCache(pool_of(3), 1, 32)
    with pytest.raises(BlockPoolExhaustedError):
        small.state = first.state
    assert (small.empty(), small.pool.stats.blocks_in_use()) == (True, 0)


def test_layers_with_a_cache_of_another_kind_keep_it() -> None:
    class Mixed:
        def make_cache(self) -> list[Any]:
            return [mlx_lm_cache.KVCache(), mlx_lm_cache.RotatingKVCache(max_size=32)]

    plain, sliding = build_pooled_caches(Mixed(), pool_of(), owner=1)
    assert isinstance(plain, PoolBackedKVCache)
    assert type(sliding) is mlx_lm_cache.RotatingKVCache


def test_caches_merge_into_mlx_lms_batch() -> None:
    pool = pool_of()
    caches = [PoolBackedKVCache(pool, owner) for owner in (1, 2)]
    for n, cache in zip((5, 9), caches, strict=True):
        cache.update_and_fetch(*kv(n))
    batch = PoolBackedKVCache.merge(caches)
    assert batch.keys.shape[:3] == (2, 2, 9)
