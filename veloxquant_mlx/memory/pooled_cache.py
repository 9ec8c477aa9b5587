"""PooledKVCache: any KVCache, with its tokens accounted for in a shared block pool (no MLX needed)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from veloxquant_mlx.core.abstractions import KVCache
from veloxquant_mlx.memory.block_pool import Block, BlockPoolAllocator
from veloxquant_mlx.memory.blocks import whole
from veloxquant_mlx.memory.pooled_side import ForkPlan, PooledSide, Taken


class PooledKVCache(KVCache):
    """Wraps a cache and holds pool blocks for every token in it, keys and values apart.

    The wrapped cache owns its arrays and compresses as it likes. A block is taken from the pool only when the last one
    is full, and taken before the wrapped cache changes: a pool that is exhausted leaves both as they were. All blocks
    go back at once with `release` or `reset`.

    Blocks are told apart by their handles, never by the owner: caches that share an owner (the layers of one chat, or
    all that leave it at -1) don't free each other's blocks.

    Args:
        inner: Anything with append_key, append_value, attend, memory_bytes and reset; a `KVCache` or not. Its `trim`,
            `extend_and_attend` and `fork` are used where it has them.
        pool: Where the blocks come from.
        owner: The id of the request or chat, for the pool's books.
        format: What the pool's books say is stored in the blocks. Left at "fp16", blocks that the wrapped cache has
            compressed whole are called what it says itself.

    Where the wrapped cache tells which tokens it keeps compressed (`KVCache.sealed`), the books also have the bytes:
    a block is as large as its tokens were when they came, and as their codes from when all of them are coded. What the
    wrapped cache holds for all tokens together (a mean, a basis) is in the first block, or the first that forks share.
    """

    def __init__(self, inner: Any, pool: BlockPoolAllocator, owner: int = -1, format: str = "fp16") -> None:
        self._inner = inner
        self._pool = pool
        self._owner = owner
        self._format = format
        self._keys = PooledSide("k", inner, pool, owner, format)
        self._values = PooledSide("v", inner, pool, owner, format)

    @property
    def inner(self) -> Any:
        """The wrapped cache."""
        return self._inner

    @property
    def pool(self) -> BlockPoolAllocator:
        """The pool the blocks come from."""
        return self._pool

    @property
    def owner(self) -> int:
        """The id this cache takes its blocks under."""
        return self._owner

    @property
    def format(self) -> str:
        """What the pool's books say is stored in the blocks."""
        return self._format

    def append_key(self, k: Any) -> None:
        """Take the K blocks that are missing, then append to the wrapped cache.

        Args:
            k: `(d,)`, or `(n_kv_heads, n_tokens, d)`.

        Raises:
            BlockPoolExhaustedError: The pool has too few K blocks; nothing was appended or taken.
        """
        _append_one(self._keys, self._inner.append_key, k)

    def append_value(self, v: Any) -> None:
        """Take the V blocks that are missing, then append to the wrapped cache.

        Args:
            v: `(d,)`, or `(n_kv_heads, n_tokens, d)`.

        Raises:
            BlockPoolExhaustedError: The pool has too few V blocks; nothing was appended or taken.
        """
        _append_one(self._values, self._inner.append_value, v)

    def append(self, k: Any, v: Any) -> None:
        """Take the blocks of both, or none, then append to the wrapped cache; shapes as in append_key.

        Raises:
            BlockPoolExhaustedError: The pool has too few K or V blocks; nothing was appended or taken.
        """
        taken_k, taken_v = self._take_both(k, v)
        self._append_taken(k, v, taken_k, taken_v)

    def attend(self, q: Any, scale: float | None = None) -> Any:
        """The wrapped cache's attention; q is `(d,)` or `(n_q_heads, n_tokens, d)`, and so is the output."""
        return self._inner.attend(q) if scale is None else self._inner.attend(q, scale)

    def extend_and_attend(self, k: Any, v: Any, q: Any, scale: float | None = None) -> Any:
        """Take the blocks of both, or none; then append and attend as the wrapped cache does it best.

        Args:
            k: `(d,)`, or `(n_kv_heads, n_tokens, d)`.
            v: `(d,)`, or `(n_kv_heads, n_tokens, d)`.
            q: `(d,)`, or `(n_q_heads, n_tokens, d)`.
            scale: What the scores are multiplied by; None is the wrapped cache's own default.

        Raises:
            BlockPoolExhaustedError: The pool has too few K or V blocks; nothing was appended or taken.
        """
        taken_k, taken_v = self._take_both(k, v)
        extend = getattr(self._inner, "extend_and_attend", None)
        # The interface's default does these three steps too, but out of our sight: a failure half-way through would
        # leave us guessing what was appended.
        if extend is None or getattr(type(self._inner), "extend_and_attend", None) is KVCache.extend_and_attend:
            self._append_taken(k, v, taken_k, taken_v)
            return self.attend(q, scale)
        try:
            out = extend(k, v, q) if scale is None else extend(k, v, q, scale)
        except BaseException:
            self._keys.undo(taken_k)
            self._values.undo(taken_v)
            raise
        self._keys.note_sealed()
        self._values.note_sealed()
        return out

    def memory_bytes(self) -> int:
        """Bytes the wrapped cache holds."""
        return int(self._inner.memory_bytes())

    def release(self) -> None:
        """Give all blocks of this cache back to the pool; the wrapped cache keeps its tokens.

        A second call changes nothing. If the cache is appended to again, the next append takes blocks for all tokens.
        """
        self._keys.release()
        self._values.release()

    def reset(self) -> None:
        """Give all blocks back and empty the wrapped cache."""
        self._inner.reset()
        self.release()
        self._keys.n_tokens = self._values.n_tokens = 0

    def trim(self, n: int) -> int:
        """Forget the last n tokens and give back the blocks that are empty then.

        Returns:
            How many tokens were forgotten.

        Raises:
            ValueError: n is below 0.
            NotImplementedError: The wrapped cache has no trim; nothing was changed.
            BlockPoolExhaustedError: What is kept ends in the middle of a block that forks share, and there is none to
                hold it instead; nothing was changed.
        """
        if n < 0:
            raise ValueError(f"trim() forgets a number of tokens of at least 0, not {n}.")
        trim = getattr(self._inner, "trim", None)
        if trim is None:
            raise NotImplementedError(
                f"{type(self._inner).__name__} can't forget single tokens (it has no trim); "
                f"reset() the cache and append what should stay."
            )
        n = min(n, len(self))
        spare_k, spare_v = self._keys.spare_for(self._keys.n_tokens - n), []
        try:
            spare_v = self._values.spare_for(self._values.n_tokens - n)
            trimmed = trim(n)
        except BaseException:
            self._pool.free(spare_k + spare_v)
            raise
        n = n if trimmed is None else int(trimmed)
        self._keys.trim(n, spare_k)
        self._values.trim(n, spare_v)
        return n

    # The owner comes first: there is no fork without one here, and the multiple is the pool's block size.
    def fork(self, owner: int, n_tokens: int | None = None) -> PooledKVCache:  # type: ignore[override]
        """A cache of the first n_tokens for another owner, independent from now on.

        Blocks that the wrapped cache shares whole with its fork are shared in the pool; the rest are the fork's own.
        After `release`, all are.

        Args:
            owner: Not this cache's, and none that holds blocks of it already.
            n_tokens: None is all of them.

        Raises:
            ValueError: The owner is this cache's or holds its blocks, or it has fewer tokens; nothing was changed.
            NotImplementedError: The wrapped cache can't be forked; nothing was changed.
            BlockPoolExhaustedError: The pool has too little for the fork's own blocks; nothing was changed.
        """
        if owner == self._owner:
            raise ValueError(f"A fork needs an owner of its own, and {owner!r} holds the cache that is forked.")
        n_tokens, plans = self._plan_fork(n_tokens)
        self._pool.require(*_needs(plans))
        taken: list[list[Block]] = []
        try:
            for side, plan in zip(self._sides, plans, strict=True):
                taken.append(side.take_fork(plan, owner))
            inner = self._inner.fork(n_tokens=n_tokens, multiple_of=self._pool.config.block_size)
        except BaseException:
            self._pool.free(block for blocks in taken for block in blocks)
            raise
        twin = PooledKVCache(inner, self._pool, owner, self._format)
        for mine, its, plan, blocks in zip(self._sides, twin._sides, plans, taken, strict=True):
            its.begin_fork(mine, plan, blocks, n_tokens)
        return twin

    def fork_needs(self, n_tokens: int | None = None) -> tuple[int, int, int]:
        """K blocks, V blocks and bytes that `fork` would take from the pool.

        Raises:
            ValueError: This cache has fewer tokens.
            NotImplementedError: The wrapped cache can't be forked.
        """
        return _needs(self._plan_fork(n_tokens)[1])

    def shared_blocks(self) -> int:
        """K and V blocks of this cache that another one holds, too."""
        return sum(self._pool.is_shared(block) for side in self._sides for block in side.blocks[slice(*side.final)])

    def blocks_needed(self, n_tokens: int) -> tuple[int, int]:
        """The (K, V) blocks that appending n_tokens more tokens would take from the pool now."""
        return self._keys.n_missing(n_tokens), self._values.n_missing(n_tokens)

    def n_blocks_held(self) -> int:
        """K and V blocks checked out to this cache."""
        return self._keys.n_held() + self._values.n_held()

    def __len__(self) -> int:
        """Tokens stored with both their key and their value."""
        return min(self._keys.n_tokens, self._values.n_tokens)

    def __repr__(self) -> str:
        return f"<PooledKVCache of {len(self)} tokens in {self.n_blocks_held()} blocks, owner {self._owner}>"

    @property
    def _sides(self) -> tuple[PooledSide, PooledSide]:
        return self._keys, self._values

    def _plan_fork(self, n_tokens: int | None) -> tuple[int, list[ForkPlan]]:
        fork = getattr(type(self._inner), "fork", None)
        if fork is None or fork is KVCache.fork:
            raise NotImplementedError(
                f"{type(self._inner).__name__} can't be forked (it has no fork); "
                f"make a new cache and append the tokens it should begin with."
            )
        held = len(self)
        n_tokens = held if n_tokens is None else whole("n_tokens of a fork", n_tokens, 0)
        if n_tokens > held:
            raise ValueError(f"This cache holds {held} tokens, so a fork can't begin with {n_tokens}.")
        return n_tokens, [side.plan_fork(n_tokens) for side in self._sides]

    def _take_both(self, k: Any, v: Any) -> tuple[Taken, Taken]:
        taken_k = self._keys.take(k)
        try:
            return taken_k, self._values.take(v)
        except BaseException:
            self._keys.undo(taken_k)
            raise

    def _append_taken(self, k: Any, v: Any, taken_k: Taken, taken_v: Taken) -> None:
        try:
            self._inner.append_key(k)
        except BaseException:
            self._keys.undo(taken_k)
            self._values.undo(taken_v)
            raise
        try:
            self._inner.append_value(v)
        except BaseException:
            self._values.undo(taken_v)  # the keys are in the wrapped cache, and stay accounted for
            raise
        finally:
            self._keys.note_sealed()
        self._values.note_sealed()


def _append_one(side: PooledSide, append: Callable[[Any], None], x: Any) -> None:
    taken = side.take(x)
    try:
        append(x)
    except BaseException:
        side.undo(taken)
        raise
    side.note_sealed()


def _needs(plans: list[ForkPlan]) -> tuple[int, int, int]:
    keys, values = plans
    return keys.n_blocks, values.n_blocks, keys.n_bytes + values.n_bytes
