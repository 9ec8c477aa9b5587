"""PooledKVCache.fork: blocks and bytes are those of what is really held, whatever is done to parents and forks."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.veloxquant_mlx.cache.test_fork import MANY, QUERY, perform, unique_bytes
from tests.veloxquant_mlx.memory.test_pooled_cache import ListCache, Tokens, TrimmableListCache, pool_of
from veloxquant_mlx.cache import METHODS, KVCacheConfig, KVCacheFactory
from veloxquant_mlx.cache.coded_cache import CodedKVCache
from veloxquant_mlx.core.abstractions import KVCache
from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError
from veloxquant_mlx.memory.block_pool import Block, BlockPoolAllocator, PoolConfig
from veloxquant_mlx.memory.pooled_cache import PooledKVCache

EXACT = 2 * 64 * 4  # bytes of a key or a value as it comes, two heads


class ForkableListCache(TrimmableListCache):
    """Shares whole multiples of its tokens in name only."""

    def fork(self, n_tokens: int, multiple_of: int) -> ForkableListCache:
        if self.broken == "fork":
            raise OSError("no forks today")
        twin = ForkableListCache()
        twin.keys, twin.values = self.keys[:n_tokens], self.values[:n_tokens]
        return twin

    def fork_shares(self, stream: str, n_tokens: int, multiple_of: int) -> tuple[int, int]:
        return 0, n_tokens // multiple_of * multiple_of


def listed(pool: BlockPoolAllocator, n: int) -> PooledKVCache:
    cache = PooledKVCache(ForkableListCache(), pool, owner=1)
    cache.append(Tokens(n), Tokens(n))
    return cache


def coded(pool: BlockPoolAllocator, method: str, **sizes: Any) -> PooledKVCache:
    config = KVCacheConfig(method=method, head_dim=64, n_kv_heads=2, key_bits=4, **sizes)
    return PooledKVCache(KVCacheFactory.create(config), pool, owner=1)


def of_stream(pool: BlockPoolAllocator, owner: int, stream: str = "k") -> list[Block]:
    return [block for block in pool.blocks_for(owner) if block.stream == stream]


def books(pool: BlockPoolAllocator) -> tuple[Any, ...]:
    now = pool.stats.snapshot()
    return now.blocks_in_use(), now.n_partly_filled, now.n_shared, now.bytes_in_use, pool.bytes_by_format()


# ---------------------------------------------------------------- blocks
def test_whole_shared_blocks_are_shared_and_the_rest_is_taken() -> None:
    pool = pool_of()
    cache = listed(pool, 40)
    assert cache.fork_needs()[:2] == (1, 1)
    fork = cache.fork(2)
    assert (len(fork), fork.owner, fork.format, fork.n_blocks_held()) == (40, 2, "fp16", 6)
    assert [b.n_used for b in fork._keys.blocks] == [16, 16, 8]
    assert (fork.shared_blocks(), cache.shared_blocks(), pool.stats.n_shared) == (4, 4, 4)
    assert (pool.stats.blocks_in_use(), pool.stats.n_allocations) == (8, 8)
    cache.append(Tokens(8), Tokens(8))
    fork.append(Tokens(9), Tokens(9))
    assert (cache.n_blocks_held(), fork.n_blocks_held(), pool.stats.blocks_in_use()) == (6, 8, 10)
    cache.reset()
    assert (pool.stats.blocks_in_use(), pool.stats.n_shared, fork.shared_blocks()) == (8, 0, 0)
    fork.release()
    assert pool.stats.blocks_in_use() == 0


def test_a_fork_of_a_part_and_a_fork_of_a_fork() -> None:
    pool = pool_of()
    cache = listed(pool, 40)
    part = cache.fork(2, n_tokens=20)
    assert (len(part), part.n_blocks_held(), part.shared_blocks(), cache.shared_blocks()) == (20, 4, 2, 2)
    part.append(Tokens(12), Tokens(12))
    again = part.fork(3)
    assert (again.shared_blocks(), part.shared_blocks(), pool.stats.n_shared) == (4, 4, 4)
    part.release()
    assert (again.shared_blocks(), pool.stats.n_shared) == (2, 2)
    empty = cache.fork(4, n_tokens=0)
    assert (len(empty), empty.n_blocks_held()) == (0, 0)


def test_after_release_a_fork_pays_for_all_its_tokens() -> None:
    pool = pool_of()
    cache = listed(pool, 40)
    cache.release()
    assert cache.fork_needs()[:2] == (3, 3)
    fork = cache.fork(2)
    assert (fork.n_blocks_held(), fork.shared_blocks(), cache.n_blocks_held()) == (6, 0, 0)
    pool.free_all(2)
    assert fork.fork(3).n_blocks_held() == 6


def test_a_trim_frees_handles_and_a_block_cut_in_the_middle_becomes_own() -> None:
    pool = pool_of()
    cache = listed(pool, 48)
    fork = cache.fork(2)
    allocations = pool.stats.n_allocations
    fork.trim(16)
    assert (fork.n_blocks_held(), fork.shared_blocks(), pool.stats.n_allocations) == (4, 4, allocations)
    fork.trim(4)
    assert (fork.n_blocks_held(), fork.shared_blocks(), pool.stats.n_allocations) == (4, 2, allocations + 2)
    assert [b.n_used for b in fork._keys.blocks] == [16, 12]
    assert [b.n_used for b in cache._keys.blocks] == [16, 16, 16]
    fork.append(Tokens(5), Tokens(5))
    assert [b.n_used for b in fork._values.blocks] == [16, 16, 1]
    cache.reset()
    fork.trim(30)  # what nobody else holds any more is cut in place
    assert ([b.n_used for b in fork._keys.blocks], pool.stats.n_allocations) == ([3], allocations + 4)


def test_a_trim_for_which_there_is_no_block_changes_nothing() -> None:
    pool = pool_of(7)  # 4 for keys, 3 for values
    cache = listed(pool, 48)
    fork = cache.fork(2)
    before = books(pool)
    with pytest.raises(BlockPoolExhaustedError):
        fork.trim(4)
    assert (books(pool), len(fork), len(fork.inner.keys), fork.shared_blocks()) == (before, 48, 48, 6)
    assert fork.trim(16) == 16


# ---------------------------------------------------------------- refusals
def test_a_fork_needs_an_owner_of_its_own() -> None:
    pool = pool_of()
    cache = listed(pool, 40)
    with pytest.raises(ValueError, match="A fork needs an owner of its own"):
        cache.fork(1)
    cache.fork(2)
    before = books(pool)
    with pytest.raises(ValueError, match="Owner 2 holds block"):
        cache.fork(2)
    assert books(pool) == before


def test_a_number_of_tokens_that_it_does_not_hold_is_refused() -> None:
    cache = listed(pool_of(), 40)
    for wrong in (41, -1, 2.0):
        with pytest.raises(ValueError, match="tokens"):
            cache.fork(2, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("inner", [ListCache, "interface"])
def test_what_cannot_be_forked_says_so(inner: Any) -> None:
    class Bare(KVCache):
        def append_key(self, k: Any) -> None: ...
        def append_value(self, v: Any) -> None: ...
        def attend(self, q: Any, scale: float | None = None) -> Any: ...
        def memory_bytes(self) -> int:
            return 0

    bare = Bare() if inner == "interface" else inner()
    cache = PooledKVCache(bare, pool_of(), owner=1)
    for call in (lambda: cache.fork(2), cache.fork_needs):
        with pytest.raises(NotImplementedError, match="can't be forked"):
            call()
    if isinstance(bare, Bare):
        with pytest.raises(NotImplementedError, match="Bare can't be forked"):
            bare.fork()
        assert bare.fork_shares("k") == (0, 0)


def test_a_wrapped_cache_that_fails_costs_no_blocks() -> None:
    pool = pool_of()
    cache = listed(pool, 40)
    before = books(pool)
    cache.inner.broken = "fork"
    with pytest.raises(OSError, match="no forks"):
        cache.fork(2)
    assert (books(pool), cache.shared_blocks()) == (before, 0)


@pytest.mark.parametrize("limit", ["blocks", "bytes"])
def test_a_pool_without_room_leaves_everything_as_it_was(limit: str) -> None:
    pool = BlockPoolAllocator(PoolConfig(n_blocks=42 if limit == "blocks" else 200))
    cache = coded(pool, "turboquant_mse")
    cache.append(MANY[0][:, :300], MANY[1][:, :300])
    if limit == "bytes":
        pool.limit_bytes(pool.bytes_in_use + cache.fork_needs()[2] - 1)
    before, held = books(pool), cache.memory_bytes()
    with pytest.raises(BlockPoolExhaustedError):
        cache.fork(2)
    assert (books(pool), cache.memory_bytes(), cache.inner.pieces) == (before, held, [])
    assert pool.blocks_for(2) == []
    if limit == "bytes":
        pool.limit_bytes(pool.bytes_in_use + cache.fork_needs()[2])
        cache.fork(2)
        assert pool.free_bytes() == 0


# ---------------------------------------------------------------- bytes
def test_the_books_of_a_forked_chat_by_hand() -> None:
    pool = BlockPoolAllocator(PoolConfig())
    cache = coded(pool, "turboquant_mse")
    cache.append(MANY[0][:, :160], MANY[1][:, :160])  # 16 sink, 64 coded, 80 window
    one = pool.bytes_in_use
    fork = cache.fork(2)
    assert [b.format for b in of_stream(pool, 2)].count("turboquant_mse-4") == 4
    assert [b.format for b in fork._keys.blocks] == ["fp16"] + ["turboquant_mse-4"] * 4 + ["fp16"] * 5
    assert fork.shared_blocks() == 8
    # Sink and window of each; the codes and their mean once.
    assert pool.bytes_in_use == one + 2 * 6 * 16 * EXACT
    assert unique_bytes([cache.inner, fork.inner]) == one
    cache.release()
    assert pool.bytes_in_use == one
    fork.trim(75)  # the codes' last block
    assert (fork.n_blocks_held(), fork.shared_blocks()) == (12, 0)
    fork.trim(10)
    assert [(b.format, b.n_used) for b in fork._keys.blocks][-2:] == [("turboquant_mse-4", 16), ("fp16", 11)]
    fork.release()
    assert (pool.bytes_in_use, pool.stats.blocks_in_use()) == (0, 0)


class Twins:
    """A pooled cache, and a cache like it that shares nothing and holds no blocks."""

    def __init__(self, cache: PooledKVCache, config: KVCacheConfig, acts: tuple[tuple[str, int, int], ...]) -> None:
        self.cache, self.config, self.acts = cache, config, acts
        self.released = False

    @property
    def inner(self) -> CodedKVCache:
        inner: CodedKVCache = self.cache.inner
        return inner

    def state(self) -> tuple[Any, ...]:
        return len(self.cache), len(self.inner), self.inner.memory_bytes(), self.cache.n_blocks_held()

    def check(self) -> None:
        alone = KVCacheFactory.create(self.config)
        for act in self.acts:
            perform(alone, act)
        assert len(alone) == len(self.cache) == len(self.inner)
        if not len(alone):
            return
        for ours, theirs in zip(self.inner.decoded(), alone.decoded(), strict=True):
            assert mx.array_equal(ours, theirs)
        np.testing.assert_allclose(np.array(self.cache.attend(QUERY)), np.array(alone.attend(QUERY)), atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_books_and_answers_follow_whatever_is_done(method: str, data: st.DataObject) -> None:
    ranges = {"sink": st.integers(0, 9), "window": st.integers(0, 20), "seal_step": st.integers(1, 17)}
    sizes = {name: data.draw(numbers, name) for name, numbers in ranges.items()}
    size = data.draw(st.sampled_from([1, 3, 4, 16]), "block_size")
    n_blocks = data.draw(st.sampled_from([2000, 2000, 60]), "n_blocks")
    pool = BlockPoolAllocator(PoolConfig(block_size=size, n_blocks=n_blocks))
    if data.draw(st.booleans(), "limited"):
        pool.limit_bytes(300 * EXACT)
    first = coded(pool, method, **sizes)
    every, start, owner, loose = [Twins(first, first.inner.config, ())], 0, 1, False
    acts = st.sampled_from(["append", "append", "extend", "fork", "fork", "trim", "trim", "release", "reset", "close"])
    for what, which, n in data.draw(st.lists(st.tuples(acts, st.integers(0, 7), st.integers(1, 90)), min_size=3)):
        one = every[which % len(every)]
        before, states = books(pool), [twins.state() for twins in every]
        act = (what, start, n) if what in ("append", "extend") else (what, n, 0)
        try:
            if what == "fork":
                owner += 1
                keep = len(one.cache) - min(len(one.cache), n // 2 * (which % 2))
                needs = one.cache.fork_needs(keep)
                fits = pool.can_allocate(*needs)
                twin = Twins(one.cache.fork(owner, keep), one.config, (*one.acts, ("trim", len(one.cache) - keep, 0)))
                assert fits
                in_use = pool.stats.blocks_in_use(), pool.bytes_in_use
                assert in_use == (before[0] + needs[0] + needs[1], before[3] + needs[2])
                every.append(twin)
            elif what in ("append", "extend", "trim", "reset"):
                perform(one.cache, act)  # type: ignore[arg-type]
                one.acts = (*one.acts, act)
                start += n * (what in ("append", "extend"))
                one.released = one.released and what == "trim"
            else:
                one.cache.release()
                one.released = loose = True
                if what == "close":
                    every.remove(one)
        except BlockPoolExhaustedError:
            assert books(pool) == before
            assert [twins.state() for twins in every] == states
        every = every or [Twins(coded(pool, method, **sizes), first.inner.config, ())]
        check_books(pool, every, size, loose=loose)
    for one in every:
        one.check()
    for one in every:
        one.cache.reset()
    assert (pool.stats.blocks_in_use(), pool.bytes_in_use, pool.stats.n_shared) == (0, 0, 0)
    assert pool.stats.fragmentation() == 0.0


def check_books(pool: BlockPoolAllocator, every: list[Twins], size: int, *, loose: bool) -> None:
    """Blocks and their marks belong to the tokens; bytes are those held, rounded up."""
    ids: list[int] = []
    for one in every:
        n = len(one.cache)
        assert one.cache.n_blocks_held() == (0 if one.released else 2 * -(-n // size))
        for side in (one.cache._keys, one.cache._values):
            assert sum(block.n_used for block in side.blocks) == (0 if one.released else n)
            assert all(block.owner == one.cache.owner for block in side.blocks)
            ids += [block.block_id for block in side.blocks]
        assert one.cache.shared_blocks() == sum(map(pool.is_shared, one.cache._keys.blocks + one.cache._values.blocks))
    assert pool.stats.blocks_in_use() == len(set(ids))
    assert pool.stats.n_shared == sum(ids.count(block_id) > 1 for block_id in set(ids))
    held = [one.inner for one in every if not one.released]
    # Lent exact tokens belong to every fork here, unlike what is coded: each of them will own them soon.
    shared = {id(piece): piece for inner in held for piece in pieces_for_good(inner)}
    own = sum(
        inner.memory_bytes() - inner.spare_bytes() - sum(piece.nbytes for piece in pieces_for_good(inner))
        for inner in held
    )
    excess = pool.bytes_in_use - own - sum(piece.nbytes for piece in shared.values())
    assert excess >= 0
    # In each stream blocks are partly filled, or partly coded, at the sink, behind the coded ones and at the end; where
    # forks share no block, each is charged for the mean. After a release the arrays are still shared, the blocks not.
    rounding = sum(6 * size * EXACT + inner.constant_bytes() for inner in held)
    assert loose or excess <= rounding


def pieces_for_good(inner: CodedKVCache) -> list[Any]:
    lent = {id(piece) for side in (inner._keys, inner._values) for piece in side.lent.leaves}
    return [piece for piece in inner.pieces if id(piece) not in lent]
