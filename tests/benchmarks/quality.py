"""How far each method's answers are from the uncompressed model's: KL divergence, agreement, perplexity, bits."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import QuantizedKVCache, make_prompt_cache

from tests.benchmarks.common import MODEL, load, text, write
from veloxquant_mlx.cache.config import METHODS, KVCacheConfig
from veloxquant_mlx.integrations.mlx_lm import build_caches
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig

N_TOKENS = 2048
CHUNK = 32
BITS = (2, 3, 4, 8)

STOCK = "mlx-lm quantized"

Make = Callable[[], list[Any]]


def forced(model: Any, caches: list[Any], tokens: mx.array) -> Any:
    """The log-probabilities after each token, CHUNK tokens at a time, (CHUNK, vocabulary) each."""
    for start in range(0, N_TOKENS, CHUNK):
        logits = model(tokens[None, start : start + CHUNK], cache=caches)[0].astype(mx.float32)
        log_p = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        mx.eval(log_p, [cache.state for cache in caches])
        yield log_p


def measured(model: Any, make: Make, tokens: mx.array, reference: list[mx.array]) -> dict[str, float]:
    caches = make()
    divergence = agreed = nats = 0.0
    for i, log_q in enumerate(forced(model, caches, tokens)):
        log_p = reference[i]
        divergence += float((mx.exp(log_p) * (log_p - log_q)).sum())
        agreed += float((mx.argmax(log_p, axis=-1) == mx.argmax(log_q, axis=-1)).sum())
        following = tokens[i * CHUNK + 1 : (i + 1) * CHUNK + 1]
        nats -= float(mx.take_along_axis(log_q, following[:, None], axis=-1).sum())
    n_bytes = sum(cache.nbytes for cache in caches)
    bits = sum(map(bits_per_value, caches)) / len(caches)
    for cache in caches:
        getattr(cache, "release", lambda: None)()
    mx.clear_cache()
    return {
        "kl": divergence / N_TOKENS,
        "agreement": agreed / N_TOKENS,
        "perplexity": math.exp(nats / N_TOKENS),
        "bytes_per_token": n_bytes / N_TOKENS,
        "bits_per_value": bits,
    }


def bits_per_value(cache: Any) -> float:
    """Of a coded key or value with its scales, in one layer; 32 or 16 where nothing is coded."""
    if isinstance(cache, QuantizedKVCache):
        keys: Any = cache.keys
        values: Any = cache.values
        parts = [*keys, *values]
        n_values = 2 * keys[1].size * cache.group_size
        return float(sum(part.nbytes for part in parts) * 8 / n_values)
    inner = cache.inner
    sealed = [inner.sealed(stream) for stream in "kv"]
    if None in sealed:
        return float(inner.arrays[0].itemsize * 8)
    config = inner.config
    n_bytes = sum(stream.bytes_per_token for stream in sealed)
    return float(n_bytes * 8 / (config.n_kv_heads * (config.head_dim + config.value_head_dim)))


class Judge:
    """The model, the text and the uncompressed model's log-probabilities, in one process."""

    def __init__(self) -> None:
        loaded = load()
        self.model = loaded.model
        self.tokens = mx.array(loaded.tokenizer.encode(text()[: N_TOKENS * 8])[: N_TOKENS + 1])
        self.pool = BlockPoolAllocator(PoolConfig(n_blocks=1, grow_on_exhaustion=True))
        self.reference = list(forced(self.model, make_prompt_cache(self.model), self.tokens))

    def row(self, method: str, bits: int) -> dict[str, Any]:
        def make() -> list[Any]:
            if method == STOCK:
                return [QuantizedKVCache(64, bits) for _ in self.model.layers]
            return build_caches(self.model, KVCacheConfig(method=method, key_bits=bits or None), self.pool, owner=1)

        return {"method": method, "bits": bits, **measured(self.model, make, self.tokens, self.reference)}


_judge: Judge | None = None


def judged(method: str, bits: int) -> dict[str, Any]:
    """One row, in a process that keeps its Judge for the next."""
    global _judge
    if _judge is None:
        _judge = Judge()
    return _judge.row(method, bits)


def run(only: tuple[str, ...] = ()) -> None:
    wanted = [("fp16", 0), (STOCK, 4), (STOCK, 8)]
    wanted += [(method, bits) for method, about in METHODS.items() if about.bits for bits in BITS]
    wanted = [(method, bits) for method, bits in wanted if not only or method in only]
    # Nothing is timed here, so each core takes rows of its own.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1), multiprocessing.get_context("spawn")) as processes:
        rows: list[dict[str, Any]] = []
        for row in processes.map(judged, *zip(*wanted, strict=True)):
            rows.append(row)
            print(
                f"{row['method']:18} {row['bits'] or '':>2}  KL {row['kl']:.5f}  top-1 {row['agreement']:.1%}  "
                f"perplexity {row['perplexity']:.3f}  {row['bits_per_value']:.2f} bits a value",
                flush=True,
            )
    del os.environ["OPENBLAS_NUM_THREADS"]
    if not only:
        write("quality", {"model": MODEL, "tokens": N_TOKENS, "chunk": CHUNK, "rows": rows})
