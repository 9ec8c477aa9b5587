"""The storage-owning cache, its configuration and its factory. The configuration can be read without MLX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from veloxquant_mlx.cache.config import METHODS, KVCacheConfig

if TYPE_CHECKING:
    from veloxquant_mlx.cache.base import KVCacheFactory

__all__ = ["METHODS", "KVCacheConfig", "KVCacheFactory"]


def __getattr__(name: str) -> Any:
    if name == "KVCacheFactory":
        from veloxquant_mlx.cache.base import KVCacheFactory

        return KVCacheFactory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
