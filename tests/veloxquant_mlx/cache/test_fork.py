"""Forks: a cache that shares what it can with its parent, and answers like one that shares nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.veloxquant_mlx.cache.test_coded_cache import attention, tokens
from veloxquant_mlx.cache import METHODS, KVCacheConfig, KVCacheFactory
from veloxquant_mlx.cache.coded_cache import CodedKVCache

MANY = mx.array(tokens(2600, seed=1)), mx.array(tokens(2600, seed=2))
QUERY, QUERIES = mx.array(tokens(1, 4, seed=3)), mx.array(tokens(3, 4, seed=4))

Act = tuple[str, int, int]  # what, and two numbers for it


class Twins:
    """A cache, and what was done to it, to be done again to one that never shared anything."""

    def __init__(self, config: KVCacheConfig, cache: CodedKVCache | None = None, acts: tuple[Act, ...] = ()) -> None:
        self.config = config
        self.cache = KVCacheFactory.create(config) if cache is None else cache
        self.acts = acts

    def do(self, act: Act) -> None:
        perform(self.cache, act)
        self.acts = (*self.acts, act)

    def fork(self, n: int, multiple_of: int) -> Twins:
        gone = len(self.cache) - n
        return Twins(self.config, self.cache.fork(n, multiple_of), (*self.acts, ("trim", gone, 0)))

    def alone(self) -> CodedKVCache:
        cache = KVCacheFactory.create(self.config)
        for act in self.acts:
            perform(cache, act)
        return cache

    def check(self) -> None:
        alone = self.alone()
        assert len(self.cache) == len(alone)
        assert held(self.cache) == held(alone)
        if not len(alone):
            return
        for ours, theirs in zip(self.cache.decoded(), alone.decoded(), strict=True):
            assert mx.array_equal(ours, theirs)
        for q in (QUERY, QUERIES[:, : len(alone)]):
            np.testing.assert_allclose(np.array(self.cache.attend(q)), np.array(alone.attend(q)), atol=1e-5)


def perform(cache: CodedKVCache, act: Act) -> None:
    what, start, n = act
    if what == "trim":
        cache.trim(start)
    elif what == "reset":
        cache.reset()
    else:
        k, v = (x[:, start : start + n] for x in MANY)
        if what == "append":
            cache.append(k, v)
        elif what == "extend":
            cache.extend_and_attend(k, v, mx.concatenate([k, k], axis=0))
        else:
            for i in range(n):
                cache.append(k[:, i : i + 1], v[:, i : i + 1])


def held(cache: CodedKVCache) -> int:
    """Bytes, without room to spare."""
    return cache.memory_bytes() - cache.spare_bytes()


def config_of(method: str, **sizes: Any) -> KVCacheConfig:
    return KVCacheConfig(method=method, head_dim=64, n_kv_heads=2, key_bits=4, **sizes)


def unique_bytes(caches: list[CodedKVCache]) -> int:
    """Bytes of all caches, what they share once."""
    pieces = {id(piece): piece.nbytes for cache in caches for piece in cache.pieces}
    own = sum(cache.memory_bytes() - sum(piece.nbytes for piece in cache.pieces) for cache in caches)
    return own + sum(pieces.values())


@pytest.mark.parametrize("method", METHODS)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_forks_and_parents_answer_like_caches_that_share_nothing(method: str, data: st.DataObject) -> None:
    sizes = {"sink": st.integers(0, 9), "window": st.integers(0, 20), "seal_step": st.integers(1, 17)}
    config = config_of(method, **{name: data.draw(size, name) for name, size in sizes.items()})
    multiple_of = data.draw(st.sampled_from([1, 3, 4, 16]), "multiple_of")
    twins, start = [Twins(config)], 0
    acts = ["append", "append", "extend", "single", "fork", "fork", "trim", "drop", "reset"]
    for act in data.draw(
        st.lists(st.tuples(st.sampled_from(acts), st.integers(0, 7), st.integers(1, 90)), min_size=3, max_size=10)
    ):
        what, which, n = act
        one = twins[which % len(twins)]
        if what == "fork":
            twins.append(one.fork(len(one.cache) - min(len(one.cache), n // 2 * (which % 2)), multiple_of))
        elif what == "drop":
            twins.remove(one)
        elif what in ("trim", "reset"):
            one.do((what, n, 0))
        else:
            n = min(n, 12) if what == "single" else n
            one.do((what, start, n))
            start += n
        twins = twins or [Twins(config)]
    for one in twins:
        one.check()
        first, end = one.cache.shared("k")
        assert one.cache.shared("v") == (first, end)
        assert first % multiple_of == end % multiple_of == 0
        assert first <= end <= len(one.cache)


@pytest.mark.parametrize("method", METHODS)
def test_long_forks_answer_like_long_caches(method: str) -> None:
    """Beyond the lengths where products and softmax are computed in other ways."""
    one = Twins(config_of(method))
    one.do(("append", 0, 2500))
    two = one.fork(2300, 16)
    two.do(("single", 2500, 40))
    one.do(("extend", 2500, 90))
    for twins in (one, two):
        alone = twins.alone()
        out, expected = np.array(twins.cache.attend(QUERY)), np.array(alone.attend(QUERY))
        # Float32 sums of so many codes are themselves 1e-4 away from float64, with and without pieces.
        np.testing.assert_allclose(out, expected, atol=1e-4)
        exact = attention(np.array(QUERY), *(np.array(x) for x in alone.decoded()))
        assert np.abs(out - exact).max() <= 2 * np.abs(expected - exact).max() + 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_what_would_be_shared_is_what_is_shared(method: str) -> None:
    cache = KVCacheFactory.create(config_of(method, sink=5, window=10, seal_step=7))
    assert cache.shared("k") == cache.fork_shares("k") == (0, 0)
    cache.append(MANY[0][:, :200], MANY[1][:, :200])
    for n in (0, 3, 5, 8, 9, 100, 131, 200, None):
        expected = cache.fork_shares("v", n, 4)
        fork = cache.fork(n, 4)
        assert fork.shared("v") == fork.shared("k") == expected
    sealed = cache.sealed("k")
    end = 200 if sealed is None else sealed.first + sealed.n_tokens
    assert cache.shared("k") == (0 if sealed is None or not sealed.first else 8, end // 4 * 4)


@pytest.mark.parametrize("method", METHODS)
def test_a_fork_holds_nothing_of_its_own_at_first(method: str) -> None:
    cache = KVCacheFactory.create(config_of(method))
    cache.append(MANY[0][:, :528], MANY[1][:, :528])
    alone = cache.memory_bytes()
    forks = [cache.fork(multiple_of=16) for _ in range(3)]
    assert unique_bytes([cache, *forks]) <= alone
    assert forks[0].memory_bytes() <= alone  # what it holds, shared or not
    assert all(piece.nbytes for piece in cache.pieces)


@pytest.fixture
def no_old_buffers() -> Iterator[None]:
    """MLX uses buffers again that are up to 8 KB too large; here it makes every one anew, of the size it counts."""
    limit = mx.set_cache_limit(0)
    yield
    mx.set_cache_limit(limit)


def active(*caches: CodedKVCache) -> int:
    """Bytes that MLX has in use when all that these caches hold is computed."""
    mx.eval([cache.arrays for cache in caches])
    mx.synchronize()
    return mx.get_active_memory()


@pytest.mark.usefixtures("no_old_buffers")
@pytest.mark.parametrize("method", METHODS)
def test_no_memory_is_left_of_tokens_that_no_cache_holds(method: str) -> None:
    warm = KVCacheFactory.create(config_of(method))
    warm.append(MANY[0][:, :300], MANY[1][:, :300])  # what all caches share is made now
    active(warm)
    del warm
    before = active()
    cache = KVCacheFactory.create(config_of(method))
    cache.append(MANY[0][:, :2048], MANY[1][:, :2048])
    fork = cache.fork(multiple_of=16)
    assert active(cache, fork) - before <= unique_bytes([cache, fork]) * 1.01
    cache.trim(1500)
    other = fork.fork(1000, 16)
    fork.trim(500)
    assert active(cache, fork, other) - before <= unique_bytes([cache, fork, other]) * 1.01
    del fork
    assert active(cache, other) - before <= unique_bytes([cache, other]) * 1.01
    cache.reset()
    other.trim(900)
    assert active(other) - before <= other.memory_bytes() * 1.01


@pytest.mark.usefixtures("no_old_buffers")
@pytest.mark.parametrize("method", ["turboquant_mse", "fp16"])
def test_ten_forks_of_a_long_chat_cost_less_than_half_of_it(method: str) -> None:
    """30 layers of 2,000 tokens, and 15 more in each fork: the first of them makes every fork seal."""
    generator = np.random.default_rng(0)

    def some(n: int) -> mx.array:
        return mx.array(generator.standard_normal((3, n, 64)).astype(np.float32))

    def grow(caches: list[CodedKVCache], n: int) -> None:
        for cache in caches:
            cache.append(some(n), some(n))
        mx.eval([cache.arrays for cache in caches])

    config = KVCacheConfig(method=method, head_dim=64, n_kv_heads=3, key_bits=4)
    grow([KVCacheFactory.create(config)], 300)  # what all caches share is made now
    before = mx.get_active_memory()
    layers = [KVCacheFactory.create(config) for _ in range(30)]
    for n in (512, 512, 512, 464):
        grow(layers, n)
    alone = mx.get_active_memory() - before
    forks = [[layer.fork(multiple_of=16) for layer in layers] for _ in range(10)]
    for fork in forks:
        for _ in range(15):
            grow(fork, 1)
    together = mx.get_active_memory() - before
    assert together < 1.5 * alone
    assert {len(cache) for fork in forks for cache in fork} == {2015}


def test_forks_that_seal_the_same_tokens_first_do_so_under_means_of_their_own() -> None:
    one = Twins(config_of("turboquant_mse", sink=2, window=10, seal_step=7))
    one.do(("append", 0, 19))
    two = one.fork(19, 1)
    one.do(("append", 100, 2))
    two.do(("append", 200, 2))
    for twins in (one, two):
        assert twins.cache.constant_bytes()
        twins.check()


def test_forks_that_seal_the_same_tokens_later_hold_their_codes_once() -> None:
    cache = KVCacheFactory.create(config_of("turboquant_mse"))
    cache.append(MANY[0][:, :2000], MANY[1][:, :2000])
    first, second = cache.fork(multiple_of=16), cache.fork(multiple_of=16)
    for fork in (first, second):
        fork.append(MANY[0][:, 2000:2001], MANY[1][:, 2000:2001])
    assert first.memory_bytes() == second.memory_bytes() != cache.memory_bytes()
    for ours, theirs in zip(first._keys.body.arrays, second._keys.body.arrays, strict=True):
        assert ours is theirs


def test_what_comes_behind_shared_tokens_has_their_type() -> None:
    caches = []
    for shared in (False, True):
        cache = KVCacheFactory.create(config_of("fp16"))
        cache.append(MANY[0][:, :32].astype(mx.float16), MANY[1][:, :32].astype(mx.float16))
        cache = cache.fork(multiple_of=16) if shared else cache
        cache.append(MANY[0][:, 32:40], MANY[1][:, 32:40])
        caches.append(cache)
    for ours, theirs in zip(caches[1].decoded(), caches[0].decoded(), strict=True):
        assert ours.dtype == theirs.dtype == mx.float16
        assert mx.array_equal(ours, theirs)


def test_single_vectors_that_wait_are_forked_too() -> None:
    cache = KVCacheFactory.create(KVCacheConfig(head_dim=64))
    for x in MANY[0][0, :30]:
        cache.append(x, x)
    fork = cache.fork(20)
    assert (len(cache), len(fork)) == (30, 20)
    assert mx.array_equal(fork.decoded()[0], MANY[0][:1, :20])


def test_of_uneven_keys_and_values_a_fork_has_the_even_part() -> None:
    cache = KVCacheFactory.create(config_of("turboquant_mse"))
    cache.append_key(MANY[0][:, :30])
    cache.append_value(MANY[1][:, :20])
    fork = cache.fork()
    assert fork.attend(QUERY).shape == QUERY.shape
    cache.append_value(MANY[1][:, 20:30])
    assert (len(cache), len(fork)) == (30, 20)


@pytest.mark.parametrize("wrong", [-1, 31, 1.0, True])
def test_a_number_of_tokens_that_it_does_not_hold_is_refused(wrong: Any) -> None:
    cache = KVCacheFactory.create(config_of("fp16"))
    cache.append(MANY[0][:, :30], MANY[1][:, :30])
    with pytest.raises(ValueError, match="holds 30 tokens"):
        cache.fork(wrong)
    with pytest.raises(ValueError, match="at least 1"):
        cache.fork(10, multiple_of=0)
    assert cache.pieces == []


def test_an_empty_cache_can_be_forked() -> None:
    fork = KVCacheFactory.create(config_of("turboquant_mse")).fork()
    fork.append(MANY[0][:, :5], MANY[1][:, :5])
    assert len(fork) == 5
