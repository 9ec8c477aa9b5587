"""BlockPoolAllocator: which blocks of a shared KV-cache budget are held by whom (standard library only).

The pool knows blocks and nothing of caches or requests. A block is room for `block_size` tokens in one stream; the
pool keeps count, the caches keep the arrays.

Invariants, all kept under one lock:
- blocks in use + free blocks == stats.n_blocks, in each stream and over all;
- a block id is in one place only: never used, returned, held by one owner, or retired for good;
- `allocate` makes a new `Block` handle for each lease, and only the handle of the running lease can free or mark the
  block. So freeing is idempotent, and a handle kept too long can't free what now belongs to somebody else.
Every operation costs O(1) per block it touches, and a block nobody has used yet is only a number in a range.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NoReturn

from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError, OwnerAlreadyActiveError
from veloxquant_mlx.memory.blocks import Block, PoolConfig, whole
from veloxquant_mlx.memory.free_blocks import FreeBlocks
from veloxquant_mlx.memory.pool_stats import AllocationStats, counts

__all__ = ["AllocationStats", "Block", "BlockPoolAllocator", "PoolConfig"]

HISTORY_LENGTH = 256


class BlockPoolAllocator:
    """A budget of fixed-size blocks that many caches share, with counts of what happens to it.

    Thread-safe: any thread may call anything. `stats` is live, `history` the latest changes of the blocks in use.

    An owner is any id the callers agree on (a request, a chat, a layer). It becomes active with `register_owner` or
    its first `allocate`, and stops being so when its last block is freed, or with `free_all` or `release_owner`.

    Example:
        pool = BlockPoolAllocator(PoolConfig(block_size=16, n_blocks=256))
        blocks = pool.allocate("k", n_tokens=20, owner=1)  # two blocks, the second holds 4 tokens
        pool.free(blocks)
    """

    def __init__(self, config: PoolConfig | None = None) -> None:
        self.config = config or PoolConfig()
        self.stats = AllocationStats(n_blocks=self.config.n_blocks)
        self._lock = self.stats._lock
        self._block_size = self.config.block_size
        self._max_bytes = self.config.max_bytes
        self._held: dict[int, dict[int, Block]] = {}  # owner -> block id -> live handle, in the order of allocation
        self._active: set[int] = set()
        self._history: deque[tuple[int, ...]] = deque(maxlen=HISTORY_LENGTH)
        n = self.config.n_blocks
        self._next_id = n
        names = ("k", "v") if self.config.separate_kv else ("kv",)
        self._streams = {name: FreeBlocks(name) for name in names}
        self._only = None if self.config.separate_kv else self._streams["kv"]
        if self._only:
            self._only.add(0, n)
        else:
            self._streams["k"].add(0, n - n // 2)
            self._streams["v"].add(n - n // 2, n // 2)

    # ------------------------------------------------------------------ blocks
    def allocate(self, stream: str, n_tokens: int, owner: int, format: str = "fp16", n_bytes: int = 0) -> list[Block]:
        """Take the blocks that n_tokens more tokens need; all of them or none.

        Args:
            stream: "k" or "v"; any name in a pool with one stream.
            n_tokens: At least 1. All blocks but the last are marked full, the last with what is left.
            owner: Who takes them.
            format: What will be stored in them.
            n_bytes: Of one block in this format.

        Returns:
            ceil(n_tokens / block_size) new handles.

        Raises:
            ValueError: for an unknown stream, n_tokens below 1, or no owner.
            BlockPoolExhaustedError: The stream has too few free blocks and may not grow, or there would be more bytes
                in use than max_bytes; nothing was taken.
        """
        if type(n_tokens) is not int or n_tokens < 1:
            whole("n_tokens", n_tokens, 1)
        if owner is None:
            raise ValueError("allocate() needs an owner; None is what a free block has.")
        size = self._block_size
        n = -(-n_tokens // size)
        stats = self.stats
        with self._lock:
            source = self._only or self._streams.get(stream) or self._stream(stream)
            held = self._held.get(owner)
            n_returned = len(source.returned)
            if n_bytes and not self._bytes_fit(n * n_bytes):
                self._refuse_bytes(n * n_bytes)
            if n > n_returned + source.n_fresh:
                self._grow_or_refuse(source, n)
            if held is None:
                held = self._held[owner] = {}
            self._active.add(owner)
            if n == 1:
                block_id = source.take_one()
                last = held[block_id] = Block(block_id, source.name, format, n_tokens, owner, n_bytes)
                blocks = [last]
            else:
                name = source.name
                ids = source.take(n)
                blocks = [Block(block_id, name, format, size, owner, n_bytes) for block_id in ids]
                last = blocks[-1]
                last.n_used = n_tokens - (n - 1) * size
                held.update(zip(ids, blocks, strict=True))
            if last.n_used < size:
                stats.n_partly_filled += 1
            stats.n_reused += n if n < n_returned else n_returned
            stats.n_allocations = n_allocations = stats.n_allocations + n
            in_use = n_allocations - stats.n_frees
            if in_use > stats.peak_blocks_in_use:
                stats.peak_blocks_in_use = in_use
            if n_bytes:
                stats.bytes_in_use += n * n_bytes
                stats.peak_bytes_in_use = max(stats.peak_bytes_in_use, stats.bytes_in_use)
            self._history.append(counts(stats))
        return blocks

    def free(self, blocks: Iterable[Block]) -> None:
        """Give blocks back. Handles that are freed already, or come from another pool, are passed over.

        Raises:
            TypeError: Something in blocks is not a Block; nothing was freed.
        """
        batch = list(blocks)
        if strangers := set(map(type, batch)) - {Block}:
            raise TypeError(f"free() takes the Block objects that allocate() returned, not {strangers.pop().__name__}.")
        with self._lock:
            self._free(batch)

    def free_all(self, owner: int) -> None:
        """Give back everything the owner holds, and end the owner. An owner that holds nothing is fine."""
        with self._lock:
            self._free(list(self._held.get(owner, {}).values()))
            self._active.discard(owner)

    def blocks_for(self, owner: int) -> list[Block]:
        """The owner's blocks, in the order they were allocated."""
        with self._lock:
            return list(self._held.get(owner, {}).values())

    def mark_used(self, block: Block, n_used: int) -> None:
        """Say how many tokens a block holds now.

        Raises:
            ValueError: n_used is not within 0..block_size, or the block is not checked out.
        """
        size = self._block_size
        if type(n_used) is not int or not 0 <= n_used <= size:
            raise ValueError(f"A block of this pool holds 0 to {size} tokens, not {n_used!r}.")
        with self._lock:
            self._check_live(block)
            self.stats.n_partly_filled += (0 < n_used < size) - (0 < block.n_used < size)
            block.n_used = n_used

    def mark_format(self, block: Block, format: str, n_bytes: int | None = None) -> None:
        """Say what is stored in a block now (for instance after its tokens were compressed).

        Args:
            block: Checked out of this pool.
            format: A name for it.
            n_bytes: Of a block in this format; None is as before.

        Raises:
            ValueError: The block is not checked out.
        """
        self.mark_formats((block,), format, n_bytes)

    def mark_formats(self, blocks: Iterable[Block], format: str, n_bytes: int | None = None) -> None:
        """mark_format for several blocks at once; none is changed if one of them is not checked out."""
        batch = list(blocks)
        with self._lock:
            for block in batch:
                self._check_live(block)
            for block in batch:
                block.format = format
                if n_bytes is not None:
                    # Room that is there already is never refused, so the sum may go above max_bytes here.
                    self.stats.bytes_in_use += n_bytes - block.n_bytes
                    block.n_bytes = n_bytes
            self.stats.peak_bytes_in_use = max(self.stats.peak_bytes_in_use, self.stats.bytes_in_use)

    @property
    def bytes_in_use(self) -> int:
        """Bytes of all blocks in use, each as its format has it; blocks whose holder didn't say count 0."""
        with self._lock:
            return self.stats.bytes_in_use

    def bytes_by_format(self) -> dict[str, int]:
        """The same bytes, per format. Looks at every block in use."""
        found: dict[str, int] = {}
        with self._lock:
            for held in self._held.values():
                for block in held.values():
                    found[block.format] = found.get(block.format, 0) + block.n_bytes
        return found

    # ------------------------------------------------------------------ owners
    def register_owner(self, owner: int) -> None:
        """Make an owner active before it takes blocks, to notice when one id is used for two things.

        Raises:
            OwnerAlreadyActiveError: The owner is active.
        """
        with self._lock:
            if owner in self._active:
                raise OwnerAlreadyActiveError(
                    f"Owner {owner!r} is active in this pool with {len(self._held.get(owner, ()))} blocks; "
                    f"use another id, or call free_all({owner!r}) first if its request has ended."
                )
            self._active.add(owner)

    def release_owner(self, owner: int) -> None:
        """End an owner without freeing what it holds; for one that was registered and took nothing."""
        with self._lock:
            self._active.discard(owner)

    # ------------------------------------------------------------------ size
    def n_free(self, stream: str = "k") -> int:
        """Free blocks of a stream, growth not counted."""
        with self._lock:
            return self._stream(stream).n_free

    def can_allocate(self, n_k: int, n_v: int, n_bytes: int = 0) -> bool:
        """Whether n_k blocks for keys and n_v for values, n_bytes in all, could be taken now, growth included."""
        whole("n_k", n_k, 0)
        whole("n_v", n_v, 0)
        with self._lock:
            if not self._bytes_fit(n_bytes):
                return False
            if self._only:
                short = max(0, n_k + n_v - self._only.n_free)
            else:
                short = max(0, n_k - self._streams["k"].n_free) + max(0, n_v - self._streams["v"].n_free)
            return short == 0 or (self.config.grow_on_exhaustion and self._fits(short))

    def require(self, n_k: int, n_v: int, n_bytes: int = 0) -> None:
        """Make sure that can_allocate holds, without taking anything.

        Raises:
            BlockPoolExhaustedError: They could not.
        """
        if not self.can_allocate(n_k, n_v, n_bytes):
            with self._lock:
                if not self._bytes_fit(n_bytes):
                    self._refuse_bytes(n_bytes)
                self._refuse(n_k + n_v, "/".join(self._streams))

    def grow(self, stream: str, n: int) -> None:
        """Add n blocks to a stream.

        Raises:
            ValueError: for an unknown stream or n below 1.
            BlockPoolExhaustedError: The pool would be larger than max_blocks; nothing was added.
        """
        whole("n", n, 1)
        with self._lock:
            target = self._stream(stream)
            if not self._fits(n):
                raise BlockPoolExhaustedError(
                    f"{n} more blocks would make {self.stats.n_blocks + n}, and this pool may have at most "
                    f"{self.config.max_blocks}; add fewer, or build the pool with a larger max_blocks."
                )
            self._add(target, n)

    def shrink(self, stream: str, target_free: int) -> int:
        """Take free blocks out of a stream for good, until target_free are left; blocks in use are never touched.

        Returns:
            How many blocks were retired. Their ids are not used again.

        Raises:
            ValueError: for an unknown stream or target_free below 0.
        """
        whole("target_free", target_free, 0)
        with self._lock:
            source = self._stream(stream)
            n = max(0, source.n_free - target_free)
            source.retire(n)
            self.stats.n_blocks -= n
            self.stats.n_retired += n
            return n

    @property
    def history(self) -> deque[AllocationStats]:
        """The counts after each of the latest 256 changes of the blocks in use, oldest first (a copy)."""
        with self._lock:
            rows = list(self._history)
        return deque((AllocationStats(*row) for row in rows), maxlen=HISTORY_LENGTH)

    def __repr__(self) -> str:
        now = self.stats.snapshot()
        return f"<BlockPoolAllocator: {now.blocks_in_use()} of {now.n_blocks} blocks of {self._block_size} in use>"

    # ------------------------------------------------------------------ inside the lock
    def _stream(self, name: str) -> FreeBlocks:
        stream = self._only or self._streams.get(name)
        if stream is None:
            raise ValueError(f'This pool has the streams "k" and "v", and no stream {name!r}.')
        return stream

    def _check_live(self, block: Block) -> None:
        held = None if block.owner is None else self._held.get(block.owner)
        if held is None or held.get(block.block_id) is not block:
            raise ValueError(f"Block {block.block_id} is not checked out of this pool (freed, or from another pool).")

    def _free(self, batch: list[Block]) -> None:
        stats = self.stats
        size = self._block_size
        n_frees = n_partly_filled = n_bytes = 0
        owner: int | None = None
        stream = ""
        held: dict[int, Block] = {}
        for block in batch:
            # Blocks come in runs of one owner and stream, so the look-ups are done once per run.
            if block.owner != owner:
                owner = block.owner
                held = {} if owner is None else self._held.get(owner, {})
            block_id = block.block_id
            if held.get(block_id) is not block:
                continue
            del held[block_id]
            if block.stream != stream:
                stream = block.stream
                give_back = self._streams[stream].returned.append
            give_back(block_id)
            if 0 < block.n_used < size:
                n_partly_filled += 1
            n_bytes += block.n_bytes
            block.n_used = 0
            block.owner = None
            n_frees += 1
            if not held and owner is not None:
                del self._held[owner]
                self._active.discard(owner)
        if n_frees:
            stats.n_frees += n_frees
            stats.n_partly_filled -= n_partly_filled
            stats.bytes_in_use -= n_bytes
            self._history.append(counts(stats))

    def _fits(self, n: int) -> bool:
        limit = self.config.max_blocks
        return limit is None or self.stats.n_blocks + n <= limit

    def _bytes_fit(self, n_bytes: int) -> bool:
        return self._max_bytes is None or self.stats.bytes_in_use + n_bytes <= self._max_bytes

    def _refuse_bytes(self, n_bytes: int) -> NoReturn:
        self.stats.n_exhausted += 1
        raise BlockPoolExhaustedError(
            f"{n_bytes:,} bytes were asked for, and of the {self._max_bytes:,} that this pool may use, "
            f"{self.stats.bytes_in_use:,} are in use. Free what other owners hold, ask for fewer tokens, or build the "
            f"pool with a larger max_bytes."
        )

    def _add(self, stream: FreeBlocks, n: int) -> None:
        stream.add(self._next_id, n)
        self._next_id += n
        self.stats.n_blocks += n
        self.stats.n_grown += n

    def _grow_or_refuse(self, stream: FreeBlocks, n: int) -> None:
        short = n - stream.n_free
        if self.config.grow_on_exhaustion:
            # Growth that falls short of the request still counts, and stays (the public library's meaning).
            limit = self.config.max_blocks
            self._add(stream, short if limit is None else min(short, limit - self.stats.n_blocks))
            if n <= stream.n_free:
                return
        self._refuse(n, stream.name)

    def _refuse(self, n: int, name: str) -> NoReturn:
        self.stats.n_exhausted += 1
        free = ", ".join(f"{s.n_free} free in {s.name!r}" for s in self._streams.values())
        larger = "max_blocks" if self.config.grow_on_exhaustion else "n_blocks (or grow_on_exhaustion=True)"
        raise BlockPoolExhaustedError(
            f"{n} blocks of {self._block_size} tokens were asked for in stream {name!r}, and the pool of "
            f"{self.stats.n_blocks} blocks has {free}. Free what other owners hold, ask for fewer tokens, or build "
            f"the pool with a larger {larger}."
        )
