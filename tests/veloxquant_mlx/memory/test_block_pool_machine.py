"""BlockPoolAllocator: no sequence of calls breaks its books."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError, OwnerAlreadyActiveError
from veloxquant_mlx.memory.block_pool import AllocationStats, Block, BlockPoolAllocator, PoolConfig


class PoolMachine(RuleBasedStateMachine):
    """Any sequence of calls against a plain model: the live handles of each block, and a few counts."""

    separate_kv = True

    def __init__(self) -> None:
        super().__init__()
        config = PoolConfig(block_size=4, n_blocks=11, max_blocks=24, separate_kv=self.separate_kv)
        self.pool = BlockPoolAllocator(config)
        self.streams = ("k", "v") if self.separate_kv else ("kv",)
        self.live: dict[int, list[Block]] = {}
        self.max_bytes: int | None = None
        self.peak_bytes = 0
        self.freed: list[Block] = []
        self.active: set[int] = set()
        self.used_once: set[int] = set()
        self.allocations = self.frees = self.reused = self.exhausted = self.grown = self.retired = self.peak = 0

    def handles(self) -> list[Block]:
        return [block for _, blocks in sorted(self.live.items()) for block in blocks]

    def bytes_in_use(self) -> int:
        return sum(blocks[0].n_bytes for blocks in self.live.values())

    def forget(self, blocks: list[Block], owners: list[int | None]) -> None:
        for block, owner in zip(blocks, owners, strict=True):
            self.live[block.block_id].remove(block)
            if not self.live[block.block_id]:
                del self.live[block.block_id]
                self.frees += 1
            assert (block.owner, block.n_used) == (None, 0)
            self.freed.append(block)
            assert owner is not None
            if not any(b.owner == owner for b in self.handles()):
                self.active.discard(owner)

    @rule(
        stream=st.sampled_from("kv"),
        n_tokens=st.integers(1, 30),
        owner=st.integers(0, 3),
        n_bytes=st.sampled_from([0, 0, 10, 30]),
    )
    def allocate(self, stream: str, n_tokens: int, owner: int, n_bytes: int) -> None:
        n = -(-n_tokens // 4)
        free = self.pool.n_free(stream)
        too_large = self.max_bytes is not None and n_bytes > 0 and self.bytes_in_use() + n * n_bytes > self.max_bytes
        if n > free or too_large:
            assert not self.pool.can_allocate(*((n, 0) if stream == "k" else (0, n)), n * n_bytes)
            with pytest.raises(BlockPoolExhaustedError):
                self.pool.allocate(stream, n_tokens, owner, n_bytes=n_bytes)
            self.exhausted += 1
            return
        blocks = self.pool.allocate(stream, n_tokens, owner, n_bytes=n_bytes)
        assert [b.n_used for b in blocks] == [4] * (n - 1) + [n_tokens - 4 * (n - 1)]
        for block in blocks:
            assert block.block_id not in self.live, "one id handed out twice"
            assert block.owner == owner
            assert block.stream == (stream if self.separate_kv else "kv")
            self.live[block.block_id] = [block]
            self.reused += block.block_id in self.used_once
            self.used_once.add(block.block_id)
        self.allocations += n
        self.active.add(owner)
        self.peak = max(self.peak, len(self.live))
        self.peak_bytes = max(self.peak_bytes, self.bytes_in_use())

    @precondition(lambda self: self.live)
    @rule(data=st.data(), owner=st.integers(0, 3))
    def share(self, data: st.DataObject, owner: int) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.handles()), unique_by=id, min_size=1))
        ids = [block.block_id for block in blocks]
        if len(set(ids)) < len(ids) or any(b.owner == owner for block_id in ids for b in self.live[block_id]):
            with pytest.raises(ValueError, match="holds block"):
                self.pool.share(blocks, owner)
            return
        twins = self.pool.share(blocks, owner)
        for block, twin in zip(blocks, twins, strict=True):
            assert twin is not block
            assert (twin.owner, twin.block_id, twin.stream) == (owner, block.block_id, block.stream)
            assert (twin.format, twin.n_used, twin.n_bytes) == (block.format, block.n_used, block.n_bytes)
            self.live[twin.block_id].append(twin)
        self.active.add(owner)

    @rule(max_bytes=st.sampled_from([None, 1, 100, 200, 400]))
    def limit_bytes(self, max_bytes: int | None) -> None:
        self.pool.limit_bytes(max_bytes)
        self.max_bytes = max_bytes

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.handles()), unique_by=id, min_size=1))
        stale = data.draw(st.lists(st.sampled_from(self.freed), max_size=3)) if self.freed else []
        owners = [b.owner for b in blocks]
        self.pool.free([*stale, *blocks, *blocks])
        self.forget(blocks, owners)

    @precondition(lambda self: self.freed)
    @rule(data=st.data())
    def use_a_stale_handle(self, data: st.DataObject) -> None:
        stale = data.draw(st.sampled_from(self.freed))
        self.pool.free([stale])
        with pytest.raises(ValueError, match="not checked out"):
            self.pool.mark_used(stale, 1)
        with pytest.raises(ValueError, match="not checked out"):
            self.pool.share([stale], 9)
        assert not self.pool.is_shared(stale)

    @rule(owner=st.integers(0, 3))
    def free_all(self, owner: int) -> None:
        blocks = self.pool.blocks_for(owner)
        self.pool.free_all(owner)
        self.forget(blocks, [owner] * len(blocks))
        self.active.discard(owner)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), n_used=st.integers(0, 4), n_bytes=st.integers(0, 40))
    def mark(self, data: st.DataObject, n_used: int, n_bytes: int) -> None:
        block = data.draw(st.sampled_from(self.handles()))
        if len(self.live[block.block_id]) > 1:
            with pytest.raises(ValueError, match="is shared by"):
                self.pool.mark_used(block, n_used)
            with pytest.raises(ValueError, match="is shared by"):
                self.pool.mark_format(block, "other", n_bytes)
            return
        self.pool.mark_used(block, n_used)
        self.pool.mark_format(block, "other", n_bytes)
        self.peak_bytes = max(self.peak_bytes, self.bytes_in_use())

    @rule(stream=st.sampled_from("kv"), n=st.integers(1, 5))
    def grow(self, stream: str, n: int) -> None:
        if self.pool.stats.n_blocks + n > 24:
            with pytest.raises(BlockPoolExhaustedError):
                self.pool.grow(stream, n)
            return
        self.pool.grow(stream, n)
        self.grown += n

    @rule(stream=st.sampled_from("kv"), target_free=st.integers(0, 6))
    def shrink(self, stream: str, target_free: int) -> None:
        free = self.pool.n_free(stream)
        retired = self.pool.shrink(stream, target_free)
        assert retired == max(0, free - target_free)
        self.retired += retired

    @rule(owner=st.integers(0, 3))
    def register(self, owner: int) -> None:
        if owner in self.active:
            with pytest.raises(OwnerAlreadyActiveError):
                self.pool.register_owner(owner)
        else:
            self.pool.register_owner(owner)
            self.active.add(owner)

    @rule(owner=st.integers(0, 3))
    def release_owner(self, owner: int) -> None:
        self.pool.release_owner(owner)
        self.active.discard(owner)

    @invariant()
    def the_books_are_right(self) -> None:
        stats = self.pool.stats
        free = sum(self.pool.n_free(stream) for stream in self.streams)
        assert stats.blocks_in_use() == len(self.live)
        assert len(self.live) + free == stats.n_blocks == 11 + self.grown - self.retired
        partly = sum(0 < blocks[0].n_used < 4 for blocks in self.live.values())
        assert stats.fragmentation() == (partly / stats.n_blocks if stats.n_blocks else 0.0)
        held = [block for owner in range(4) for block in self.pool.blocks_for(owner)]
        assert {id(block) for block in held} == {id(block) for block in self.handles()}
        assert all(self.pool.is_shared(block) == (len(self.live[block.block_id]) > 1) for block in held)
        assert self.pool.max_bytes == self.max_bytes
        free_bytes = None if self.max_bytes is None else max(0, self.max_bytes - self.bytes_in_use())
        assert self.pool.free_bytes() == free_bytes
        assert sum(self.pool.bytes_by_format().values()) == self.bytes_in_use()
        assert stats.snapshot() == AllocationStats(
            n_blocks=11 + self.grown - self.retired,
            n_allocations=self.allocations,
            n_frees=self.frees,
            n_reused=self.reused,
            n_exhausted=self.exhausted,
            n_grown=self.grown,
            n_retired=self.retired,
            peak_blocks_in_use=self.peak,
            n_partly_filled=partly,
            bytes_in_use=self.bytes_in_use(),
            peak_bytes_in_use=self.peak_bytes,
            n_shared=sum(len(blocks) > 1 for blocks in self.live.values()),
        )

    def teardown(self) -> None:
        # Every id the pool can still give, once more: none twice, and none that was retired.
        free = {stream: self.pool.n_free(stream) for stream in self.streams}
        for stream, n in free.items():
            if n:
                for block in self.pool.allocate(stream, 4 * n, owner=7):
                    assert block.block_id not in self.live
                    self.live[block.block_id] = [block]


class OneStreamMachine(PoolMachine):
    separate_kv = False


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
OneStreamMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
TestOneStreamMachine = OneStreamMachine.TestCase
