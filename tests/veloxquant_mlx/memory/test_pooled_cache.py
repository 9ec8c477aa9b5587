"""PooledKVCache: blocks in lock-step with tokens, for any wrapped cache, and nothing lost when something fails."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from veloxquant_mlx.core.abstractions import KVCache
from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError
from veloxquant_mlx.memory.block_pool import Block, BlockPoolAllocator, PoolConfig
from veloxquant_mlx.memory.pooled_cache import PooledKVCache


class Tokens:
    """The shape of a `(n_kv_heads, n_tokens, d)` array, which is all the accounting looks at."""

    ndim = 3

    def __init__(self, n: int) -> None:
        self.shape = (2, n, 4)


VECTOR = [0.0] * 4


def count(x: Any) -> int:
    return x.shape[1] if isinstance(x, Tokens) else 1


class ListCache:
    """Just the five methods the contract asks for; no base class."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.scales: list[float | None] = []
        self.broken = ""

    def append_key(self, k: Any) -> None:
        if self.broken == "key":
            raise OSError("no keys today")
        self.keys += [k] * count(k)

    def append_value(self, v: Any) -> None:
        if self.broken == "value":
            raise OSError("no values today")
        self.values += [v] * count(v)

    def attend(self, q: Any, *scale: float) -> Any:
        if self.broken == "attend":
            raise OSError("no attention today")
        self.scales += scale or [None]
        return q

    def memory_bytes(self) -> int:
        return 8 * (len(self.keys) + len(self.values))

    def reset(self) -> None:
        self.keys, self.values = [], []


class TrimmableListCache(ListCache):
    def trim(self, n: int) -> int:
        n = min(n, len(self.keys))
        del self.keys[len(self.keys) - n :]
        del self.values[len(self.values) - n :]
        return n


class FusedListCache(TrimmableListCache):
    def extend_and_attend(self, k: Any, v: Any, q: Any, scale: float | None = None) -> Any:
        if self.broken == "fused":
            raise OSError("no fusion today")
        self.append_key(k)
        self.append_value(v)
        return ["fused", q, scale]


def pool_of(n_blocks: int = 64, **options: Any) -> BlockPoolAllocator:
    return BlockPoolAllocator(PoolConfig(n_blocks=n_blocks, **options))


def fill(cache: PooledKVCache, n: int) -> None:
    for _ in range(n):
        cache.append_key(VECTOR)
        cache.append_value(VECTOR)


def books(pool: BlockPoolAllocator) -> tuple[int, int, float]:
    """What must not change when something fails; the counts of attempts may."""
    return pool.n_free("k"), pool.n_free("v"), pool.stats.fragmentation()


# ---------------------------------------------------------------- the contract
def test_a_block_is_taken_only_when_the_last_one_is_full() -> None:
    pool = pool_of()
    cache = PooledKVCache(ListCache(), pool, owner=3)
    held = []
    for _ in range(33):
        fill(cache, 1)
        held.append(cache.n_blocks_held())
    assert held == [2] * 16 + [4] * 16 + [6]
    assert pool.stats.n_allocations == 6
    assert len(cache) == 33


def test_keys_and_values_are_counted_apart() -> None:
    pool = pool_of()
    cache = PooledKVCache(ListCache(), pool)
    for _ in range(17):
        cache.append_key(VECTOR)
    assert (cache.n_blocks_held(), len(cache)) == (2, 0)
    assert [b.stream for b in pool.blocks_for(-1)] == ["k", "k"]
    cache.append_value(VECTOR)
    assert (cache.n_blocks_held(), len(cache)) == (3, 1)


def test_blocks_carry_owner_format_and_how_full_they_are() -> None:
    pool = pool_of()
    fill(PooledKVCache(ListCache(), pool, owner=5, format="int2"), 20)
    assert [(b.stream, b.n_used, b.format) for b in sorted(pool.blocks_for(5), key=lambda b: b.stream)] == [
        ("k", 16, "int2"),
        ("k", 4, "int2"),
        ("v", 16, "int2"),
        ("v", 4, "int2"),
    ]
    assert pool.stats.fragmentation() == 2 / 64


