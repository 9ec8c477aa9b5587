"""Bytes per token of context: what the caches say, and what MLX's counter of active memory says."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from tests.benchmarks.common import MODEL, load, write
from veloxquant_mlx.cache.base import KVCacheFactory
from veloxquant_mlx.cache.config import METHODS, KVCacheConfig

CONTEXTS = (1024, 4096, 8000)
CHUNK = 512


def measured(method: str, bits: int, context: int, n_layers: int, n_kv_heads: int, head_dim: int) -> dict[str, Any]:
    config = KVCacheConfig(method=method, key_bits=bits or None, n_kv_heads=n_kv_heads, head_dim=head_dim)
    mx.clear_cache()
    before = mx.get_active_memory()
    caches = [KVCacheFactory.create(config) for _ in range(n_layers)]
    for cache in caches:
        for start in range(0, context, CHUNK):
            # In float16, as a model on a GPU has them.
            n = min(CHUNK, context - start)
            k, v = (mx.random.normal((n_kv_heads, n, head_dim)).astype(mx.float16) for _ in "kv")
            cache.append(k, v)
        mx.eval(cache.arrays)
    del k, v
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
    shape = (loaded.n_layers, loaded.n_kv_heads, loaded.head_dim)
    rows = []
    wanted = [(method, 4 if about.bits else 0) for method, about in METHODS.items()]
    wanted += [("turboquant_mse", bits) for bits in (2, 3, 8)]
    for method, bits in wanted:
        measured(method, bits, 256, *shape)  # what all caches share is made before anything is counted
        for context in CONTEXTS:
            row = measured(method, bits, context, *shape)
            rows.append(row)
            print(
                f"{method:16} {bits or '':>2} {context:5} tokens: {row['memory_bytes_per_token']:9.1f} bytes a token, "
                f"MLX counts {row['active_bytes_per_token']:9.1f}",
                flush=True,
            )
    write("memory", {"model": MODEL, "rows": rows})
