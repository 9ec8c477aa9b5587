"""LayerCache: one layer's PooledKVCache behind mlx-lm's cache protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import create_attention_mask

from veloxquant_mlx.cache.base import KVCacheFactory
from veloxquant_mlx.cache.coded_cache import CodedKVCache
from veloxquant_mlx.cache.config import METHODS, KVCacheConfig
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator
from veloxquant_mlx.memory.pooled_cache import PooledKVCache


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
            raise ValueError(
                f"A LayerCache holds one sequence; this batch has {keys.shape[0]}. Give each its own, and the model "
                f"veloxquant_mlx.integrations.batch(caches)."
            )
        if self.followers:
            LayerCache.require([self], keys.shape[2], keys.nbytes // keys.shape[2], values.nbytes // values.shape[2])
        return self.extend(keys, values)

    def extend(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """`update_and_fetch` for keys and values of a step whose blocks were asked for already."""
        self._new = (keys, values)
        return (keys, values) if self._dispatched else self.fetch()

    @staticmethod
    def require(first_layers: Sequence[LayerCache], n: int, key_bytes: int, value_bytes: int) -> None:
        """Make sure that the pool has room for n more tokens in every layer of these sequences.

        All layers take a step's tokens in one forward pass. Were the pool to end half-way, the first layers would hold
        tokens that the others lack, and using them on would give wrong answers.

        Args:
            first_layers: The sequences' caches of one layer; those that are their sequence's first have followers.
            n: Tokens.
            key_bytes: Of one sequence's keys of one token in one layer; value_bytes of its values. The layers of one
                model have keys and values of one size, or else of about one size.

        Raises:
            BlockPoolExhaustedError: It has not; nothing was taken.
        """
        n_k = n_v = 0
        for first in first_layers:
            # The layers of a sequence fill their blocks in step, so in most steps a look at the first one is enough.
            if first.followers and first.blocks_needed(n) != (0, 0):
                needed = [layer.blocks_needed(n) for layer in (first, *first.followers)]
                n_k += sum(k for k, _ in needed)
                n_v += sum(v for _, v in needed)
        if n_k or n_v:
            pool = first_layers[0]._pool
            pool.require(n_k, n_v, (n_k * key_bytes + n_v * value_bytes) * pool.config.block_size)

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

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """All keys and values unpacked, (1, n_kv_heads, n_tokens, d), for layers that use another layer's."""
        assert self.inner is not None
        keys, values = self.inner.decoded()
        return keys[None], values[None]

    def attend(self, queries: mx.array, scale: float) -> mx.array:
        """Append what is pending and attend, (1, n_q_heads, n_tokens, d)."""
        k, v = self._take()
        out: mx.array = self._made(k, v).extend_and_attend(k, v, mx.squeeze(queries, 0), scale)
        return mx.expand_dims(out, 0)

    def append(self, keys: mx.array, values: mx.array) -> CodedKVCache:
        """Take keys and values of a step that somebody else attends for; returns the cache that holds them."""
        k, v = mx.squeeze(keys, 0), mx.squeeze(values, 0)
        pooled = self._made(k, v)
        pooled.append(k, v)
        assert self.inner is not None
        return self.inner

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
    def blocks_held(self) -> tuple[int, int]:
        """Key and value blocks checked out to it."""
        n = 0 if self.pooled is None else self.pooled.n_blocks_held()
        return n - n // 2, n // 2

    def blocks_needed(self, n_tokens: int) -> tuple[int, int]:
        """Key and value blocks that n_tokens more would take from the pool."""
        if self.pooled is not None:
            return self.pooled.blocks_needed(n_tokens)
        blocks = -(-n_tokens // self._pool.config.block_size)
        return blocks, blocks

    def fork(self, owner: int, n_tokens: int) -> LayerCache:
        """A cache of the first n_tokens, which shares what is sealed of them.

        Raises:
            BlockPoolExhaustedError: There is no room for what can't be shared; nothing was changed.
        """
        twin = LayerCache(self._config, self._pool, owner, dispatched=self._dispatched)
        if self.pooled is not None:
            twin.pooled = self.pooled.fork(owner, n_tokens)
            twin.inner = twin.pooled.inner
        return twin

    @property
    def exact_tail(self) -> int:
        """How many of the latest tokens can be forgotten so that the others are as if those had never come.

        What left the window was coded for good. Where that goes too, the latest of what stays are codes, and would have
        been exact.
        """
        sealed = None if self.inner is None else self.inner.sealed("k")
        if sealed is None or METHODS[self._config.method].plain:
            return self.offset
        return self.offset - sealed.first - sealed.n_tokens if sealed.n_tokens else self.offset

    @property
    def shared_end(self) -> int:
        """Where the tokens end that it shares with forks; 0 where there are none."""
        return 0 if self.inner is None else max(self.inner.shared("k")[1], self.inner.shared("v")[1])

    @property
    def pool(self) -> BlockPoolAllocator:
        return self._pool

    @property
    def block_size(self) -> int:
        return self._pool.config.block_size

    def fork_needs(self, n_tokens: int) -> tuple[int, int, int]:
        """Key blocks, value blocks and bytes that `fork` would take from the pool."""
        return (0, 0, 0) if self.pooled is None else self.pooled.fork_needs(n_tokens)

    @property
    def window(self) -> int:
        """How many of the latest tokens the method always keeps exact."""
        return self._config.window

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
