"""KVCacheFactory: from a configuration to a cache."""

from __future__ import annotations

from veloxquant_mlx.cache.coded_cache import CodedKVCache
from veloxquant_mlx.cache.config import METHODS, KVCacheConfig
from veloxquant_mlx.quantizers.affine import Affine
from veloxquant_mlx.quantizers.base import Codec
from veloxquant_mlx.quantizers.polar import Polar
from veloxquant_mlx.quantizers.qjl import QJL
from veloxquant_mlx.quantizers.shared import shared
from veloxquant_mlx.quantizers.spectral import Spectral
from veloxquant_mlx.quantizers.turboquant_mse import TurboQuantMSE
from veloxquant_mlx.quantizers.turboquant_prod import TurboQuantProd

__all__ = ["METHODS", "KVCacheConfig", "KVCacheFactory"]


class KVCacheFactory:
    """Makes caches. The methods there are: the keys of `METHODS`."""

    @staticmethod
    def create(config: KVCacheConfig) -> CodedKVCache:
        """An empty cache for `config`, which has already refused what can't be made."""
        assert config.value_head_dim is not None
        assert config.key_bits is not None
        assert config.value_bits is not None
        return CodedKVCache(
            config,
            key_codec(config.method, config.head_dim, config.key_bits, config.seed),
            value_codec(config.method, config.value_head_dim, config.value_bits, config.seed),
        )

    @staticmethod
    def least_bytes_per_token(config: KVCacheConfig, exact: int) -> int:
        """Of one token's keys and values, all heads, where they are compressed; what a cache holds is more than that.

        Args:
            config: Of the cache.
            exact: What they take as they come.
        """
        assert config.value_head_dim is not None
        assert config.key_bits is not None
        assert config.value_bits is not None
        coded = (
            key_codec(config.method, config.head_dim, config.key_bits, config.seed),
            value_codec(config.method, config.value_head_dim, config.value_bits, config.seed),
        )
        return sum(exact // 2 if codec is None else config.n_kv_heads * codec.bytes_per_token for codec in coded)

    @staticmethod
    def most_constant_bytes(config: KVCacheConfig) -> int:
        """What a cache holds at most for all tokens together once some are coded: means, and bases where measured."""
        method = METHODS[config.method]
        if method.plain or not method.bits:
            return 0
        assert config.value_head_dim is not None
        # A basis has d vectors of d numbers, and a few numbers for each of them.
        sizes = [d * (1 + (d + 4) * (config.method == "spectral")) for d in (config.head_dim, config.value_head_dim)]
        return 4 * config.n_kv_heads * sum(sizes)


def key_codec(method: str, d: int, bits: int, seed: int) -> Codec | None:
    """The codec of keys, shared by all that ask for the same; None where they are kept as they come."""
    match method:
        case "turboquant_prod":
            return shared(TurboQuantProd, d, bits, seed)
        case "qjl":
            return shared(QJL, d, bits, seed)
        case "polar":
            return shared(Polar, d, bits, seed)
    return value_codec(method, d, bits, seed)


def value_codec(method: str, d: int, bits: int, seed: int) -> Codec | None:
    """The codec of values: the method's own, or that of turboquant_mse."""
    match method:
        case "fp16":
            return None
        case "affine":
            return Affine(d, bits)
        case "spectral":
            return Spectral(d, bits, seed)
    return shared(TurboQuantMSE, d, bits, seed)
