"""BlockPoolAllocator: which blocks of a shared KV-cache budget are held by whom (standard library only).

The pool knows blocks and nothing of caches or requests. A block is room for `block_size` tokens in one stream; the
pool keeps count, the caches keep the arrays.

Invariants, all kept under one lock:
- blocks in use + free blocks == stats.n_blocks, in each stream and over all;
- a block id is in one place only: never used, returned, held, or retired for good;
- `allocate` makes a new `Block` handle for each lease, and only the handle of the running lease can free or mark the
  block. So freeing is idempotent, and a handle kept too long can't free what now belongs to somebody else;
- `share` makes more handles of a running lease, one per owner. All counts have the block once, it is returned when the
  last handle is freed, and as long as there are several its marks are final.
Every operation costs O(1) per block it touches, and a block nobody has used yet is only a number in a range.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from veloxquant_mlx.core.exceptions import OwnerAlreadyActiveError
from veloxquant_mlx.memory.blocks import Block, PoolConfig, whole
from veloxquant_mlx.memory.pool_size import PoolSize
from veloxquant_mlx.memory.pool_stats import AllocationStats, counts

__all__ = ["AllocationStats", "Block", "BlockPoolAllocator", "PoolConfig"]

HISTORY_LENGTH = 256


class BlockPoolAllocator(PoolSize):
    """A budget of fixed-size blocks that many caches share, with counts of what happens to it.

    Thread-safe: any thread may call anything. `stats` is live, `history` the latest changes of the blocks in use.

    An owner is any id the callers agree on (a request, a chat, a layer). It becomes active with `register_owner` or
    its first `allocate` or `share`, and stops being so when its last block is freed, or with `free_all` or
    `release_owner`.

    Example:
        pool = BlockPoolAllocator(PoolConfig(block_size=16, n_blocks=256))
        blocks = pool.allocate("k", n_tokens=20, owner=1)  # two blocks, the second holds 4 tokens
        pool.free(blocks)
    """

    def __init__(self, config: PoolConfig | None = None) -> None:
        super().__init__(config)
        self._held: dict[int, dict[int, Block]] = {}  # owner -> block id -> live handle, in the order of allocation
        self._n_handles: dict[int, int] = {}  # of the blocks that have more than one
        self._active: set[int] = set()
        self._history: deque[tuple[int, ...]] = deque(maxlen=HISTORY_LENGTH)

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

    def share(self, blocks: Iterable[Block], owner: int) -> list[Block]:
        """New handles of blocks that are held already, for another owner; of all of them or none.

        Sharing takes nothing from the pool, and freeing gives something back with a block's last handle only.

        Raises:
            TypeError: Something in blocks is not a Block.
            ValueError: A block is not checked out, the owner holds it already, or there is no owner.
        """
        batch = list(blocks)
        if strangers := set(map(type, batch)) - {Block}:
            raise _strangers(strangers, "share")
        if owner is None:
            raise ValueError("share() needs an owner; None is what a free block has.")
        with self._lock:
            held = self._held.get(owner, {})
            twins: dict[int, Block] = {}
            for block in batch:
                self._check_live(block)
                block_id = block.block_id
                if block_id in held or block_id in twins:
                    raise ValueError(f"Owner {owner!r} holds block {block_id} already; share it with another owner.")
                twins[block_id] = Block(block_id, block.stream, block.format, block.n_used, owner, block.n_bytes)
            if twins:
                self._held.setdefault(owner, {}).update(twins)
                self._active.add(owner)
                for block_id in twins:
                    self._n_handles[block_id] = self._n_handles.get(block_id, 1) + 1
                self.stats.n_shared = len(self._n_handles)
        return list(twins.values())

    def is_shared(self, block: Block) -> bool:
        """Whether a block is checked out and has another handle too."""
        with self._lock:
            return self._is_live(block) and block.block_id in self._n_handles

    def free(self, blocks: Iterable[Block]) -> None:
        """Give blocks back. Handles that are freed already, or come from another pool, are passed over.

        Raises:
            TypeError: Something in blocks is not a Block; nothing was freed.
        """
        batch = list(blocks)
        if strangers := set(map(type, batch)) - {Block}:
            raise _strangers(strangers, "free")
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
            ValueError: n_used is not within 0..block_size, or the block is not checked out, or shared.
        """
        size = self._block_size
        if type(n_used) is not int or not 0 <= n_used <= size:
            raise ValueError(f"A block of this pool holds 0 to {size} tokens, not {n_used!r}.")
        with self._lock:
            self._check_own(block)
            self.stats.n_partly_filled += (0 < n_used < size) - (0 < block.n_used < size)
            block.n_used = n_used

    def mark_format(self, block: Block, format: str, n_bytes: int | None = None) -> None:
        """Say what is stored in a block now (for instance after its tokens were compressed).

        Args:
            block: Checked out of this pool.
            format: A name for it.
            n_bytes: Of a block in this format; None is as before.

        Raises:
            ValueError: The block is not checked out, or shared.
        """
        self.mark_formats((block,), format, n_bytes)

    def mark_formats(self, blocks: Iterable[Block], format: str, n_bytes: int | None = None) -> None:
        """mark_format for several blocks at once; none is changed if one of them can't be."""
        batch = list(blocks)
        with self._lock:
            for block in batch:
                self._check_own(block)
            for block in batch:
                block.format = format
                if n_bytes is not None:
                    # Room that is there already is never refused, so the sum may go above max_bytes here.
                    self.stats.bytes_in_use += n_bytes - block.n_bytes
                    block.n_bytes = n_bytes
            self.stats.peak_bytes_in_use = max(self.stats.peak_bytes_in_use, self.stats.bytes_in_use)

    def bytes_by_format(self) -> dict[str, int]:
        """The same bytes, per format. Looks at every block in use."""
        found: dict[str, int] = {}
        shared: set[int] = set()
        with self._lock:
            for held in self._held.values():
                for block in held.values():
                    if block.block_id in self._n_handles:
                        if block.block_id in shared:
                            continue
                        shared.add(block.block_id)
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

    # ------------------------------------------------------------------ history
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
    def _is_live(self, block: Block) -> bool:
        held = None if block.owner is None else self._held.get(block.owner)
        return held is not None and held.get(block.block_id) is block

    def _check_live(self, block: Block) -> None:
        if not self._is_live(block):
            raise ValueError(f"Block {block.block_id} is not checked out of this pool (freed, or from another pool).")

    def _check_own(self, block: Block) -> None:
        self._check_live(block)
        if n := self._n_handles.get(block.block_id):
            raise ValueError(
                f"Block {block.block_id} is shared by {n} owners, so what is in it is final; "
                f"take a block of your own for what changes."
            )

    def _let_go(self, block_id: int) -> bool:
        """Note that one handle of a block goes; returns whether others are left, so that the block stays in use."""
        n = self._n_handles.get(block_id)
        if n is None:
            return False
        if n > 2:
            self._n_handles[block_id] = n - 1
        else:
            del self._n_handles[block_id]
            self.stats.n_shared -= 1
        return True

    def _free(self, batch: list[Block]) -> None:
        stats = self.stats
        size = self._block_size
        n_frees = n_partly_filled = n_bytes = 0
        owner: int | None = None
        stream = ""
        held: dict[int, Block] = {}
        n_handles = self._n_handles
        for block in batch:
            # Blocks come in runs of one owner and stream, so the look-ups are done once per run.
            if block.owner != owner:
                owner = block.owner
                held = {} if owner is None else self._held.get(owner, {})
            block_id = block.block_id
            if held.get(block_id) is not block:
                continue
            del held[block_id]
            if not (n_handles and self._let_go(block_id)):
                if block.stream != stream:
                    stream = block.stream
                    give_back = self._streams[stream].returned.append
                give_back(block_id)
                if 0 < block.n_used < size:
                    n_partly_filled += 1
                n_bytes += block.n_bytes
                n_frees += 1
            block.n_used = 0
            block.owner = None
            if not held and owner is not None:
                del self._held[owner]
                self._active.discard(owner)
        if n_frees:
            stats.n_frees += n_frees
            stats.n_partly_filled -= n_partly_filled
            stats.bytes_in_use -= n_bytes
            self._history.append(counts(stats))


def _strangers(kinds: set[type], what: str) -> TypeError:
    return TypeError(f"{what}() takes the Block objects that allocate() returned, not {kinds.pop().__name__}.")
