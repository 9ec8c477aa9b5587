"""Models of every kind of layer, alone and in batches, rewound and forked, against mlx-lm's own caches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from tests.architectures import WINDOW, random_model
from veloxquant_mlx.cache.config import KVCacheConfig
from veloxquant_mlx.integrations.mlx_lm import (
    attach,
    batch,
    build_caches,
    can_batch,
    fork_caches,
    pooled_layers,
    rewind,
)
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig

# What each layer keeps its tokens in.
LAYERS = {
    "llama": ["LayerCache"] * 4,
    "qwen3": ["LayerCache"] * 4,
    "phi3": ["LayerCache"] * 4,
    "gemma3_text": ["RotatingKVCache", "LayerCache"] * 2,
    "gpt_oss": ["RotatingKVCache", "LayerCache"] * 2,
    "granitemoehybrid": ["ArraysCache", "LayerCache"] * 2,
    "lfm2": ["ArraysCache", "LayerCache"] * 2,
    "falcon_h1": ["CacheList"] * 4,  # a state and plain attention side by side in every layer
}
# Those that can be rewound and forked: of the others nobody knows how many tokens they hold.
POOLED = [name for name, kinds in LAYERS.items() if "LayerCache" in kinds]
FP16 = KVCacheConfig(method="fp16")
EIGHT, FOUR = (KVCacheConfig(key_bits=bits, sink=4, window=8, seal_step=8) for bits in (8, 4))

owners = count(1)


@dataclass
class Model:
    """A model, its pool, and what mlx-lm itself says."""

    name: str
    model: Any
    pool: BlockPoolAllocator

    def goes_back(self, n_tokens: int) -> bool:
        """Whether n_tokens can be partly forgotten: never in a state, in a sliding window until it is full."""
        kinds = set(LAYERS[self.name])
        return kinds <= {"LayerCache", "RotatingKVCache"} and (n_tokens < WINDOW or kinds == {"LayerCache"})

    def caches(self, config: KVCacheConfig = FP16) -> list[Any]:
        return build_caches(self.model, config, self.pool, next(owners))

    def read(self, tokens: list[int], caches: list[Any], chunk: int = 32) -> mx.array:
        """The logits after each token, (n, vocabulary)."""
        parts = [
            self.model(mx.array(tokens[i : i + chunk])[None], cache=caches)[0] for i in range(0, len(tokens), chunk)
        ]
        logits = mx.concatenate(parts)
        mx.eval(logits)
        return logits

    def step(self, tokens: Sequence[int], caches: Sequence[list[Any]]) -> mx.array:
        """The logits after one token of each sequence, (B, vocabulary)."""
        logits: mx.array = self.model(mx.array(list(tokens))[:, None], cache=batch(caches))[:, -1]
        mx.eval(logits)
        return logits

    def steps(self, tokens: list[int], caches: list[Any]) -> mx.array:
        """The logits after each token, one at a time and alone."""
        return self.read(tokens, caches, chunk=1)

    def theirs(self, tokens: list[int], n_read: int) -> mx.array:
        """All logits of mlx-lm's own caches, which read n_read tokens in chunks and the others one by one."""
        caches = make_prompt_cache(self.model)
        return mx.concatenate([self.read(tokens[:n_read], caches), self.steps(tokens[n_read:], caches)])


