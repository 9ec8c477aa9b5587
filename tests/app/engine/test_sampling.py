"""The next token, against what mlx-lm's own samplers and processors choose."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.utils import load_model

from app.engine.sampling import TokenSampler
from app.engine.values import SAMPLING_LIMITS, Sampling

VOCABULARY, DRAWS = 40, 4_000
FILTERS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.5),
    Sampling(temperature=1.7, top_p=0.8),
    Sampling(temperature=1.0, top_k=7),
    Sampling(temperature=0.9, min_p=0.1),
    Sampling(temperature=1.3, top_p=0.95, top_k=12, min_p=0.03),
]


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Any:
    return load_model(tiny_model_dir)[0]


def logits_of(seed: int, rows: int = 1) -> mx.array:
    return 2.0 * mx.random.normal((rows, VOCABULARY), key=mx.random.key(seed))


def listed(tokens: mx.array) -> list[int]:
    return [int(token) for token in np.array(tokens)]


def drawn(sampling: Sampling, logits: mx.array, n: int) -> list[int]:
    """The first n tokens of a sampler that is given the same logits each time."""
    sampler = TokenSampler(sampling)
    sampler.begin([])
    return listed(mx.concatenate([sampler(logits) for _ in range(n)]))


def ours(model: Any, prompt: list[int], sampling: Sampling, n: int) -> list[int]:
    cache = make_prompt_cache(model)
    model(mx.array(prompt[:-1])[None], cache=cache)
    sampler, token = TokenSampler(sampling), mx.array(prompt[-1:])
    tokens: list[int] = []
    sampler.begin(prompt)
    for _ in range(n):
        token = sampler(model(token[None], cache=cache)[:, -1].astype(mx.float32))
        tokens += listed(token)
    return tokens


def theirs(model: Any, prompt: list[int], n: int, **settings: Any) -> list[int]:
    return [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=n, **settings)]


# ---------------------------------------------------------------- against mlx-lm
def test_greedy_is_the_likeliest_token_whatever_the_filters_are() -> None:
    for seed in range(20):
        logits = logits_of(seed)
        likeliest = [int(np.argmax(np.array(logits)[0]))]
        assert drawn(Sampling(), logits, 1) == likeliest
        assert drawn(Sampling(top_p=0.5, top_k=3, min_p=0.5, seed=seed), logits, 1) == likeliest


def test_greedy_answers_are_those_of_mlx_lm(model: Any) -> None:
    prompt = list(range(100, 130))
    assert ours(model, prompt, Sampling(), 40) == theirs(model, prompt, 40)


@pytest.mark.parametrize(("penalty", "window"), [(1.3, 64), (1.3, 5), (2.0, 20), (0.7, 16)])
def test_a_repetition_penalty_gives_the_tokens_of_mlx_lm(model: Any, penalty: float, window: int) -> None:
    """The prompt counts, too, and is longer than some of the windows."""
    prompt = list(range(200, 224)) * 2
    sampling = Sampling(repetition_penalty=penalty, repetition_window=window)
    processors = make_logits_processors(repetition_penalty=penalty, repetition_context_size=window)
    expected = theirs(model, prompt, 48, logits_processors=processors)
    assert ours(model, prompt, sampling, 48) == expected
    assert expected != theirs(model, prompt, 48)


@pytest.mark.parametrize("sampling", FILTERS)
def test_what_is_sampled_has_the_distribution_of_mlx_lms_sampler(sampling: Sampling) -> None:
    logits = logits_of(1)
    sampler = make_sampler(
        sampling.temperature, sampling.top_p, min_p=sampling.min_p, top_k=sampling.top_k
    )  # of log-probabilities, many rows at once
    scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    mx.random.seed(3)
    n_theirs = 10 * DRAWS
    expected = Counter(listed(sampler(mx.repeat(scores, n_theirs, axis=0))))
    found = Counter(drawn(replace(sampling, seed=5), logits, DRAWS))
    assert set(found) <= set(expected)
    # Chi-square of two samples, rare tokens in one cell: its mean is the degrees of freedom, and its variance twice as
    # much. With fixed seeds the bound is passed always or never; a filter that keeps one token more is far beyond it.
    rare = {token for token in expected if expected[token] < 10 * n_theirs / DRAWS}
    cells = [{token} for token in expected if token not in rare] + ([rare] if rare else [])
    statistic = 0.0
    for cell in cells:
        a, b = sum(found[token] for token in cell), sum(expected[token] for token in cell)
        statistic += (a * 10**0.5 - b / 10**0.5) ** 2 / (a + b)
    freedom = len(cells) - 1
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("sampling", FILTERS[2:])
def test_exactly_the_tokens_that_mlx_lm_keeps_are_possible(sampling: Sampling) -> None:
    """At the highest temperature each token that is kept comes up soon."""
    sampling = replace(sampling, temperature=10.0, seed=6)
    logits = logits_of(2)
    sampler = make_sampler(10.0, sampling.top_p, min_p=sampling.min_p, top_k=sampling.top_k)
    scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    mx.random.seed(4)
    kept = set(listed(sampler(mx.repeat(scores, 20_000, axis=0))))
    assert set(drawn(sampling, logits, 2_000)) == kept
    assert len(kept) < VOCABULARY


def test_top_k_of_the_whole_vocabulary_and_more_is_all() -> None:
    logits = logits_of(3)
    everything = drawn(Sampling(temperature=1.0, seed=1), logits, 50)
    for top_k in (VOCABULARY, 1_000_000):
        assert drawn(Sampling(temperature=1.0, seed=1, top_k=top_k), logits, 50) == everything


# ---------------------------------------------------------------- seeds
def test_the_same_seed_gives_the_same_tokens_and_every_other_one_a_different_stream() -> None:
    logits = mx.zeros((1, VOCABULARY))
    streams = {seed: drawn(Sampling(temperature=1.0, seed=seed), logits, 200) for seed in (*range(8), 2**63 - 1)}
    for seed, stream in streams.items():
        assert drawn(Sampling(temperature=1.0, seed=seed), logits, 200) == stream
        for other, its in streams.items():
            # Neighbouring seeds may not share numbers at other positions, either.
            for shift in range(9):
                same = sum(a == b for a, b in zip(stream[shift:], its, strict=False))
                if (other, 0) != (seed, shift):
                    assert same < 25, (seed, other, shift)  # 5 of 200 by chance


def test_an_answer_that_is_taken_up_in_its_middle_goes_on_with_the_same_tokens() -> None:
    """A chat that gave its memory back in between: whatever was sampled is known, and what comes next is the same."""
    logits = logits_of(4)
    sampling = Sampling(temperature=1.0, seed=9, repetition_penalty=1.2, repetition_window=6)
    prompt = [1, 2, 3, 4]
    sampler = TokenSampler(sampling)
    sampler.begin(prompt)
    whole = listed(mx.concatenate([sampler(logits) for _ in range(40)]))
    sampler.begin([*prompt, *whole[:15]])
    assert listed(mx.concatenate([sampler(logits) for _ in range(25)])) == whole[15:]


# ---------------------------------------------------------------- other chats' logits
def test_a_processor_leaves_the_logits_as_they_are() -> None:
    """A step's logits are one array, and each chat has a row of it."""
    logits = logits_of(5, rows=3)
    before = np.array(logits)
    samplers = [TokenSampler(Sampling(repetition_penalty=5.0)) for _ in range(3)]
    for sampler in samplers:
        sampler.begin(list(range(VOCABULARY)))
    mx.eval([sampler(logits[i : i + 1]) for i, sampler in enumerate(samplers)])
    assert np.array_equal(np.array(logits), before)


