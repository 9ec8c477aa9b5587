"""How far each method's answers are from the uncompressed model's: KL divergence, agreement, perplexity, bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import QuantizedKVCache, make_prompt_cache

from tests.benchmarks.common import MODEL, load, write
from veloxquant_mlx.cache.config import METHODS, KVCacheConfig
from veloxquant_mlx.integrations.mlx_lm import build_caches
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig

N_TOKENS = 2048
CHUNK = 32
BITS = (2, 3, 4, 8)

Make = Callable[[], list[Any]]


def text() -> str:
    """English that ships with Python: the language reference's topics, as `help()` shows them."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


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
    for cache in caches:
        getattr(cache, "release", lambda: None)()
    mx.clear_cache()
    return {
        "kl": divergence / N_TOKENS,
        "agreement": agreed / N_TOKENS,
        "perplexity": math.exp(nats / N_TOKENS),
        "bytes_per_token": n_bytes / N_TOKENS,
    }


def bits_per_value(method: str, bits: int, head_dim: int) -> float:
    """Of a coded key or value, scales included."""
    from veloxquant_mlx.cache.base import key_codec, value_codec

    codecs = (key_codec(method, head_dim, bits, 42), value_codec(method, head_dim, bits, 42))
    return sum(32 if codec is None else codec.bytes_per_token * 8 / head_dim for codec in codecs) / 2


def _stock_quantized(model: Any, bits: int) -> list[Any]:
    return [QuantizedKVCache(64, bits) for _ in model.layers]


def run(only: tuple[str, ...] = ()) -> None:
    loaded = load()
    model = loaded.model
    tokens = mx.array(loaded.tokenizer.encode(text()[: N_TOKENS * 8])[: N_TOKENS + 1])
    pool = BlockPoolAllocator(PoolConfig(n_blocks=1, grow_on_exhaustion=True))
    reference = list(forced(model, make_prompt_cache(model), tokens))
    makes: list[tuple[str, int, Make]] = [
        ("fp16", 0, partial(build_caches, model, KVCacheConfig(method="fp16"), pool, 1)),
        *[("mlx-lm quantized", bits, partial(_stock_quantized, model, bits)) for bits in (4, 8)],
    ]
    for method, about in METHODS.items():
        for bits in BITS if about.bits else ():
            config = KVCacheConfig(method=method, key_bits=bits)
            makes.append((method, bits, partial(build_caches, model, config, pool, 1)))
    rows: list[dict[str, Any]] = []
    for method, bits, make in makes:
        if only and method not in only:
            continue
        row: dict[str, Any] = {"method": method, "bits": bits, **measured(model, make, tokens, reference)}
        row["bits_per_value"] = bits_per_value(method.replace("mlx-lm quantized", "affine"), bits, loaded.head_dim)
        rows.append(row)
        print(
            f"{method:18} {bits or '':>2}  KL {row['kl']:.5f}  top-1 {row['agreement']:.1%}  "
            f"perplexity {row['perplexity']:.3f}  {row['bits_per_value']:.2f} bits a value",
            flush=True,
        )
    if not only:
        write("quality", {"model": MODEL, "tokens": N_TOKENS, "chunk": CHUNK, "rows": rows})
