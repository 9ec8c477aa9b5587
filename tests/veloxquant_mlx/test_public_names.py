"""What the public library of this name calls its things is found here under the same names."""

from __future__ import annotations

import mlx.core as mx

import veloxquant_mlx


def test_every_public_name_is_there() -> None:
    for name in veloxquant_mlx.__all__:
        assert getattr(veloxquant_mlx, name) is not None


def test_code_written_for_the_public_library_runs() -> None:
    from veloxquant_mlx import KVCacheConfig
    from veloxquant_mlx.cache.base import KVCacheFactory
    from veloxquant_mlx.memory import BlockPoolAllocator, PoolConfig, PooledKVCache

    pool = BlockPoolAllocator(PoolConfig(block_size=16, n_blocks=64))
    inner = KVCacheFactory.create(KVCacheConfig(method="turboquant_mse", head_dim=128, bit_width_inlier=4))
    cache = PooledKVCache(inner, pool, owner=7, format="int4")
    for _ in range(40):
        cache.append_key(mx.ones((128,), dtype=mx.float16))
        cache.append_value(mx.ones((128,), dtype=mx.float16))
    assert cache.attend(mx.ones((128,), dtype=mx.float16)).shape == (128,)
    assert cache.n_blocks_held() == 6
    assert [block.format for block in pool.blocks_for(7)] == ["int4"] * 6
    cache.release()
    assert pool.stats.blocks_in_use() == 0
