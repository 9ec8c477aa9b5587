"""Decode and prefill speed of every method beside mlx-lm's own caches, on the default model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import QuantizedKVCache, make_prompt_cache

from tests.benchmarks.common import MODEL, keys_and_values, load, median, seconds, write
from veloxquant_mlx.cache.config import METHODS, KVCacheConfig
from veloxquant_mlx.core.abstractions import KVCache
from veloxquant_mlx.integrations.mlx_lm import build_caches
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig
from veloxquant_mlx.memory.pooled_cache import PooledKVCache

CONTEXTS = (512, 2048, 4096, 8000)
BITS = 4
ROUNDS, STEPS = 7, 4
PREFILL, PREFILL_CHUNK, PREFILL_ROUNDS = 2048, 512, 3
STOCK, STOCK_QUANTIZED = "mlx-lm fp", "mlx-lm quantized"

owners = count(1)


def makers(model: Any, pool: BlockPoolAllocator) -> dict[str, Callable[[], list[Any]]]:
    found: dict[str, Callable[[], list[Any]]] = {
        STOCK: lambda: make_prompt_cache(model),
        STOCK_QUANTIZED: lambda: [QuantizedKVCache(64, BITS) for _ in model.layers],
    }
    for method in METHODS:
        config = KVCacheConfig(method=method, key_bits=BITS)
        found[method] = partial(_made, model, config, pool)
    return found


def _made(model: Any, config: KVCacheConfig, pool: BlockPoolAllocator) -> list[Any]:
    return build_caches(model, config, pool, next(owners))


def fill(caches: list[Any], n_tokens: int, real: list[tuple[mx.array, mx.array]]) -> list[Any]:
    """Put a text's keys and values in, over and over: what matters for speed is their number and where they point."""
    for cache, (k, v) in zip(caches, real, strict=True):
        for start in range(0, n_tokens, k.shape[1]):
            n = min(k.shape[1], n_tokens - start)
            cache.update_and_fetch(k[None, :, :n], v[None, :, :n])
            getattr(cache, "fetch", lambda: None)()
        mx.eval(cache.state)
    return caches


def steps(model: Any, caches: list[Any], n: int) -> list[float]:
    """Seconds of each of n greedy steps, the next one built while one runs, as mlx-lm's own loop does it."""

    def step(token: mx.array) -> mx.array:
        chosen: mx.array = mx.argmax(model(token[None], cache=caches)[:, -1], axis=-1)
        mx.async_eval(chosen)
        return chosen

    times, token = [], step(mx.array([5]))
    for _ in range(n + 1):
        start = perf_counter()
        following = step(token)
        token.item()
        token = following
        times.append(perf_counter() - start)
    token.item()
    return times[1:]  # the first one also waits for the step before


def prefill(model: Any, make: Callable[[], list[Any]]) -> float:
    """Seconds for PREFILL tokens."""
    tokens = mx.random.randint(1000, 40000, (1, PREFILL))
    caches = make()

    def run() -> None:
        for start in range(0, PREFILL, PREFILL_CHUNK):
            model(tokens[:, start : start + PREFILL_CHUNK], cache=caches)
            mx.eval([cache.state for cache in caches])

    took = seconds(run)
    release(caches)
    return took


def release(caches: list[Any]) -> None:
    for cache in caches:
        getattr(cache, "release", lambda: None)()


class NullCache(KVCache):
    """Does nothing, so that what is left is PooledKVCache's own time."""

    def append_key(self, k: Any) -> None:
        pass

    def append_value(self, v: Any) -> None:
        pass

    def attend(self, q: Any, scale: float | None = None) -> Any:
        return q

    def extend_and_attend(self, k: Any, v: Any, q: Any, scale: float | None = None) -> Any:
        return q

    def memory_bytes(self) -> int:
        return 0


def pooled_microseconds() -> float:
    """Of one PooledKVCache for one token: the median over 20 requests of 500 tokens."""
    pool = BlockPoolAllocator(PoolConfig(n_blocks=1024))
    k = mx.zeros((3, 1, 64))

    def request(cache: PooledKVCache) -> None:
        for _ in range(500):
            cache.extend_and_attend(k, k, k, 0.125)

    found = []
    for owner in range(20):
        cache = PooledKVCache(NullCache(), pool, owner)
        found.append(seconds(partial(request, cache)) / 500)
        cache.release()
    return median(found) * 1e6


def run() -> None:
    loaded = load()
    model, real = loaded.model, keys_and_values(loaded)
    pool = BlockPoolAllocator(PoolConfig(n_blocks=1, grow_on_exhaustion=True))
    make = makers(model, pool)
    decode: dict[str, dict[str, float]] = {}
    for context in CONTEXTS:
        caches = {name: fill(new(), context, real) for name, new in make.items()}
        times: dict[str, list[float]] = {name: [] for name in caches}
        for _ in range(ROUNDS):  # in turn, so that whatever else the machine does falls on all alike
            for name, held in caches.items():
                times[name] += steps(model, held, STEPS)
        decode[str(context)] = {name: 1 / median(taken) for name, taken in times.items()}
        for held in caches.values():
            release(held)
        del caches
        mx.clear_cache()
        print(context, {name: round(rate, 2) for name, rate in decode[str(context)].items()}, flush=True)
    names = (STOCK, "fp16", "turboquant_mse")
    prefills: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(PREFILL_ROUNDS):
        for name in names:
            prefills[name].append(prefill(model, make[name]))
    rates = {name: PREFILL / median(taken) for name, taken in prefills.items()}
    print("prefill", {name: round(rate, 1) for name, rate in rates.items()}, flush=True)
    pooled = pooled_microseconds()
    share = pooled * loaded.n_layers / 1e6 * decode[str(CONTEXTS[0])]["turboquant_mse"]
    print(f"PooledKVCache: {pooled:.1f} us a layer and token, {share:.2%} of a step", flush=True)
    write(
        "decode",
        {
            "model": MODEL,
            "bits": BITS,
            "tokens_per_s": decode,
            "prefill_tokens": PREFILL,
            "prefill_tokens_per_s": rates,
            "pooled_us_per_layer": pooled,
            "pooled_share_of_step": share,
        },
    )
