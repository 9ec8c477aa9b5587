"""PooledSide: the pool blocks of one stream of one PooledKVCache (no MLX needed)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from veloxquant_mlx.core.abstractions import Sealed, Stream
from veloxquant_mlx.memory.block_pool import Block, BlockPoolAllocator

Taken = tuple[int, int]
"""What `PooledSide.take` changed: (tokens, blocks)."""


class Run(NamedTuple):
    """Neighbouring blocks of a fork: shared ones, or else what it has to take.

    Attributes:
        n_tokens: In these blocks.
        shared: Those of the cache that is forked; empty for blocks of the fork's own.
        format: Of its own.
        n_bytes: Of each of its own.
    """

    n_tokens: int
    shared: list[Block]
    format: str
    n_bytes: int


class ForkPlan(NamedTuple):
    """How one stream of a cache is forked.

    Attributes:
        runs: All blocks of the fork, in order.
        final: Blocks [first, end) that the fork and its parent share then.
        n_blocks: What it takes from the pool.
        n_bytes: Of them, and of what the fork is charged for besides.
    """

    runs: list[Run]
    final: tuple[int, int]
    n_blocks: int
    n_bytes: int


class PooledSide:
    """The blocks of one stream of one cache: none, or ceil(n_tokens / block_size) with their n_used right.

    Those that were shared when the cache was forked are final: full, of the format they had then, and never marked
    again, whether another cache holds them still or not.
    """

    def __init__(self, stream: Stream, inner: Any, pool: BlockPoolAllocator, owner: int, format: str) -> None:
        self.stream = stream
        self._size = pool.config.block_size
        self._sealed = getattr(inner, "sealed", None)
        self._fork_shares = getattr(inner, "fork_shares", None)
        self._noted: Sealed | None = None
        self._coded = (0, 0)  # blocks [first, end) that are marked as compressed
        self.final = (0, 0)  # blocks [first, end) that are final
        self._constant_at = 0  # the block that what is held for all tokens together is counted with
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
        return max(0, -(-(self.n_tokens + n) // self._size) - self.n_held())

    def take(self, x: Any) -> Taken:
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
        first, end = self._coded_blocks(sealed, sealed.n_tokens, len(self.blocks))
        was_first, was_end = self._coded
        self._coded = (first, end)
        final_first, final_end = self.final
        own = [
            (i, block)
            for i, block in enumerate(self.blocks)
            if block.owner is not None and not final_first <= i < final_end
        ]
        coded = [b for i, b in own if first <= i < end and not was_first <= i < was_end]
        exact = [b for i, b in own if was_first <= i < was_end and not first <= i < end]
        if coded:
            self.pool.mark_formats(coded, self._format_of(sealed), sealed.bytes_per_token * self._size)
        if exact:
            self.pool.mark_formats(exact, self.format, self.token_bytes * self._size)
        self._charge_constant(sealed, sealed.constant_bytes)

    def _coded_blocks(self, sealed: Sealed, n_sealed: int, n_blocks: int) -> tuple[int, int]:
        """The blocks [first, end) of n_blocks that hold nothing but tokens compressed, which are n_sealed."""
        first = -(-sealed.first // self._size)
        return first, max(first, min((sealed.first + n_sealed) // self._size, n_blocks))

    def _format_of(self, sealed: Sealed) -> str:
        return sealed.format if self.format == "fp16" else self.format

    def _charge_constant(self, sealed: Sealed, constant_bytes: int) -> None:
        """Count what is held for all tokens together with the first block, or with the first one that is shared."""
        at, block = self._constant_at, self.blocks[self._constant_at]
        if self.final[0] <= at < self.final[1]:
            return  # counted when it was shared
        per_token = sealed.bytes_per_token if self._coded[0] <= at < self._coded[1] else self.token_bytes
        n_bytes = per_token * self._size + constant_bytes
        if block.owner is not None and block.n_bytes != n_bytes:
            self.pool.mark_format(block, block.format, n_bytes)

    def undo(self, taken: Taken) -> None:
        n, n_blocks = taken
        self._cut(self.n_tokens - n, len(self.blocks) - n_blocks)

    def spare_for(self, n_tokens: int) -> list[Block]:
        """A block for the last tokens if n_tokens are kept, where they are in the middle of one that is shared.

        Raises:
            BlockPoolExhaustedError: There is none.
        """
        i, n_used = divmod(max(0, n_tokens), self._size)
        if not n_used or not self.final[0] <= i < self.final[1] or not self.pool.is_shared(self.blocks[i]):
            return []
        # Its tokens count as they came, like those of any block that is not coded whole.
        return self.pool.allocate(self.stream, n_used, self.owner, self.format, self.token_bytes * self._size)

    def trim(self, n: int, spare: list[Block]) -> None:
        n_tokens = max(0, self.n_tokens - n)
        self._forget_freed()
        n_blocks = min(len(self.blocks), -(-n_tokens // self._size))
        if spare and n_blocks and n_tokens % self._size:
            self.blocks[n_blocks - 1 : n_blocks], spare = spare, self.blocks[n_blocks - 1 : n_blocks]
        self.pool.free(spare)
        self._cut(n_tokens, n_blocks)
        self.note_sealed()

    def release(self) -> None:
        self.pool.free(self.blocks)
        self.blocks = []
        self._forget_marks()

    # ------------------------------------------------------------------ forking
    def plan_fork(self, n_tokens: int) -> ForkPlan:
        """How a fork of the first n_tokens gets its blocks."""
        size, n_blocks = self._size, -(-n_tokens // self._size)
        start, stop = (0, 0) if self._fork_shares is None else self._fork_shares(self.stream, n_tokens, size)
        self.note_sealed()  # the question may have made the wrapped cache store what it had put off
        sealed: Sealed | None = None if self._sealed is None else self._sealed(self.stream)
        self._forget_freed()
        final = (start // size, stop // size)
        lent = self.blocks[slice(*final)]
        if len(lent) < final[1] - final[0] or any(block.owner is None for block in lent):
            final = (0, 0)  # released: the arrays are shared, but the fork has to pay for its tokens by itself
        n_sealed = 0 if sealed is None else min(sealed.n_tokens, max(0, n_tokens - sealed.first))
        coded = self._coded_blocks(sealed, n_sealed, n_blocks) if sealed is not None else (0, 0)
        runs: list[Run] = []
        edges = sorted({0, n_blocks, *(min(edge, n_blocks) for edge in (*final, *coded))})
        for first, end in pairwise(edges):
            format, n_bytes = self.format, self.token_bytes * size
            if sealed is not None and coded[0] <= first < coded[1]:
                format, n_bytes = self._format_of(sealed), sealed.bytes_per_token * size
            shared = self.blocks[first:end] if final[0] <= first < final[1] else []
            runs.append(Run(min(n_tokens, end * size) - first * size, shared, format, n_bytes))
        own = [(-(-run.n_tokens // size), run.n_bytes) for run in runs if not run.shared]
        constant = sealed.constant_bytes if sealed is not None and n_sealed and final[0] == final[1] else 0
        return ForkPlan(runs, final, sum(n for n, _ in own), sum(n * n_bytes for n, n_bytes in own) + constant)

    def take_fork(self, plan: ForkPlan, owner: int) -> list[Block]:
        """The blocks of a fork, shared and taken; all or none."""
        self._move_constant(plan.final)
        blocks: list[Block] = []
        try:
            for n_tokens, shared, format, n_bytes in plan.runs:
                # Exact tokens that the fork shares too, for the moment, are charged to it as well, as the means are
                # where no block is shared: it will own them soon, and then must not be refused.
                blocks += (
                    self.pool.share(shared, owner)
                    if shared
                    else self.pool.allocate(self.stream, n_tokens, owner, format, n_bytes)
                )
        except BaseException:
            self.pool.free(blocks)
            raise
        return blocks

    def begin_fork(self, parent: PooledSide, plan: ForkPlan, blocks: list[Block], n_tokens: int) -> None:
        """Hold what `parent.take_fork` took."""
        self.blocks, self.n_tokens, self.token_bytes = blocks, n_tokens, parent.token_bytes
        self.final, self._constant_at = plan.final, plan.final[0]
        if plan.final[0] < plan.final[1]:
            parent.final = (plan.final[0], max(plan.final[1], parent.final[1]))
        self.note_sealed()

    def _move_constant(self, final: tuple[int, int]) -> None:
        """Count what is held for all tokens together with the first shared block, so that it counts once."""
        at = final[0]
        if final[0] == final[1] or at == self._constant_at or self._noted is None:
            return
        self._charge_constant(self._noted, 0)
        self._constant_at = at
        self._charge_constant(self._noted, self._noted.constant_bytes)

    def _cut(self, n_tokens: int, n_blocks: int) -> None:
        gone = self.blocks[n_blocks:]
        del self.blocks[n_blocks:]
        self._coded = (min(self._coded[0], n_blocks), min(self._coded[1], n_blocks))
        if self.final[1] > n_tokens // self._size:
            self.final = (self.final[0], n_tokens // self._size)
            if self.final[0] >= self.final[1]:
                self.final, self._constant_at = (0, 0), 0
        if self._constant_at >= n_blocks:
            self._constant_at = 0
        self.pool.free(gone)
        self.n_tokens = n_tokens
        self._mark(n_blocks - 1, n_tokens)

    def _mark(self, i: int, n_tokens: int) -> None:
        """Set how full block i is when the side holds n_tokens."""
        if i >= 0:
            size = self._size
            n_used, block = min(size, n_tokens - i * size), self.blocks[i]
            if 0 < block.n_used < size and 0 < n_used < size:
                block.n_used = n_used  # partly filled before and after: the pool counts it the same
            elif block.n_used != n_used:
                self.pool.mark_used(block, n_used)

    def _forget_freed(self) -> None:
        # pool.free_all(owner) frees blocks past us; the last block tells, without a look at every one.
        if self.blocks and self.blocks[-1].owner is None:
            self.blocks = [block for block in self.blocks if block.owner is not None]
            self._forget_marks()

    def _forget_marks(self) -> None:
        self._coded = self.final = (0, 0)
        self._constant_at, self._noted = 0, None


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
