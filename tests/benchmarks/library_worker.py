"""Runs in one library's environment, ours or the peer's (same import name, same interface), and prints JSON.

Usage: python library_worker.py [path of libopenblas to load first] < JSON with methods, n, d, bits, n_queries, repeats
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any


def main() -> None:
    task = json.load(sys.stdin)
    try:
        from veloxquant_mlx.core.cpu import prepare_cpu

        prepare_cpu()
    except ImportError:  # the peer has nothing of the kind, but gets the same BLAS
        if len(sys.argv) > 1:
            ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
    import mlx.core as mx
    import numpy as np

    from veloxquant_mlx.cache.base import KVCacheConfig, KVCacheFactory
    from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig
    from veloxquant_mlx.memory.pooled_cache import PooledKVCache

    n, d = task["n"], task["d"]
    rng = np.random.default_rng(7)
    keys, values = (rng.standard_normal((n, d)).astype(np.float16) for _ in "kv")
    queries = rng.standard_normal((task["n_queries"], d)).astype(np.float16)
    exact = attention(queries, keys, values)

    def timed_appends(method: str, n: int) -> tuple[Any, float]:
        pool = BlockPoolAllocator(PoolConfig(block_size=16, n_blocks=1024))
        settings = {"head_dim": d, "bit_width_inlier": task["bits"], **task.get("settings", {})}
        inner = KVCacheFactory.create(KVCacheConfig(method=method, **settings))
        cache = PooledKVCache(inner, pool, owner=1, format=method)
        ks, vs = [mx.array(k) for k in keys[:n]], [mx.array(v) for v in values[:n]]
        mx.eval(ks, vs)
        start = time.perf_counter()
        for k, v in zip(ks, vs, strict=True):
            cache.append_key(k)
            cache.append_value(v)
        settle(inner, mx)
        return cache, (time.perf_counter() - start) / n

    rows = {}
    for method in task["methods"]:
        timed_appends(method, 256)  # what only the first calls take is nobody's speed
        cache, per_token = timed_appends(method, n)
        asked = [mx.array(q) for q in queries]
        mx.eval(asked)
        for q in asked * 2:
            mx.eval(cache.attend(q))
        outs = [np.array(cache.attend(q)).astype(np.float64) for q in asked]
        times = []
        for q in asked * task["repeats"]:
            start = time.perf_counter()
            mx.eval(cache.attend(q))
            times.append(time.perf_counter() - start)
        error = float(np.linalg.norm(np.stack(outs) - exact) / np.linalg.norm(exact))
        rows[method] = {
            "append_us": per_token * 1e6,
            "attend_ms": sorted(times)[len(times) // 2] * 1e3,
            "bytes_per_token": cache.memory_bytes() / n,
            "error": error,
        }
        print(method, rows[method], file=sys.stderr, flush=True)
    pool = pool_times(BlockPoolAllocator, PoolConfig) if task.get("pool", True) else None
    json.dump({"rows": rows, "pool": pool}, sys.stdout)


def attention(queries: Any, keys: Any, values: Any) -> Any:
    """In float64: (n_queries, d)."""
    import numpy as np

    q, k, v = (x.astype(np.float64) for x in (queries, keys, values))
    scores = q @ k.T / np.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v


def settle(inner: Any, mx: Any) -> None:
    """Compute whatever the appends left to be computed."""
    arrays = getattr(inner, "arrays", None)
    if arrays is None:
        arrays = [x for x in vars(inner).values() if isinstance(x, (mx.array, list, tuple, dict))]
    mx.eval(arrays)


def pool_times(allocator: Any, config: Any) -> dict[str, float]:
    """Microseconds per call of allocate (one block) and per block freed; the best of five."""
    n = 20_000
    takes, frees = [], []
    for _ in range(5):
        pool = allocator(config(block_size=16, n_blocks=2 * n))
        start = time.perf_counter()
        blocks = [pool.allocate("k", 1, owner=1)[0] for _ in range(n)]
        taken = time.perf_counter()
        pool.free(blocks)
        frees.append((time.perf_counter() - taken) / n * 1e6)
        takes.append((taken - start) / n * 1e6)
    return {"allocate_us": min(takes), "free_us": min(frees)}


if __name__ == "__main__":
    main()
