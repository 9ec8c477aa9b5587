"""PoolBackedKVCache: mlx-lm's plain cache, with the growth of its buffer accounted for in a shared block pool."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as mlx_lm_cache

from veloxquant_mlx.memory.block_pool import Block, BlockPoolAllocator

# mlx-lm has no type information; through Any, calling what is inherited stays possible in typed code.
_StockKVCache: Any = mlx_lm_cache.KVCache


class PoolBackedKVCache(_StockKVCache):  # type: ignore[misc]
    """Drop-in for `mlx_lm.models.cache.KVCache`: same arrays, same answers, and a budget.

    Keys and values sit in one buffer each, which grows by `step` tokens. Before it grows, its K and V blocks are
    taken from the pool; all of them or none. What is charged is the buffer's capacity, since that is the memory held;
    `n_used` of the blocks follows the tokens in it (one call per stream and decoded token), so that the pool's
    fragmentation is right. `trim` therefore gives no block back: the buffer keeps its size.

    What mlx-lm makes out of it (`merge` into a batch, `to_quantized`) is mlx-lm's own and not in the pool's books.

    Args:
        pool: Where the blocks come from.
        owner: The id of the request; shared by all layers of one request.
        step: Tokens the buffer grows by; None is 256, or block_size where that is larger. (Growth copies the buffer,
            so it should be rarer than a small block fills.)

    Raises:
        ValueError: step is below 1.
    """

    def __init__(self, pool: BlockPoolAllocator, owner: int = -1, step: int | None = None) -> None:
        super().__init__()
        if step is None:
            step = max(pool.config.block_size, 256)
        if type(step) is not int or step < 1:
            raise ValueError(f"step must be a whole number of tokens of at least 1, not {step!r}.")
        self.step = step
        self.pool = pool
        self.owner = owner
        self._blocks: dict[str, list[Block]] = {"k": [], "v": []}
        self._token_bytes = {"k": 0, "v": 0}  # of a token in the buffers, all heads of all sequences
        self._n_free_of_charge = 0  # the buffer's first blocks that nobody pays for (see __deepcopy__ and release)
        self._followers: list[PoolBackedKVCache] = []  # the layers that will grow right after this one

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Append keys and values of the next tokens; return all so far.

        Args:
            keys: `(B, n_kv_heads, n_tokens, d)`.
            values: `(B, n_kv_heads, n_tokens, d)`.

        Returns:
            Keys and values, each `(B, n_kv_heads, offset, d)`.

        Raises:
            BlockPoolExhaustedError: The buffer has to grow and the pool has too few blocks; nothing was changed.
        """
        start = self.offset
        end = start + keys.shape[2]
        if end > self._capacity():
            self._grow(-(-end // self.step) * self.step, keys, values)
        fetched: tuple[Any, Any] = super().update_and_fetch(keys, values)
        self._mark(start, end)
        return fetched

    def trim(self, n: int) -> int:
        """Forget the last n tokens; returns how many there were. The buffer, and so the blocks, stay."""
        end = self.offset
        n = int(super().trim(n))
        self._mark(self.offset, end)
        return n

    def release(self) -> None:
        """Give back everything this cache's owner holds: the blocks of all layers that share it.

        The arrays stay until this object goes. A cache that is used on is charged for further growth only.
        """
        self.pool.free_all(self.owner)
        self._forget_freed()

    @property
    def state(self) -> Any:
        """Keys, values (the whole buffers) and offset."""
        return super().state

    @state.setter
    def state(self, state: Any) -> None:
        """Take over (keys, values) or (keys, values, offset), charged in place of what was held.

        Raises:
            BlockPoolExhaustedError: The pool has too few blocks for the new buffers; nothing was changed.
        """
        keys, values, *rest = state
        capacity = 0 if keys is None else keys.shape[2]
        if capacity:
            self._note_bytes(keys, values)
        self._forget_freed()
        free_of_charge = self._n_free_of_charge
        self._n_free_of_charge = 0
        try:
            self._charge(capacity)
        except BaseException:
            self._n_free_of_charge = free_of_charge
            raise
        self.keys, self.values, self.offset = keys, values, int(rest[0]) if rest else capacity
        self._mark(0, capacity)

    @classmethod
    def from_state(cls, state: Any) -> PoolBackedKVCache:
        """Not possible without a pool.

        Raises:
            TypeError: always.
        """
        raise TypeError("A PoolBackedKVCache needs its pool: make one with it, then set its state.")

    def __deepcopy__(self, memo: dict[int, Any]) -> PoolBackedKVCache:
        """A copy of the buffers with the same pool and owner. It is not charged for what was copied, only for growth.

        (The public library's meaning. It holds none of the original's blocks, so either can go first.)
        """
        twin = type(self)(self.pool, self.owner, self.step)
        twin.keys, twin.values = copy.deepcopy((self.keys, self.values), memo)
        twin.offset = self.offset
        twin._n_free_of_charge = self._n_blocks(self._capacity())
        return twin

    def __repr__(self) -> str:
        return f"<PoolBackedKVCache of {self.offset} tokens in room for {self._capacity()}, owner {self.owner}>"

    def _capacity(self) -> int:
        """Tokens the buffer has room for."""
        return 0 if self.keys is None else int(self.keys.shape[2])

    def _n_blocks(self, n_tokens: int) -> int:
        return -(-n_tokens // self.pool.config.block_size)

    def _grow(self, capacity: int, keys: Any, values: Any) -> None:
        """Make room for `capacity` tokens in all; keys and values give shape and dtype of a first buffer."""
        old = self._capacity()
        self._note_bytes(keys, values)
        self._forget_freed()
        if self._followers:
            # All layers of a model grow in one forward pass. Were the pool to end half-way, the first layers would hold
            # tokens that the others lack, and using them on would give wrong answers.
            layers = [self, *self._followers]
            n = sum(max(0, layer._n_blocks(capacity) - layer._n_charged()) for layer in layers)
            self.pool.require(n, n, n * sum(self._token_bytes.values()) * self.pool.config.block_size)
        self._charge(capacity)
        try:
            grown = []
            for buffer, new in ((self.keys, keys), (self.values, values)):
                batch, n_kv_heads, _, d = new.shape
                room = mx.zeros((batch, n_kv_heads, capacity - old, d), new.dtype)
                grown.append(room if buffer is None else mx.concatenate([buffer, room], axis=2))
        except BaseException:
            self._charge(old)
            raise
        self.keys, self.values = grown
        self._mark(self.offset, capacity)

    def _note_bytes(self, keys: Any, values: Any) -> None:
        self._token_bytes = {"k": keys.nbytes // keys.shape[2], "v": values.nbytes // values.shape[2]}

    def _n_charged(self) -> int:
        """Blocks of one stream that the buffer has room in, paid for or not."""
        return self._n_free_of_charge + len(self._blocks["k"])

    def _charge(self, capacity: int) -> None:
        """Hold the blocks of a buffer of `capacity` tokens: take what is missing in both streams, or free the rest."""
        size = self.pool.config.block_size
        n = max(0, self._n_blocks(capacity) - self._n_free_of_charge)
        missing = n - len(self._blocks["k"])  # both streams hold the same number
        if missing > 0:
            k_bytes, v_bytes = (self._token_bytes[stream] * size for stream in "kv")
            new_k = self.pool.allocate("k", missing * size, self.owner, n_bytes=k_bytes)
            try:
                new_v = self.pool.allocate("v", missing * size, self.owner, n_bytes=v_bytes)
            except BaseException:
                self.pool.free(new_k)
                raise
            self._blocks["k"] += new_k
            self._blocks["v"] += new_v
        elif missing < 0:
            for blocks in self._blocks.values():
                self.pool.free(blocks[n:])
                del blocks[n:]

    def _mark(self, start: int, end: int) -> None:
        """Bring n_used of the blocks that tokens start to end lie in up to date with the offset."""
        size = self.pool.config.block_size
        first, last = start // size - self._n_free_of_charge, self._n_blocks(end) - self._n_free_of_charge
        for blocks in self._blocks.values():
            for i in range(max(0, first), min(last, len(blocks))):
                n_used = min(size, max(0, self.offset - (i + self._n_free_of_charge) * size))
                if blocks[i].owner is not None and blocks[i].n_used != n_used:
                    self.pool.mark_used(blocks[i], n_used)

    def _forget_freed(self) -> None:
        # release() of another layer, or pool.free_all(owner), freed what we held. The buffer is still there; from now
        # on it counts as free of charge.
        if self._blocks["k"] and self._blocks["k"][-1].owner is None:
            self._n_free_of_charge += len(self._blocks["k"])
            self._blocks = {"k": [], "v": []}


def build_pooled_caches(model: Any, pool: BlockPoolAllocator, owner: int, step: int | None = None) -> list[Any]:
    """The caches of an mlx-lm model, one per layer, all drawing on one pool under one owner.

    Layers whose own cache is not mlx-lm's plain one (sliding window, state space) keep theirs, which the pool doesn't
    know of. One `release()`, or `pool.free_all(owner)`, gives back all layers' blocks.

    Args:
        model: An mlx-lm model.
        pool: Where the blocks come from.
        owner: The id of the request.
        step: Tokens a buffer grows by; None is 256, or block_size where that is larger.
    """
    caches = [
        PoolBackedKVCache(pool, owner, step) if type(cache) is _StockKVCache else cache
        for cache in mlx_lm_cache.make_prompt_cache(model)
    ]
    layers = [cache for cache in caches if isinstance(cache, PoolBackedKVCache)]
    if layers:
        layers[0]._followers = layers[1:]
    return caches