def test_attend_and_memory_are_the_wrapped_caches() -> None:
    inner = ListCache()
    cache = PooledKVCache(inner, pool_of(), 7, "int4")
    fill(cache, 3)
    assert cache.attend("q") == "q"
    assert cache.attend("q", 0.5) == "q"
    assert inner.scales == [None, 0.5]
    assert cache.memory_bytes() == inner.memory_bytes() == 48
    assert (cache.inner, cache.owner, cache.format) == (inner, 7, "int4")
    assert isinstance(cache, KVCache)


def test_an_empty_cache_is_still_a_cache() -> None:
    assert PooledKVCache(ListCache(), pool_of())


def test_many_tokens_at_once_fill_the_last_block_and_take_the_rest() -> None:
    pool = pool_of()
    cache = PooledKVCache(ListCache(), pool)
    fill(cache, 10)
    cache.append(Tokens(30), Tokens(30))
    assert [b.n_used for b in pool.blocks_for(-1) if b.stream == "k"] == [16, 16, 8]
    assert (cache.n_blocks_held(), len(cache)) == (6, 40)


# ---------------------------------------------------------------- release and reset
def test_release_gives_all_back_and_a_second_one_changes_nothing() -> None:
    pool = pool_of()
    inner = ListCache()
    cache = PooledKVCache(inner, pool)
    fill(cache, 40)
    cache.release()
    after = pool.stats.snapshot()
    cache.release()
    assert pool.stats == after
    assert (cache.n_blocks_held(), after.blocks_in_use(), after.n_frees) == (0, 0, 6)
    assert (len(cache), len(inner.keys)) == (40, 40)


def test_after_release_the_next_append_takes_blocks_for_every_token() -> None:
    pool = pool_of()
    cache = PooledKVCache(ListCache(), pool)
    fill(cache, 40)
    cache.release()
    assert cache.blocks_needed(1) == (3, 3)
    fill(cache, 1)
    assert (cache.n_blocks_held(), len(cache)) == (6, 41)
    assert [b.n_used for b in pool.blocks_for(-1) if b.stream == "v"] == [16, 16, 9]


def test_reset_gives_all_back_and_empties_the_wrapped_cache() -> None:
    pool = pool_of()
    inner = ListCache()
    cache = PooledKVCache(inner, pool)
    fill(cache, 40)
    cache.reset()
    assert (cache.n_blocks_held(), len(cache), inner.keys, pool.stats.blocks_in_use()) == (0, 0, [], 0)
    fill(cache, 1)
    assert cache.n_blocks_held() == 2


@pytest.mark.parametrize("owner", [-1, 4])
def test_two_caches_with_one_owner_keep_their_own_blocks(owner: int) -> None:
    pool = pool_of()
    first, second = PooledKVCache(ListCache(), pool, owner), PooledKVCache(ListCache(), pool, owner)
    fill(first, 20)
    fill(second, 20)
    first.release()
    assert (first.n_blocks_held(), second.n_blocks_held(), pool.stats.blocks_in_use()) == (0, 4, 4)
    fill(first, 1)
    second.reset()
    assert (first.n_blocks_held(), second.n_blocks_held(), pool.stats.blocks_in_use()) == (4, 0, 4)


def test_blocks_freed_through_the_pool_are_noticed() -> None:
    pool = pool_of()
    cache = PooledKVCache(ListCache(), pool, owner=1)
    fill(cache, 20)
    pool.free_all(1)
    assert cache.n_blocks_held() == 0
    fill(cache, 1)
    assert (cache.n_blocks_held(), pool.stats.blocks_in_use()) == (4, 4)


# ---------------------------------------------------------------- failures
def test_an_exhausted_pool_leaves_cache_and_pool_as_they_were() -> None:
    pool = pool_of(5)  # 3 for keys, 2 for values
    inner = ListCache()
    cache = PooledKVCache(inner, pool)
    fill(cache, 30)
    before = books(pool)
    assert cache.blocks_needed(3) == (1, 1)
    for append in (
        lambda: cache.append_value(Tokens(3)),
        lambda: cache.append(Tokens(3), Tokens(3)),
        lambda: cache.extend_and_attend(Tokens(3), Tokens(3), "q"),
    ):
        with pytest.raises(BlockPoolExhaustedError):
            append()
        assert (books(pool), len(inner.keys), len(inner.values)) == (before, 30, 30)
        assert (cache.n_blocks_held(), len(cache)) == (4, 30)
    fill(cache, 2)  # what still fits
    assert len(cache) == 32


