"""The block pool and the caches that take their blocks from it.

The pool and PooledKVCache need no MLX; PoolBackedKVCache and build_pooled_caches load it when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError, OwnerAlreadyActiveError
from veloxquant_mlx.memory.block_pool import AllocationStats, Block, BlockPoolAllocator, PoolConfig
from veloxquant_mlx.memory.pooled_cache import PooledKVCache

if TYPE_CHECKING:
    from veloxquant_mlx.memory.pool_backed_cache import PoolBackedKVCache, build_pooled_caches

__all__ = [
    "AllocationStats",
    "Block",
    "BlockPoolAllocator",
    "BlockPoolExhaustedError",
    "OwnerAlreadyActiveError",
    "PoolBackedKVCache",
    "PoolConfig",
    "PooledKVCache",
    "build_pooled_caches",
]


def __getattr__(name: str) -> Any:
    if name in ("PoolBackedKVCache", "build_pooled_caches"):
        from veloxquant_mlx.memory import pool_backed_cache

        return getattr(pool_backed_cache, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
