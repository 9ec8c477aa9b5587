"""PooledKVCache: any KVCache, with its tokens accounted for in a shared block pool (no MLX needed)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from veloxquant_mlx.core.abstractions import KVCache, Sealed, Stream
from veloxquant_mlx.memory.block_pool import Block, BlockPoolAllocator


class PooledKVCache(KVCache):
    """Wraps a cache and holds pool blocks for every token in it, keys and values apart.

    The wrapped cache owns its arrays and compresses as it likes. A block is taken from the pool only when the last one
    is full, and taken before the wrapped cache changes: a pool that is exhausted leaves both as they were. All blocks
    go back at once with `release` or `reset`.

    Blocks are told apart by their handles, never by the owner: caches that share an owner (the layers of one chat, or
    all that leave it at -1) don't free each other's blocks.

    Args:
        inner: Anything with append_key, append_value, attend, memory_bytes and reset; a `KVCache` or not. Its `trim`
            and `extend_and_attend` are used where it has them.
        pool: Where the blocks come from.
        owner: The id of the request or chat, for the pool's books.
        format: What the pool's books say is stored in the blocks. Left at "fp16", blocks that the wrapped cache has
            compressed whole are called what it says itself.

    Where the wrapped cache tells which tokens it keeps compressed (`KVCache.sealed`), the books also have the bytes:
    a block is as large as its tokens were when they came, and as their codes from when all of them are coded. What the
    wrapped cache holds for all tokens together (a mean, a basis) is in the first block.
    """

    def __init__(self, inner: Any, pool: BlockPoolAllocator, owner: int = -1, format: str = "fp16") -> None:
        self._inner = inner
        self._pool = pool
        self._owner = owner
        self._format = format
        self._keys = _Side("k", inner, pool, owner, format)
        self._values = _Side("v", inner, pool, owner, format)

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
        trimmed = trim(n)
        n = n if trimmed is None else int(trimmed)
        self._keys.trim(n)
        self._values.trim(n)
        return n

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

    def _take_both(self, k: Any, v: Any) -> tuple[_Taken, _Taken]:
        taken_k = self._keys.take(k)
        try:
            return taken_k, self._values.take(v)
        except BaseException:
            self._keys.undo(taken_k)
            raise

    def _append_taken(self, k: Any, v: Any, taken_k: _Taken, taken_v: _Taken) -> None:
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


_Taken = tuple[int, int]
"""What `_Side.take` changed: (tokens, blocks)."""


class _Side:
    """The blocks of one stream of one cache: none, or ceil(n_tokens / block_size) with their n_used right."""

    def __init__(self, stream: Stream, inner: Any, pool: BlockPoolAllocator, owner: int, format: str) -> None:
        self.stream = stream
        self._size = pool.config.block_size
        self._sealed = getattr(inner, "sealed", None)
        self._noted: Sealed | None = None
        self._coded = (0, 0)  # blocks [first, end) that are marked as compressed
        self.token_bytes = 0  # of a token as it comes, all heads
        self.pool = pool
        self.owner = owner
        self.format = format
        self.blocks: list[Block] = []
        self.n_tokens = 0

    def n_held(self) -> int:
        blocks = self.blocks  # read once: another thread may ask
        if not blocks or blocks[-1].owner is not None:
            return len(blocks)
        return sum(block.owner is not None for block in blocks)

    def n_missing(self, n: int) -> int:
        """Blocks that n more tokens would take."""
        return max(0, -(-(self.n_tokens + n) // self.pool.config.block_size) - self.n_held())

    def take(self, x: Any) -> _Taken:
        """Take what the tokens in x need, or raise BlockPoolExhaustedError and change nothing."""
        n = _n_tokens(x)
        if not self.token_bytes:
            self.token_bytes = _n_bytes(x) // n
        self._forget_freed()
        n_tokens, room = self.n_tokens + n, len(self.blocks) * self._size
        new: list[Block] = []
        if n_tokens > room:
            # Blocks held become full, so what doesn't fit into them is what the new blocks hold.
            n_bytes = self.token_bytes * self._size
            new = self.pool.allocate(self.stream, n_tokens - room, self.owner, self.format, n_bytes)
        self._mark(len(self.blocks) - 1, n_tokens)
        self.blocks += new
        self.n_tokens = n_tokens
        return n, len(new)

    def note_sealed(self) -> None:
        """Mark the blocks that the wrapped cache has compressed whole since the last time, or taken back."""
        sealed: Sealed | None = None if self._sealed is None else self._sealed(self.stream)
        if sealed is self._noted or sealed is None or not self.blocks:
            return
        self._noted = sealed
        first = -(-sealed.first // self._size)
        end = max(first, min((sealed.first + sealed.n_tokens) // self._size, len(self.blocks)))
        was_first, was_end = self._coded
        self._coded = (first, end)
        live = [(i, block) for i, block in enumerate(self.blocks) if block.owner is not None]
        coded = [b for i, b in live if first <= i < end and not was_first <= i < was_end]
        exact = [b for i, b in live if was_first <= i < was_end and not first <= i < end]
        format = sealed.format if self.format == "fp16" else self.format
        if coded:
            self.pool.mark_formats(coded, format, sealed.bytes_per_token * self._size)
        if exact:
            self.pool.mark_formats(exact, self.format, self.token_bytes * self._size)
        self._charge_constant(sealed, is_coded=first == 0 < end)

    def _charge_constant(self, sealed: Sealed, *, is_coded: bool) -> None:
        """Count what is held for all tokens together with the first block."""
        block = self.blocks[0]
        per_token = sealed.bytes_per_token if is_coded else self.token_bytes
        n_bytes = per_token * self._size + sealed.constant_bytes
        if block.owner is not None and block.n_bytes != n_bytes:
            self.pool.mark_format(block, block.format, n_bytes)

    def undo(self, taken: _Taken) -> None:
        n, n_blocks = taken
        self._cut(self.n_tokens - n, len(self.blocks) - n_blocks)

    def trim(self, n: int) -> None:
        n_tokens = max(0, self.n_tokens - n)
        self._forget_freed()
        self._cut(n_tokens, min(len(self.blocks), -(-n_tokens // self.pool.config.block_size)))
        self.note_sealed()

    def release(self) -> None:
        self.pool.free(self.blocks)
        self.blocks = []
        self._coded, self._noted = (0, 0), None

    def _cut(self, n_tokens: int, n_blocks: int) -> None:
        gone = self.blocks[n_blocks:]
        del self.blocks[n_blocks:]
        self._coded = (min(self._coded[0], n_blocks), min(self._coded[1], n_blocks))
        self.pool.free(gone)
        self.n_tokens = n_tokens
        self._mark(n_blocks - 1, n_tokens)

    def _mark(self, i: int, n_tokens: int) -> None:
        """Set how full block i is when the side holds n_tokens."""
        if i >= 0:
            size = self.pool.config.block_size
            n_used, block = min(size, n_tokens - i * size), self.blocks[i]
            if 0 < block.n_used < size and 0 < n_used < size:
                block.n_used = n_used  # partly filled before and after: the pool counts it the same
            elif block.n_used != n_used:
                self.pool.mark_used(block, n_used)

    def _forget_freed(self) -> None:
        # pool.free_all(owner) frees blocks past us; the last block tells, without a look at every one.
        if self.blocks and self.blocks[-1].owner is None:
            self.blocks = [block for block in self.blocks if block.owner is not None]
            self._coded, self._noted = (0, 0), None


def _append_one(side: _Side, append: Callable[[Any], None], x: Any) -> None:
    taken = side.take(x)
    try:
        append(x)
    except BaseException:
        side.undo(taken)
        raise
    side.note_sealed()


def _n_tokens(x: Any) -> int:
    """1 for a single vector `(d,)`, else n_tokens of `(n_kv_heads, n_tokens, d)`; arrays or nested lists."""
    shape = getattr(x, "shape", None)
    if shape is not None:
        return 1 if len(shape) < 2 else int(shape[1])
    rows = x[0] if isinstance(x, (list, tuple)) and x else None
    return len(rows) if isinstance(rows, (list, tuple)) else 1


def _n_bytes(x: Any) -> int:
    """Of an array; nested lists become float32."""
    n_bytes = getattr(x, "nbytes", None)
    if n_bytes is not None:
        return int(n_bytes)
    return sum(_n_bytes(part) for part in x) if isinstance(x, (list, tuple)) else 4