# ---------------------------------------------------------------- what may be asked for
@pytest.mark.parametrize("name", SAMPLING_LIMITS)
def test_every_number_has_limits_and_is_named_when_it_is_outside(name: str) -> None:
    least, most, whole = SAMPLING_LIMITS[name]
    asked: dict[str, Any]
    for value in (least, most):
        asked = {name: int(value) if whole else float(value)}
        assert getattr(Sampling(**asked), name) == value
    beyond = (int(least) - 1, int(most) + 1) if whole else (least - 0.001, most + 0.001, float("nan"), float("inf"))
    for wrong in (*beyond, True, "1", None, *((1.5,) if whole else ())):
        asked = {name: wrong}
        with pytest.raises(ValueError, match=rf"^Sampling\.{name} must be .* from .* to .*, not ") as raised:
            Sampling(**asked)
        assert repr(wrong) in str(raised.value)
        assert f"{most:,}" in str(raised.value)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, "1"])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    assert Sampling(seed=0).seed == 0
    with pytest.raises(ValueError, match=r"^Sampling\.seed must be .*, not "):
        Sampling(seed=seed)


@pytest.mark.parametrize("stop", ["text", ["text"], ("",), ("a", 1), None])
def test_stop_texts_are_a_tuple_of_texts(stop: Any) -> None:
    assert Sampling(stop=("a", "b")).stop == ("a", "b")
    with pytest.raises(ValueError, match=r"^Sampling\.stop must be .*, not "):
        Sampling(stop=stop)
