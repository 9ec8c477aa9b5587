"""KV-cache compression for MLX that runs in real models, with a block pool that knows what it costs.

The names below are looked up when they are first used, so that `veloxquant_mlx.memory.block_pool` needs the standard
library only, and a program can load OpenBLAS (`veloxquant_mlx.core.blas`) before anything imports MLX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veloxquant_mlx.cache.base import KVCacheFactory
    from veloxquant_mlx.cache.config import METHODS, KVCacheConfig
    from veloxquant_mlx.core.abstractions import KVCache
    from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError, OwnerAlreadyActiveError, QuantizerConfigError
    from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig
    from veloxquant_mlx.memory.pool_backed_cache import PoolBackedKVCache, build_pooled_caches
    from veloxquant_mlx.memory.pooled_cache import PooledKVCache

__all__ = [
    "METHODS",
    "BlockPoolAllocator",
    "BlockPoolExhaustedError",
    "KVCache",
    "KVCacheConfig",
    "KVCacheFactory",
    "OwnerAlreadyActiveError",
    "PoolBackedKVCache",
    "PoolConfig",
    "PooledKVCache",
    "QuantizerConfigError",
    "build_pooled_caches",
]

_HOMES = {
    "METHODS": "cache.config",
    "BlockPoolAllocator": "memory.block_pool",
    "BlockPoolExhaustedError": "core.exceptions",
    "KVCache": "core.abstractions",
    "KVCacheConfig": "cache.config",
    "KVCacheFactory": "cache.base",
    "OwnerAlreadyActiveError": "core.exceptions",
    "PoolBackedKVCache": "memory.pool_backed_cache",
    "PoolConfig": "memory.block_pool",
    "PooledKVCache": "memory.pooled_cache",
    "QuantizerConfigError": "core.exceptions",
    "build_pooled_caches": "memory.pool_backed_cache",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
