"""KVCacheFactory: from a configuration to a cache."""

from __future__ import annotations

from veloxquant_mlx.cache.coded_cache import CodedKVCache
from veloxquant_mlx.cache.config import METHODS, KVCacheConfig
from veloxquant_mlx.quantizers.base import Codec
from veloxquant_mlx.quantizers.turboquant_mse import TurboQuantMSE

__all__ = ["METHODS", "KVCacheConfig", "KVCacheFactory"]


class KVCacheFactory:
    """Makes caches. The methods there are: the keys of `METHODS`."""

    @staticmethod
    def create(config: KVCacheConfig) -> CodedKVCache:
        """An empty cache for `config`, which has already refused what can't be made."""
        assert config.value_head_dim is not None
        return CodedKVCache(
            config,
            _codec(config, config.head_dim, config.key_bits),
            _codec(config, config.value_head_dim, config.value_bits),
        )


def _codec(config: KVCacheConfig, d: int, bits: int | None) -> Codec | None:
    if config.method == "fp16":
        return None
    assert bits is not None
    return TurboQuantMSE(d, bits, config.seed)
