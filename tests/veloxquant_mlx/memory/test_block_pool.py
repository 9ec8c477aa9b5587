"""BlockPoolAllocator: what it promises."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from typing import Any

import pytest

from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError, OwnerAlreadyActiveError
from veloxquant_mlx.memory.block_pool import AllocationStats, Block, BlockPoolAllocator, PoolConfig


def pool_of(n_blocks: int, **options: Any) -> BlockPoolAllocator:
    return BlockPoolAllocator(PoolConfig(n_blocks=n_blocks, **options))


# ---------------------------------------------------------------- configuration
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size must be a whole number of at least 1, not 0"),
        ({"block_size": 1.5}, "block_size"),
        ({"block_size": True}, "block_size"),
        ({"n_blocks": 0}, "n_blocks"),
        ({"n_blocks": "9"}, "n_blocks"),
        ({"separate_kv": 1}, "separate_kv must be True or False"),
        ({"grow_on_exhaustion": None}, "grow_on_exhaustion must be True or False"),
        ({"max_blocks": 0}, "max_blocks"),
        ({"n_blocks": 10, "max_blocks": 5}, "max_blocks=5 is smaller than n_blocks=10"),
    ],
)
def test_a_config_that_cannot_work_is_refused_with_the_reason(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PoolConfig(**options)


def test_a_pool_without_config_has_the_documented_size() -> None:
    pool = BlockPoolAllocator()
    assert (pool.config.block_size, pool.stats.n_blocks, pool.n_free("k"), pool.n_free("v")) == (16, 1024, 512, 512)


def test_an_odd_block_goes_to_the_keys() -> None:
    pool = pool_of(9)
    assert (pool.n_free(), pool.n_free("k"), pool.n_free("v")) == (5, 5, 4)
    assert {b.block_id for b in pool.allocate("k", 80, 1)}.isdisjoint(b.block_id for b in pool.allocate("v", 64, 1))


def test_a_pool_with_one_stream_takes_any_name() -> None:
    pool = pool_of(4, separate_kv=False)
    (block,) = pool.allocate("anything", 1, owner=1)
    assert block.stream == "kv"
    assert pool.n_free("k") == pool.n_free("v") == 3


def test_an_unknown_stream_is_refused() -> None:
    pool = pool_of(4)
    for call in (lambda: pool.allocate("x", 1, 1), lambda: pool.n_free("x"), lambda: pool.shrink("x", 0)):
        with pytest.raises(ValueError, match="no stream 'x'"):
            call()


def test_a_million_blocks_are_made_at_once() -> None:
    start = time.perf_counter()
    pool = pool_of(1_000_000)
    assert time.perf_counter() - start < 0.05
    assert pool.n_free("k") == 500_000


# ---------------------------------------------------------------- allocate and free
def test_blocks_are_filled_in_order_and_the_last_one_partly() -> None:
    pool = pool_of(8)
    blocks = pool.allocate("k", 20, owner=9, format="int4")
    assert [(b.stream, b.format, b.n_used, b.owner) for b in blocks] == [("k", "int4", 16, 9), ("k", "int4", 4, 9)]
    assert pool.stats.fragmentation() == 1 / 8


@pytest.mark.parametrize("n_tokens", [0, -1, 1.5, True, None])
def test_a_number_of_tokens_that_is_none_is_refused(n_tokens: Any) -> None:
    pool = pool_of(4)
    with pytest.raises(ValueError, match="n_tokens must be a whole number of at least 1"):
        pool.allocate("k", n_tokens, owner=1)
    assert pool.stats == AllocationStats(n_blocks=4)


def test_an_exhausted_pool_takes_nothing_and_says_what_to_do() -> None:
    pool = pool_of(8)
    pool.allocate("k", 16, owner=1)
    with pytest.raises(BlockPoolExhaustedError) as refused:
        pool.allocate("k", 64, owner=2)
    message = str(refused.value)
    assert "4 blocks of 16 tokens" in message
    assert "pool of 8 blocks has 3 free in 'k', 4 free in 'v'" in message
    assert "n_blocks" in message
    assert pool.n_free("k") == 3
    assert pool.stats.n_exhausted == 1
    assert pool.blocks_for(2) == []
    pool.register_owner(2)  # the refused owner did not become active


def test_freeing_twice_changes_nothing() -> None:
    pool = pool_of(8)
    blocks = pool.allocate("k", 20, owner=1)
    pool.free([*blocks, *blocks])
    before = pool.stats.snapshot()
    pool.free(blocks)
    assert pool.stats == before
    assert before.n_frees == 2
    assert [(b.owner, b.n_used) for b in blocks] == [(None, 0), (None, 0)]


def test_a_stale_handle_cannot_free_what_somebody_else_holds_now() -> None:
    pool = pool_of(2)
    (mine,) = pool.allocate("k", 16, owner=1)
    pool.free([mine])
    (theirs,) = pool.allocate("k", 16, owner=1)
    assert theirs.block_id == mine.block_id
    pool.free([mine])
    assert pool.blocks_for(1) == [theirs]
    with pytest.raises(ValueError, match="not checked out"):
        pool.mark_used(mine, 3)


def test_blocks_of_another_pool_are_passed_over() -> None:
    pool, other = pool_of(4), pool_of(4)
    pool.allocate("k", 16, owner=1)
    pool.free(other.allocate("k", 16, owner=1))
    assert (pool.stats.blocks_in_use(), other.stats.blocks_in_use()) == (1, 1)


def test_freeing_something_else_is_refused_before_anything_is_freed() -> None:
    pool = pool_of(4)
    blocks = pool.allocate("k", 16, owner=1)
    bad: list[Any] = [*blocks, 7]
    with pytest.raises(TypeError, match=r"not int\."):
        pool.free(bad)
    assert pool.blocks_for(1) == blocks


def test_returned_blocks_are_used_again_first_and_counted() -> None:
    pool = pool_of(64)
    old = pool.allocate("k", 64, owner=1)
    pool.free(old)
    again = pool.allocate("k", 96, owner=2)
    assert {b.block_id for b in old} < {b.block_id for b in again}
    assert (pool.stats.n_allocations, pool.stats.n_frees, pool.stats.n_reused) == (10, 4, 4)
    assert pool.stats.peak_blocks_in_use == 6


def test_an_owners_blocks_come_in_the_order_they_were_taken() -> None:
    pool = pool_of(32)
    blocks = [pool.allocate(stream, 16, owner=1)[0] for stream in "kvkvk"]
    pool.free([blocks[2]])
    assert pool.blocks_for(1) == [blocks[0], blocks[1], blocks[3], blocks[4]]
    pool.free_all(1)
    pool.free_all(1)
    assert pool.blocks_for(1) == []
    assert pool.stats.blocks_in_use() == 0


# ---------------------------------------------------------------- sharing
def test_a_shared_block_counts_once_and_goes_back_with_its_last_handle() -> None:
    pool = pool_of(8)
    blocks = pool.allocate("k", 20, owner=1, n_bytes=100)
    before = pool.stats.snapshot()
    twins = pool.share(blocks, owner=2)
    after = pool.stats.snapshot()
    assert (after.n_shared, [pool.is_shared(b) for b in (*blocks, *twins)]) == (2, [True] * 4)
    after.n_shared = 0
    assert after == before
    assert pool.bytes_by_format() == {"fp16": 200}
    pool.free_all(1)
    assert (pool.stats.blocks_in_use(), pool.stats.n_frees, pool.bytes_in_use) == (2, 0, 200)
    assert pool.blocks_for(2) == twins
    pool.free([*blocks, *twins, *twins])
    assert (pool.stats.blocks_in_use(), pool.stats.n_frees, pool.bytes_in_use) == (0, 2, 0)
    assert pool.stats.fragmentation() == 0.0


def test_what_several_hold_is_final_until_one_is_left() -> None:
    pool = pool_of(8)
    (block,) = pool.allocate("k", 20, owner=1)[1:]
    (twin,) = pool.share([block], owner=2)
    with pytest.raises(ValueError, match="shared by 2 owners"):
        pool.mark_used(twin, 5)
    with pytest.raises(ValueError, match="shared by 2 owners"):
        pool.mark_formats([block], "int4")
    pool.free([block])
    pool.mark_used(twin, 5)
    pool.mark_format(twin, "int4", 10)
    assert (twin.n_used, twin.format, pool.bytes_in_use) == (5, "int4", 10)


def test_sharing_is_all_or_nothing() -> None:
    pool = pool_of(8)
    first, second = pool.allocate("k", 32, owner=1)
    pool.free([second])
    (third,) = pool.allocate("v", 1, owner=1)
    pool.share([third], owner=2)
    for wrong, owner, message in (
        ([first, second], 2, "not checked out"),
        ([first, third], 2, "Owner 2 holds block"),
        ([first], 1, "Owner 1 holds block"),
        ([first, first], 3, "Owner 3 holds block"),
    ):
        with pytest.raises(ValueError, match=message):
            pool.share(wrong, owner)
    nobody: Any = None
    with pytest.raises(ValueError, match="needs an owner"):
        pool.share([first], nobody)
    stranger: Any = 7
    with pytest.raises(TypeError, match=r"share\(\) takes the Block objects"):
        pool.share([first, stranger], 3)
    assert (pool.stats.n_shared, len(pool.blocks_for(2)), pool.share([], 3)) == (1, 1, [])
    pool.register_owner(3)  # the refused owner did not become active


# ---------------------------------------------------------------- the limit in bytes
def test_the_limit_in_bytes_can_be_changed_and_takes_nothing_away() -> None:
    pool = pool_of(8)
    assert (pool.max_bytes, pool.free_bytes()) == (None, None)
    blocks = pool.allocate("k", 32, owner=1, n_bytes=100)
    pool.limit_bytes(150)
    assert (pool.max_bytes, pool.free_bytes(), pool.bytes_in_use) == (150, 0, 200)
    with pytest.raises(BlockPoolExhaustedError, match=r"limit_bytes\(\)"):
        pool.allocate("k", 1, owner=1, n_bytes=1)
    pool.require(0, 0, 0)  # who needs nothing is not refused
    assert len(pool.share(blocks, owner=2)) == 2
    pool.limit_bytes(300)
    assert pool.free_bytes() == 100
    pool.allocate("k", 1, owner=1, n_bytes=100)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="max_bytes must be a whole number"):
            pool.limit_bytes(wrong)  # type: ignore[arg-type]
    assert pool.max_bytes == 300


# ---------------------------------------------------------------- owners
def test_an_active_owner_cannot_be_registered_again() -> None:
    pool = pool_of(8)
    pool.register_owner(1)
    with pytest.raises(OwnerAlreadyActiveError, match="Owner 1 is active"):
        pool.register_owner(1)
    blocks = pool.allocate("k", 16, owner=2)
    with pytest.raises(OwnerAlreadyActiveError):
        pool.register_owner(2)
    pool.free(blocks)
    pool.register_owner(2)


def test_an_owner_ends_with_release_or_free_all() -> None:
    pool = pool_of(8)
    for end in (pool.release_owner, pool.free_all):
        pool.register_owner(1)
        end(1)
    pool.register_owner(1)
    pool.release_owner(99)  # never seen: fine


# ---------------------------------------------------------------- marks
def test_marking_how_full_a_block_is_keeps_fragmentation_right() -> None:
    pool = pool_of(4)
    (block,) = pool.allocate("k", 16, owner=1)
    for n_used, fragmentation in ((0, 0.0), (1, 0.25), (15, 0.25), (16, 0.0), (3, 0.25)):
        pool.mark_used(block, n_used)
        assert pool.stats.fragmentation() == fragmentation
    pool.free([block])
    assert pool.stats.fragmentation() == 0.0


@pytest.mark.parametrize("n_used", [-1, 17, 1.0, False])
def test_a_block_cannot_hold_more_than_it_has_room_for(n_used: Any) -> None:
    pool = pool_of(4)
    (block,) = pool.allocate("k", 5, owner=1)
    with pytest.raises(ValueError, match="holds 0 to 16 tokens"):
        pool.mark_used(block, n_used)
    assert block.n_used == 5


def test_the_format_of_a_live_block_can_change() -> None:
    pool = pool_of(4)
    (block,) = pool.allocate("k", 5, owner=1)
    pool.mark_format(block, "turboquant_mse")
    assert block.format == "turboquant_mse"
    pool.free([block])
    with pytest.raises(ValueError, match="not checked out"):
        pool.mark_format(block, "fp16")


# ---------------------------------------------------------------- size
def test_growth_adds_just_what_is_missing_up_to_the_limit() -> None:
    pool = pool_of(4, grow_on_exhaustion=True, max_blocks=6)
    assert pool.can_allocate(3, 3)
    assert not pool.can_allocate(4, 3)
    assert len(pool.allocate("k", 64, owner=1)) == 4
    assert (pool.stats.n_blocks, pool.stats.n_grown, pool.n_free("v")) == (6, 2, 2)
    with pytest.raises(BlockPoolExhaustedError, match="max_blocks"):
        pool.allocate("k", 1, owner=1)
    with pytest.raises(BlockPoolExhaustedError, match="at most 6"):
        pool.grow("v", 1)


def test_growth_up_to_the_limit_counts_even_where_it_is_not_enough() -> None:
    pool = pool_of(4, grow_on_exhaustion=True, max_blocks=6)
    with pytest.raises(BlockPoolExhaustedError, match="of 6 blocks"):
        pool.allocate("k", 16 * 5, owner=1)
    assert (pool.stats.n_blocks, pool.stats.n_grown, pool.stats.n_exhausted) == (6, 2, 1)
    assert (pool.n_free("k"), pool.stats.blocks_in_use()) == (4, 0)


def test_requiring_blocks_takes_none() -> None:
    pool = pool_of(8)
    pool.require(4, 4)
    with pytest.raises(BlockPoolExhaustedError, match="9 blocks"):
        pool.require(5, 4)
    assert (pool.stats.blocks_in_use(), pool.stats.n_exhausted) == (0, 1)


def test_what_can_be_allocated_counts_both_streams() -> None:
    apart, together = pool_of(8), pool_of(8, separate_kv=False)
    assert apart.can_allocate(4, 4)
    assert not apart.can_allocate(5, 0)
    assert together.can_allocate(5, 3)
    assert not together.can_allocate(5, 4)


def test_grown_blocks_have_ids_of_their_own() -> None:
    pool = pool_of(4)
    pool.grow("v", 3)
    pool.grow("k", 1)
    ids = [b.block_id for b in pool.allocate("k", 48, 1) + pool.allocate("v", 80, 1)]
    assert sorted(ids) == list(range(8))
    assert pool.stats.n_grown == 4


def test_retired_blocks_never_come_back() -> None:
    pool = pool_of(8)
    pool.free(pool.allocate("k", 48, owner=1))
    assert pool.shrink("k", 1) == 3
    assert pool.shrink("k", 1) == 0
    assert (pool.stats.n_blocks, pool.stats.n_retired, pool.n_free("k")) == (5, 3, 1)
    kept = pool.allocate("k", 16, owner=1)[0].block_id
    pool.grow("k", 4)
    assert kept not in {b.block_id for b in pool.allocate("k", 64, owner=1)}
    with pytest.raises(ValueError, match="target_free"):
        pool.shrink("k", -1)


def test_a_pool_shrunk_to_nothing_has_no_fragmentation() -> None:
    pool = pool_of(2)
    assert pool.shrink("k", 0) + pool.shrink("v", 0) == 2
    assert pool.stats.fragmentation() == 0.0


# ---------------------------------------------------------------- statistics
def test_a_snapshot_stays_as_it_was() -> None:
    pool = pool_of(8)
    before = pool.stats.snapshot()
    pool.allocate("k", 5, owner=1)
    assert before == AllocationStats(n_blocks=8)
    assert pool.stats.blocks_in_use() == 1
    assert copy.deepcopy(pool.stats) == pickle.loads(pickle.dumps(pool.stats)) == pool.stats


def test_history_has_one_entry_per_change_of_the_blocks_in_use() -> None:
    pool = pool_of(8)
    blocks = pool.allocate("k", 40, owner=1)
    pool.mark_used(blocks[0], 1)
    pool.free(blocks[:1])
    pool.free(blocks[:1])
    pool.free_all(1)
    assert [s.blocks_in_use() for s in pool.history] == [3, 2, 0]
    for _ in range(200):
        pool.free(pool.allocate("k", 1, owner=1))
    assert len(pool.history) == pool.history.maxlen == 256


def test_prometheus_text_has_the_usual_names() -> None:
    pool = pool_of(9)
    pool.allocate("k", 20, owner=1)
    text = pool.stats.to_prometheus()
    assert "# TYPE veloxquant_block_pool_blocks_in_use gauge\nveloxquant_block_pool_blocks_in_use 2\n" in text
    assert "# TYPE veloxquant_block_pool_blocks_shared gauge\nveloxquant_block_pool_blocks_shared 0\n" in text
    assert "veloxquant_block_pool_fragmentation 0.111111\n" in text
    assert "# TYPE veloxquant_block_pool_allocations_total counter\nveloxquant_block_pool_allocations_total 2\n" in text
    assert text.endswith("veloxquant_block_pool_retired_total 0\n")
    assert pool.stats.to_prometheus("mine").startswith("# TYPE mine_blocks_in_use gauge\n")


def test_threads_that_allocate_and_free_never_show_a_reader_half_a_change() -> None:
    pool = pool_of(400)
    end = time.monotonic() + 1.0
    wrong: list[str] = []

    def work(owner: int) -> None:
        held: list[list[Block]] = []
        i = 0
        while time.monotonic() < end:
            i += 1
            try:
                held.append(pool.allocate("kv"[i % 2], 1 + i % 70, owner))
            except BlockPoolExhaustedError:
                pool.free_all(owner)
                held.clear()
            if len(held) > 8:
                pool.free(held.pop(i % 8))
            if held:
                pool.mark_used(held[-1][-1], i % 17)
        pool.free_all(owner)

    def read() -> None:
        while time.monotonic() < end:
            now = pool.stats.snapshot()
            if not 0 <= now.blocks_in_use() <= now.peak_blocks_in_use <= now.n_blocks == 400:
                wrong.append(f"counts {now}")
            if not 0 <= now.n_partly_filled <= now.blocks_in_use():
                wrong.append(f"fragmentation {now}")
            for block in pool.blocks_for(1):
                if block.stream not in ("k", "v"):
                    wrong.append(f"block {block}")
            _ = pool.history

    threads = [threading.Thread(target=work, args=(owner,)) for owner in range(4)] + [threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert pool.stats.blocks_in_use() == 0
    assert pool.stats.n_allocations > 1000
    assert (pool.n_free("k"), pool.n_free("v")) == (200, 200)
    blocks = pool.allocate("k", 3200, 9) + pool.allocate("v", 3200, 9)
    assert sorted(b.block_id for b in blocks) == list(range(400))
