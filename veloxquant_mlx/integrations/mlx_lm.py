"""Makes mlx-lm models run on this library's caches.

An mlx-lm attention layer calls `cache.update_and_fetch(keys, values)` and then the function
`scaled_dot_product_attention(queries, keys, values, cache=..., scale, mask)` of its own module. `attach` rebinds that
name in the modules of one loaded model to a function which lets a `LayerCache` attend by itself and calls the original
for every other cache. Models without that name still work: `update_and_fetch` then returns unpacked keys and values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache as StockKVCache
from mlx_lm.models.cache import create_attention_mask, make_prompt_cache

from veloxquant_mlx.cache.base import KVCacheFactory
from veloxquant_mlx.cache.coded_cache import CodedKVCache
from veloxquant_mlx.cache.config import KVCacheConfig
from veloxquant_mlx.core.exceptions import QuantizerConfigError
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig
from veloxquant_mlx.memory.pooled_cache import PooledKVCache

_ATTENTION = "scaled_dot_product_attention"
_ATTENDS = "_veloxquant_attends"  # where a model keeps what `attach` found out about it


def attach(model: Any) -> bool:
    """Prepare `model` for `LayerCache`. Returns whether its layers attend through `LayerCache.attend`.

    Some models don't: latent attention (MLA) attends to keys it makes of what it caches. They get unpacked arrays. What
    a model does can't be told from outside, so a few tokens are put through it once and compared with mlx-lm's own
    caches. Calling it again costs nothing, and other caches behave in this model as before.

    Raises:
        QuantizerConfigError: The model uses its caches in yet another way, and can run on mlx-lm's own only.
    """
    known: bool | None = getattr(model, _ATTENDS, None)
    if known is not None:
        return known
    for name in {type(module).__module__ for module in model.modules()}:
        module = sys.modules[name]
        original = getattr(module, _ATTENTION, None)
        if original is not None and name.startswith("mlx_lm.models.") and not isinstance(original, _Dispatch):
            setattr(module, _ATTENTION, _Dispatch(original))
    reference = _probe(model, make_prompt_cache(model))
    for dispatched in (True, False):
        pool = BlockPoolAllocator(PoolConfig(n_blocks=1, grow_on_exhaustion=True))
        caches = _caches(model, KVCacheConfig(method="fp16"), pool, owner=0, dispatched=dispatched)
        try:
            logits = _probe(model, caches)
        except Exception:  # noqa: BLE001  # it made something of keys that were not all there: that is the answer
            continue
        if float(mx.linalg.norm(logits - reference)) <= 0.02 * float(mx.linalg.norm(reference)):
            setattr(model, _ATTENDS, dispatched)
            return dispatched
    raise QuantizerConfigError(
        f"Models of the kind {type(model).__module__.removeprefix('mlx_lm.models.')} use their caches in a way that "
        f"this library does not know; run them with mlx-lm's own caches."
    )


def _probe(model: Any, caches: list[Any]) -> mx.array:
    """The logits of one token after sixteen others, (vocabulary,)."""
    model(mx.arange(1, 17)[None], cache=caches)
    logits: mx.array = model(mx.array([[17]]), cache=caches)[0, -1].astype(mx.float32)
    mx.eval(logits)
    return logits


class _Dispatch:
    """mlx-lm's attention function, with a way out for caches that attend by themselves."""

    def __init__(self, original: Callable[..., mx.array]) -> None:
        self.original = original

    def __call__(
        self, queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any, **options: Any
    ) -> mx.array:
        if not isinstance(cache, LayerCache) or not cache.awaits(keys, values):
            return self.original(queries, keys, values, cache=cache, scale=scale, mask=mask, **options)
        if isinstance(mask, mx.array) or any(option is not None for option in options.values()):
            # Attention sinks and masks of a model's own: unpack, and leave the rest to mlx-lm.
            keys, values = cache.fetch()
            return self.original(queries, keys, values, cache=cache, scale=scale, mask=mask, **options)
        return cache.attend(queries, scale)


