"""Makes mlx-lm models run on this library's caches.

An mlx-lm attention layer calls `cache.update_and_fetch(keys, values)` and then the function
`scaled_dot_product_attention(queries, keys, values, cache=..., scale, mask)` of its own module. `attach` rebinds that
name in the modules of one loaded model to a function which lets a `LayerCache` attend by itself, takes the rows of a
`batch` apart, and calls the original for every other cache. Models without that name still work: `update_and_fetch`
then returns unpacked keys and values.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache as StockKVCache
from mlx_lm.models.cache import make_prompt_cache

from veloxquant_mlx.cache.config import KVCacheConfig
from veloxquant_mlx.core.exceptions import QuantizerConfigError
from veloxquant_mlx.integrations.batch import BatchLayer, batch
from veloxquant_mlx.integrations.layer_cache import LayerCache
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig

__all__ = ["LayerCache", "attach", "batch", "build_caches", "can_batch", "fork_caches", "pooled_layers", "rewind"]

_ATTENTION = "scaled_dot_product_attention"
# Where a model keeps what `attach` found out about it.
_ATTENDS = "_veloxquant_attends"
_BATCHES = "_veloxquant_batches"


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
    pool = BlockPoolAllocator(PoolConfig(n_blocks=1, grow_on_exhaustion=True))

    def make(dispatched: bool) -> list[Any]:
        return _caches(model, KVCacheConfig(method="fp16"), pool, owner=0, dispatched=dispatched)

    reference = [_next(model, _read(model, n, make_prompt_cache(model))) for n in _PROBES]
    for dispatched in (True, False):
        try:
            found = [_next(model, _read(model, n, make(dispatched))) for n in _PROBES]
        except Exception:  # noqa: BLE001  # it made something of keys that were not all there: that is the answer
            continue
        if _alike(found, reference):
            setattr(model, _BATCHES, dispatched and _batches(model, lambda: make(True), reference))
            setattr(model, _ATTENDS, dispatched)
            return dispatched
    raise QuantizerConfigError(
        f"Models of the kind {type(model).__module__.removeprefix('mlx_lm.models.')} use their caches in a way that "
        f"this library does not know; run them with mlx-lm's own caches."
    )


def can_batch(model: Any) -> bool:
    """Whether several sequences may share a decode step of this model (see `batch`).

    Not where it computes with a batch's positions as if they were one number, and not where its layers don't attend
    through `LayerCache.attend`. Found out by trying, in `attach`.
    """
    attach(model)
    return bool(getattr(model, _BATCHES))


# Tokens of the sequences that are tried; two lengths, so that mixing up their positions shows.
_PROBES = (16, 5)


def _read(model: Any, n: int, caches: list[Any]) -> list[Any]:
    model(mx.arange(1, n + 1)[None], cache=caches)
    return caches


def _next(model: Any, caches: list[Any]) -> mx.array:
    """The logits of one more token, (vocabulary,)."""
    logits: mx.array = model(mx.array([[17]]), cache=caches)[0, -1].astype(mx.float32)
    mx.eval(logits)
    return logits


def _batches(model: Any, make: Callable[[], list[Any]], reference: list[mx.array]) -> bool:
    try:
        caches = [_read(model, n, make()) for n in _PROBES]
        logits = model(mx.array([[17]] * len(caches)), cache=batch(caches))[:, -1].astype(mx.float32)
        mx.eval(logits)
    except Exception:  # noqa: BLE001  # it did something with B offsets or masks that only works with one
        return False
    return _alike(list(logits), reference)


def _alike(found: list[mx.array], reference: list[mx.array]) -> bool:
    return all(
        float(mx.linalg.norm(ours - theirs)) <= 0.02 * float(mx.linalg.norm(theirs))
        for ours, theirs in zip(found, reference, strict=True)
    )


class _Dispatch:
    """mlx-lm's attention function, with a way out for caches that attend by themselves."""

    def __init__(self, original: Callable[..., mx.array]) -> None:
        self.original = original

    def __call__(
        self, queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any, **options: Any
    ) -> mx.array:
        if isinstance(cache, BatchLayer) and cache.awaits(keys, values):
            return cache.attend(self, queries, scale, mask, **options)
        if not isinstance(cache, LayerCache) or not cache.awaits(keys, values):
            return self.original(queries, keys, values, cache=cache, scale=scale, mask=mask, **options)
        if isinstance(mask, mx.array) or any(option is not None for option in options.values()):
            # Attention sinks and masks of a model's own: unpack, and leave the rest to mlx-lm.
            keys, values = cache.fetch()
            return self.original(queries, keys, values, cache=cache, scale=scale, mask=mask, **options)
        return cache.attend(queries, scale)


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
    _follow(caches)
    return caches