@pytest.fixture(scope="module", params=LAYERS)
def architecture(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, random_model(request.param)


@pytest.fixture
def model(architecture: tuple[str, Any]) -> Iterator[Model]:
    pool = BlockPoolAllocator(PoolConfig(n_blocks=2_000))
    yield Model(*architecture, pool)
    assert (pool.stats.blocks_in_use(), pool.bytes_in_use) == (0, 0)


def text(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(200), k=n)


def alike(ours: mx.array, theirs: mx.array) -> bool:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == mx.float32
    return float(mx.abs(ours - theirs).max()) <= 1e-4 * float(mx.abs(theirs).max())


def correlation(ours: mx.array, theirs: mx.array) -> float:
    a, b = (x - x.mean() for x in (ours, theirs))
    return float((a * b).sum() / mx.linalg.norm(a) / mx.linalg.norm(b))


def release(*sequences: list[Any]) -> None:
    for caches in sequences:
        for layer in pooled_layers(caches):
            layer.release()


# ---------------------------------------------------------------- one sequence
def test_plain_layers_are_pooled_and_the_others_keep_mlx_lms_own_cache(model: Model) -> None:
    caches = model.caches()
    assert [type(cache).__name__ for cache in caches] == LAYERS[model.name]
    model.read(text(1, 70), caches)
    layers = pooled_layers(caches)
    assert [layer.offset for layer in layers] == [70] * LAYERS[model.name].count("LayerCache")
    assert model.pool.stats.blocks_in_use() == len(layers) * 2 * 5
    release(caches)


def test_a_prompt_in_chunks_and_single_steps_give_what_mlx_lm_gives(model: Model) -> None:
    tokens, caches = text(1, 90), model.caches()
    ours = mx.concatenate([model.read(tokens[:70], caches), model.steps(tokens[70:], caches)])
    assert alike(ours, model.theirs(tokens, 70))
    release(caches)


# ---------------------------------------------------------------- several sequences
@dataclass
class Row:
    """A sequence that takes part in the steps from `first` up to `last`."""

    tokens: list[int]
    n_read: int
    first: int
    last: int
    caches: list[Any]

    def token(self, i: int) -> int:
        return self.tokens[self.n_read + i - self.first]


def in_batches(model: Model, rows: list[Row]) -> list[mx.array]:
    """The logits of each row's steps, the newest of them first in its batch."""
    for row in rows:
        model.read(row.tokens[: row.n_read], row.caches)
    found: list[list[mx.array]] = [[] for _ in rows]
    for i in range(max(row.last for row in rows)):
        now = sorted((n for n, row in enumerate(rows) if row.first <= i < row.last), key=lambda n: -rows[n].first)
        logits = model.step([rows[n].token(i) for n in now], [rows[n].caches for n in now])
        for n, its in zip(now, logits, strict=True):
            found[n].append(its)
    return [mx.stack(logits) for logits in found]


def make_rows(model: Model, *configs: KVCacheConfig) -> list[Row]:
    """Short of the window all the time; across it on the way; beyond it from the start."""
    spans = ((3, 0, 10), (WINDOW - 4, 4, 20), (70, 2, 20))
    return [
        Row(text(seed, n_read + last - first), n_read, first, last, model.caches(config))
        for seed, ((n_read, first, last), config) in enumerate(zip(spans, configs, strict=True))
    ]


def test_each_row_of_a_batch_gives_what_mlx_lm_gives_for_it_alone(model: Model) -> None:
    assert can_batch(model.model)
    rows = make_rows(model, FP16, FP16, FP16)
    for row, ours in zip(rows, in_batches(model, rows), strict=True):
        assert alike(ours, model.theirs(row.tokens, row.n_read)[row.n_read :])
    # The one that left first goes on alone.
    more = text(9, 8)
    ours = model.steps(more, rows[0].caches)
    assert alike(ours, model.theirs(rows[0].tokens + more, 3)[-8:])
    release(*(row.caches for row in rows))


@pytest.mark.parametrize("architecture", POOLED, indirect=True)
@pytest.mark.parametrize("configs", [(EIGHT, EIGHT, EIGHT), (FOUR, FP16, FOUR)])
def test_each_coded_row_of_a_batch_gives_what_it_gives_alone(
    model: Model, configs: tuple[KVCacheConfig, KVCacheConfig, KVCacheConfig]
) -> None:
    rows = make_rows(model, *configs)
    for row, config, ours in zip(rows, configs, in_batches(model, rows), strict=True):
        alone = model.caches(config)
        model.read(row.tokens[: row.n_read], alone)
        assert alike(ours, model.steps(row.tokens[row.n_read :], alone))
        for layer in pooled_layers(row.caches):
            sealed = layer.inner.sealed("k") if layer.inner is not None else None
            assert (sealed is not None and sealed.n_tokens > 0) == (config is not FP16 and len(row.tokens) > 20)
        theirs = model.theirs(row.tokens, row.n_read)[row.n_read :]
        assert correlation(ours, theirs) > (0.999 if config.key_bits == 8 else 0.97)
        release(alone)
    release(*(row.caches for row in rows))


# ---------------------------------------------------------------- going back
@pytest.mark.parametrize("architecture", POOLED, indirect=True)
def test_a_sequence_that_was_rewound_goes_on_as_if_it_had_never_been_longer(model: Model) -> None:
    first, other = text(1, 100), text(2, 20)
    for n_read, n_kept in ((12, 7), (70, 41)):
        caches, can = model.caches(), model.goes_back(n_read)
        model.read(first[:n_read], caches)
        kept = rewind(caches, n_kept)
        assert kept == (n_kept if can else 0)
        # Where it could not go back, nothing has changed.
        tokens = first[: n_kept if can else n_read] + other
        assert alike(model.steps(other, caches), model.theirs(tokens, len(tokens) - 20)[-20:])
        assert rewind(caches, 10_000) == len(tokens)
        release(caches)


@pytest.mark.parametrize("architecture", POOLED, indirect=True)
def test_a_fork_of_all_tokens_and_its_original_go_on_apart(model: Model) -> None:
    tokens, here, there = text(1, 70), text(2, 20), text(3, 20)
    caches = model.caches()
    model.read(tokens[:60], caches)
    model.steps(tokens[60:], caches)  # from the first of them on, a window is written in place
    twin = fork_caches(caches, next(owners), 70)
    assert [type(cache).__name__ for cache in twin] == LAYERS[model.name]
    assert not {id(cache) for cache in caches} & {id(cache) for cache in twin}
    for some in (slice(0, 10), slice(10, 20)):  # in turns, so that each would see what the other wrote
        ours, its = model.steps(here[some], caches), model.steps(there[some], twin)
        assert alike(ours, model.theirs(tokens + here, 70)[70:][some])
        assert alike(its, model.theirs(tokens + there, 70)[70:][some])
    release(caches)
    more = text(4, 5)
    assert alike(model.steps(more, twin), model.theirs(tokens + there + more, 70)[-5:])
    release(twin)


@pytest.mark.parametrize("architecture", POOLED, indirect=True)
def test_a_fork_of_a_beginning_goes_on_as_if_it_had_never_been_longer(model: Model) -> None:
    first, other = text(1, 70), text(2, 20)
    for n_read, n_kept in ((12, 7), (70, 41)):
        caches, can = model.caches(), model.goes_back(n_read)
        model.read(first[:n_read], caches)
        twin = fork_caches(caches, next(owners), n_kept)
        assert bool(twin) == can
        if twin:
            tokens = first[:n_kept] + other
            assert alike(model.steps(other, twin), model.theirs(tokens, n_kept)[-20:])
        tokens = first[:n_read] + other
        assert alike(model.steps(other, caches), model.theirs(tokens, n_read)[-20:])
        release(caches, twin)


@pytest.mark.parametrize("architecture", POOLED, indirect=True)
def test_forks_share_a_batch(model: Model) -> None:
    """What one of them writes into a window or a state is not in the other's."""
    tokens, here, there = text(1, 70), text(2, 10), text(3, 10)
    caches = model.caches(FOUR)
    model.read(tokens[:60], caches)
    model.steps(tokens[60:], caches)
    twin = fork_caches(caches, next(owners), 70)
    found = [model.step(both, [caches, twin]) for both in zip(here, there, strict=True)]
    for i, more in enumerate((here, there)):
        alone = model.caches(FOUR)
        model.read(tokens[:60], alone)
        model.steps(tokens[60:], alone)
        assert alike(mx.stack([logits[i] for logits in found]), model.steps(more, alone))
        release(alone)
    release(caches, twin)


# ---------------------------------------------------------------- what can't be batched
@pytest.mark.parametrize("architecture", ["gpt_bigcode"], indirect=True)
def test_a_model_that_counts_its_positions_outside_is_not_batched(model: Model) -> None:
    assert attach(model.model)
    assert not can_batch(model.model)
    tokens, caches = text(1, 90), model.caches()
    ours = mx.concatenate([model.read(tokens[:70], caches), model.steps(tokens[70:], caches)])
    assert alike(ours, model.theirs(tokens, 70))
    release(caches)