class LayerCache:
    """One layer's PooledKVCache behind mlx-lm's cache protocol, for one sequence (batch size 1).

    The cache is made when the first keys and values come, since only they tell the layer's true shapes.

    Args:
        config: Method, bits, sink, window, seal_step and seed; its shapes are replaced by the layer's own.
        dispatched: The model's attention calls `attend` (see `attach`).
    """

    def __init__(self, config: KVCacheConfig, pool: BlockPoolAllocator, owner: int, *, dispatched: bool) -> None:
        self.pooled: PooledKVCache | None = None
        self.inner: CodedKVCache | None = None
        self._config, self._pool, self._owner, self._dispatched = config, pool, owner, dispatched
        self._new: tuple[mx.array, mx.array] | None = None
        self.followers: list[LayerCache] = []  # the layers whose turn comes after this one's, where this is the first

    # ------------------------------------------------------------------ mlx-lm's side
    @property
    def offset(self) -> int:
        """Tokens held; where the next token's position starts."""
        return 0 if self.pooled is None else len(self.pooled)

    def awaits(self, keys: Any, values: Any) -> bool:
        """Whether these are the very keys and values that came last, and no attention has used them yet."""
        return self._new is not None and keys is self._new[0] and values is self._new[1]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Take the keys and values of new tokens, (1, n_kv_heads, n_tokens, d).

        Returns them as they are when `attend` follows, and all tokens unpacked otherwise.
        """
        if keys.shape[0] != 1:
            raise ValueError(f"A LayerCache holds one sequence; this batch has {keys.shape[0]}. Give each its own.")
        if self.followers:
            # All layers take these tokens in one forward pass. Were the pool to end half-way, the first layers would
            # hold tokens that the others lack, and using them on would give wrong answers.
            n, size = keys.shape[2], self._pool.config.block_size
            needed = [layer.blocks_needed(n) for layer in (self, *self.followers)]
            n_k, n_v = sum(k for k, _ in needed), sum(v for _, v in needed)
            # The layers of one model have keys and values of one size, or else of about one size.
            self._pool.require(n_k, n_v, (n_k * keys.nbytes + n_v * values.nbytes) // n * size)
        self._new = (keys, values)
        return (keys, values) if self._dispatched else self.fetch()

    def fetch(self) -> tuple[mx.array, mx.array]:
        """Append what is pending and return all keys and values unpacked, (1, n_kv_heads, n_tokens, d).

        The pending ones are returned as they came: they are sealed only afterwards.
        """
        k, v = self._take()
        pooled = self._made(k, v)
        keys, values = k, v
        if len(pooled):
            assert self.inner is not None
            old_keys, old_values = self.inner.decoded()
            keys, values = mx.concatenate([old_keys, k], axis=1), mx.concatenate([old_values, v], axis=1)
        pooled.append(k, v)
        return keys[None], values[None]

    def attend(self, queries: mx.array, scale: float) -> mx.array:
        """Append what is pending and attend, (1, n_q_heads, n_tokens, d)."""
        k, v = self._take()
        out: mx.array = self._made(k, v).extend_and_attend(k, v, mx.squeeze(queries, 0), scale)
        return mx.expand_dims(out, 0)

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> Any:
        return create_attention_mask(n, offset=self.offset, window_size=window_size, return_array=return_array)

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        return 0 if self.pooled is None else self.pooled.trim(n)

    def empty(self) -> bool:
        return self.offset == 0

    def size(self) -> int:
        return self.offset

    @property
    def state(self) -> list[mx.array]:
        """The arrays held, for mx.eval."""
        return [] if self.inner is None else self.inner.arrays

    @property
    def nbytes(self) -> int:
        return 0 if self.pooled is None else self.pooled.memory_bytes()

    @property
    def uncompressed_bytes(self) -> int:
        """What the method fp16 would hold for as many tokens."""
        return 0 if self.inner is None else self.inner.uncompressed_bytes()

    # ------------------------------------------------------------------ the pool's side
    def blocks_needed(self, n_tokens: int) -> tuple[int, int]:
        """Key and value blocks that n_tokens more would take from the pool."""
        if self.pooled is not None:
            return self.pooled.blocks_needed(n_tokens)
        blocks = -(-n_tokens // self._pool.config.block_size)
        return blocks, blocks

    def release(self) -> None:
        """Give every block and array back."""
        self._new = None
        if self.pooled is not None:
            self.pooled.reset()
            self.pooled = self.inner = None

    def _take(self) -> tuple[mx.array, mx.array]:
        assert self._new is not None
        (keys, values), self._new = self._new, None
        return mx.squeeze(keys, 0), mx.squeeze(values, 0)

    def _made(self, k: mx.array, v: mx.array) -> PooledKVCache:
        if self.pooled is None:
            config = replace(self._config, n_kv_heads=k.shape[0], head_dim=k.shape[2], value_head_dim=v.shape[2])
            self.inner = KVCacheFactory.create(config)
            self.pooled = PooledKVCache(self.inner, self._pool, self._owner)
        return self.pooled


def build_caches(model: Any, config: KVCacheConfig, pool: BlockPoolAllocator, owner: int) -> list[Any]:
    """One cache per layer: a `LayerCache` where mlx-lm would use its plain KVCache, mlx-lm's own cache elsewhere.

    Layers with a sliding window or a state keep their own kind of cache, which is bounded already.
    """
    return _caches(model, config, pool, owner, dispatched=attach(model))


def _caches(model: Any, config: KVCacheConfig, pool: BlockPoolAllocator, owner: int, *, dispatched: bool) -> list[Any]:
    caches = [
        LayerCache(config, pool, owner, dispatched=dispatched) if type(stock) is StockKVCache else stock
        for stock in make_prompt_cache(model)
    ]
    layers = pooled_layers(caches)
    if layers:
        layers[0].followers = layers[1:]
    return caches


def pooled_layers(caches: Sequence[Any]) -> list[LayerCache]:
    """The caches of `caches` that take blocks from the pool."""
    return [cache for cache in caches if isinstance(cache, LayerCache)]
