"""Bytes per token of context: what the caches say, and what MLX's counter of active memory says."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from tests.benchmarks.common import MODEL, keys_and_values, load, write
from veloxquant_mlx.cache.base import KVCacheFactory
from veloxquant_mlx.cache.config import METHODS, KVCacheConfig

CONTEXTS = (1024, 4096, 8000)
CHUNK = 256
Real = list[tuple[mx.array, mx.array]]


def measured(method: str, bits: int, context: int, real: Real) -> dict[str, Any]:
    n_kv_heads, n_real, head_dim = real[0][0].shape
    config = KVCacheConfig(method=method, key_bits=bits or None, n_kv_heads=n_kv_heads, head_dim=head_dim)
    mx.clear_cache()
    before = mx.get_active_memory()
    caches = [KVCacheFactory.create(config) for _ in real]
    for cache, (k, v) in zip(caches, real, strict=True):
        for start in range(0, context, CHUNK):  # a text's keys and values, over and over
            at = start % n_real
            n = min(CHUNK, context - start)
            cache.append(k[:, at : at + n] * 1, v[:, at : at + n] * 1)  # copies, as what a model makes is nobody else's
        mx.eval(cache.arrays)
    mx.synchronize()
    return {
        "method": method,
        "bits": bits,
        "context": context,
        "memory_bytes_per_token": sum(cache.memory_bytes() for cache in caches) / context,
        "active_bytes_per_token": (mx.get_active_memory() - before) / context,
    }


def run() -> None:
    loaded = load()
    # In float16, as a model on a GPU has them.
    real = [(k.astype(mx.float16), v.astype(mx.float16)) for k, v in keys_and_values(loaded)]
    mx.eval(real)
    rows = []
    wanted = [(method, 4 if about.bits else 0) for method, about in METHODS.items()]
    wanted += [("turboquant_mse", bits) for bits in (2, 3, 8)]
    for method, bits in wanted:
        measured(method, bits, 256, real)  # what all caches share is made before anything is counted
        for context in CONTEXTS:
            row = measured(method, bits, context, real)
            rows.append(row)
            print(
                f"{method:16} {bits or '':>2} {context:5} tokens: {row['memory_bytes_per_token']:9.1f} bytes a token, "
                f"MLX counts {row['active_bytes_per_token']:9.1f}",
                flush=True,
            )
    write("memory", {"model": MODEL, "rows": rows})