def _follow(caches: Sequence[Any]) -> None:
    """Let the first layer that takes blocks answer for those after it (see `LayerCache.require`)."""
    layers = pooled_layers(caches)
    if layers:
        layers[0].followers = layers[1:]


def pooled_layers(caches: Sequence[Any]) -> list[LayerCache]:
    """The caches of `caches` that take blocks from the pool."""
    return [cache for cache in caches if isinstance(cache, LayerCache)]


def rewind(caches: Sequence[Any], n_tokens: int) -> int:
    """Forget tokens until a sequence's caches hold n_tokens at most, so that what follows is as exact as ever.

    Where that reaches into what is coded already, more is forgotten: as much as a method's window of exact tokens, and
    down to a block's boundary. To compute those again costs a fraction of a second; without them the latest tokens,
    which matter most, would be codes until the window has filled again.

    Returns:
        How many tokens they hold now; None of them changed where it is 0 and a layer can't go back (a sliding window
        that is full, a state): release them all then.
    """
    held = _held(caches)
    if held <= n_tokens:
        return held
    if not all(cache.is_trimmable() for cache in caches):
        return 0
    keep = _good_cut(pooled_layers(caches), n_tokens)
    for cache in caches:
        cache.trim(held - keep)
    return keep


def _held(caches: Sequence[Any]) -> int:
    """Tokens that a sequence's caches hold."""
    layers = pooled_layers(caches)
    return layers[0].offset if layers else 0


def _good_cut(layers: Sequence[LayerCache], n_tokens: int) -> int:
    """The largest number of tokens of at most n_tokens where these layers can be cut as `rewind` promises."""
    keep = n_tokens
    for layer in layers:
        if layer.offset - n_tokens > layer.exact_tail:
            keep = min(keep, max(0, n_tokens - layer.window))
    for layer in layers:
        if layer.offset - keep > layer.exact_tail or keep < layer.shared_end:
            # Inside a block, what is left of it would have to become exact, or this sequence's own, again.
            keep -= keep % layer.block_size
    return keep


def fork_caches(caches: Sequence[Any], owner: int, n_tokens: int) -> list[Any]:
    """Caches of a second sequence that begins with the first n_tokens of this one, and shares what is sealed of them.

    Where that is not all this one holds and reaches into what is coded, the second one begins with a little less, as
    `rewind` has it. Other layers' caches (sliding windows, states) are copied.

    Args:
        caches: Of all layers.
        owner: The second sequence's id in the pool.
        n_tokens: Of the tokens held.

    Returns:
        The caches; how many tokens they hold is their offset. An empty list where a layer can't go back so far.

    Raises:
        BlockPoolExhaustedError: There is no room for what can't be shared; nothing was changed.
    """
    held = _held(caches)
    layers = pooled_layers(caches)
    if n_tokens < held:
        if not all(cache.is_trimmable() for cache in caches):
            return []
        n_tokens = _good_cut(layers, n_tokens)
    n_tokens = min(n_tokens, held)
    if not n_tokens:
        return []
    needs = [layer.fork_needs(n_tokens) for layer in layers]
    layers[0].pool.require(*(sum(amounts) for amounts in zip(*needs, strict=True)))
    twins: list[Any] = []
    try:
        for cache in caches:
            if isinstance(cache, LayerCache):
                twins.append(cache.fork(owner, n_tokens))
            else:
                twins.append(copy.deepcopy(cache))
                if n_tokens < held:
                    twins[-1].trim(held - n_tokens)
    except BaseException:
        for layer in pooled_layers(twins):
            layer.release()
        raise
    _follow(twins)
    return twins