@pytest.mark.parametrize("n", [1, 5, 40])
@pytest.mark.parametrize("broken", ["key", "value"])
def test_a_wrapped_cache_that_fails_costs_no_blocks(broken: str, n: int) -> None:
    pool = pool_of()
    inner = ListCache()
    cache = PooledKVCache(inner, pool)
    fill(cache, 14)
    before = books(pool)
    inner.broken = broken
    with pytest.raises(OSError, match="today"):
        (cache.append_key if broken == "key" else cache.append_value)(Tokens(n))
    assert (books(pool), cache.n_blocks_held(), len(cache)) == (before, 2, 14)
    inner.broken = ""
    cache.append(Tokens(n), Tokens(n))
    assert [b.n_used for b in pool.blocks_for(-1)].count(16) == 2 * ((14 + n) // 16)


def test_a_failure_between_key_and_value_keeps_what_was_appended() -> None:
    pool = pool_of()
    inner = ListCache()
    cache = PooledKVCache(inner, pool)
    inner.broken = "value"
    with pytest.raises(OSError, match="no values"):
        cache.extend_and_attend(Tokens(20), Tokens(20), "q")
    assert (len(inner.keys), len(inner.values)) == (20, 0)
    assert [b.stream for b in pool.blocks_for(-1)] == ["k", "k"]


def test_a_failure_of_attend_keeps_the_tokens() -> None:
    inner = ListCache()
    cache = PooledKVCache(inner, pool_of())
    inner.broken = "attend"
    with pytest.raises(OSError, match="no attention"):
        cache.extend_and_attend(Tokens(20), Tokens(20), "q")
    assert (len(cache), cache.n_blocks_held()) == (20, 4)


# ---------------------------------------------------------------- beyond the five methods
def test_extend_and_attend_does_three_steps_for_a_plain_cache() -> None:
    inner = ListCache()
    cache = PooledKVCache(inner, pool_of())
    assert cache.extend_and_attend(VECTOR, VECTOR, "q") == "q"
    assert cache.extend_and_attend(Tokens(5), Tokens(5), "q", 0.25) == "q"
    assert (len(inner.keys), len(inner.values), inner.scales) == (6, 6, [None, 0.25])


def test_extend_and_attend_is_the_wrapped_caches_own_where_it_has_one() -> None:
    pool = pool_of()
    inner = FusedListCache()
    cache = PooledKVCache(inner, pool)
    assert cache.extend_and_attend(Tokens(20), Tokens(20), "q", 0.5) == ["fused", "q", 0.5]
    assert (len(cache), cache.n_blocks_held()) == (20, 4)
    before = books(pool)
    inner.broken = "fused"
    with pytest.raises(OSError, match="no fusion"):
        cache.extend_and_attend(Tokens(20), Tokens(20), "q")
    assert (books(pool), len(cache), cache.n_blocks_held()) == (before, 20, 4)


def test_trim_gives_back_the_blocks_that_are_empty() -> None:
    pool = pool_of()
    inner = TrimmableListCache()
    cache = PooledKVCache(inner, pool)
    fill(cache, 40)
    assert cache.trim(10) == 10
    assert (len(cache), len(inner.keys), cache.n_blocks_held()) == (30, 30, 4)
    assert [b.n_used for b in pool.blocks_for(-1) if b.stream == "k"] == [16, 14]
    assert cache.trim(100) == 30
    assert (len(cache), cache.n_blocks_held(), pool.stats.fragmentation()) == (0, 0, 0.0)
    with pytest.raises(ValueError, match="at least 0"):
        cache.trim(-1)


def test_trim_of_a_cache_that_cannot_says_so_and_changes_nothing() -> None:
    cache = PooledKVCache(ListCache(), pool_of())
    fill(cache, 20)
    with pytest.raises(NotImplementedError, match=r"ListCache can't forget single tokens"):
        cache.trim(5)
    assert (len(cache), cache.n_blocks_held()) == (20, 4)


def test_the_interfaces_defaults_say_what_to_do_instead() -> None:
    class Bare(KVCache):
        def append_key(self, k: Any) -> None: ...
        def append_value(self, v: Any) -> None: ...
        def attend(self, q: Any, scale: float | None = None) -> Any:
            return q

        def memory_bytes(self) -> int:
            return 0

    bare = Bare()
    assert bare
    bare.append(VECTOR, VECTOR)
    assert bare.extend_and_attend(VECTOR, VECTOR, "q") == "q"
    for call, message in (
        (bare.reset, "make a new cache"),
        (lambda: bare.trim(2), "reset\\(\\)"),
        (lambda: len(bare), "count"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            call()


# ---------------------------------------------------------------- any sequence of calls
class CachesMachine(RuleBasedStateMachine):
    """Three caches, two of them with one owner, on a pool that is too small for all."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPoolAllocator(PoolConfig(block_size=4, n_blocks=21))
        self.inners = [TrimmableListCache(), FusedListCache(), TrimmableListCache()]
        self.caches = [PooledKVCache(i, self.pool, owner) for i, owner in zip(self.inners, (-1, -1, 5), strict=True)]
        self.holds = [True, True, True]  # False from release() to the next append

    which = st.integers(0, 2)

    @rule(
        i=which,
        n=st.integers(1, 14),
        how=st.sampled_from(["each", "append", "extend"]),
        broken=st.sampled_from(["", "", "", "key", "fused"]),
    )
    def append(self, i: int, n: int, how: str, broken: str) -> None:
        cache, inner = self.caches[i], self.inners[i]
        x = Tokens(n)
        before = (len(inner.keys), len(inner.values), cache.n_blocks_held(), books(self.pool))
        needed = cache.blocks_needed(n)
        inner.broken = broken
        try:
            if how == "extend":
                cache.extend_and_attend(x, x, "q")
            elif how == "append" or not self.pool.can_allocate(*needed):
                cache.append(x, x)
            else:
                cache.append_key(x)
                cache.append_value(x)
        except (BlockPoolExhaustedError, OSError) as error:
            assert (len(inner.keys), len(inner.values), cache.n_blocks_held(), books(self.pool)) == before
            if isinstance(error, BlockPoolExhaustedError):
                assert not self.pool.can_allocate(*needed)
        else:
            self.holds[i] = True
            assert cache.n_blocks_held() == before[2] + sum(needed)
        finally:
            inner.broken = ""

    @rule(i=which, n=st.integers(0, 20))
    def trim(self, i: int, n: int) -> None:
        before = len(self.caches[i])
        assert self.caches[i].trim(n) == min(n, before)

    @rule(i=which)
    def release(self, i: int) -> None:
        self.caches[i].release()
        self.holds[i] = False

    @rule(i=which)
    def reset(self, i: int) -> None:
        self.caches[i].reset()
        self.holds[i] = True

    @invariant()
    def every_token_held_is_accounted_for(self) -> None:
        used: list[Block] = []
        for cache, inner, holds in zip(self.caches, self.inners, self.holds, strict=True):
            assert len(cache) == len(inner.keys) == len(inner.values)
            assert cache.n_blocks_held() == (2 * -(-len(cache) // 4) if holds else 0)
        for owner in (-1, 5):
            used += self.pool.blocks_for(owner)
        assert len(used) == sum(cache.n_blocks_held() for cache in self.caches) == self.pool.stats.blocks_in_use()
        tokens = sum(len(c) for c, holds in zip(self.caches, self.holds, strict=True) if holds)
        assert sum(block.n_used for block in used) == 2 * tokens
        partly = sum(2 * (len(c) % 4 > 0) for c, holds in zip(self.caches, self.holds, strict=True) if holds)
        assert self.pool.stats.fragmentation() == partly / 21


CachesMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestCachesMachine = CachesMachine.TestCase
