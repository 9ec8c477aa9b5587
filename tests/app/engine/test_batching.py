"""One step for all chats, and each chat's answer what it would have been alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from app.engine.messages import AnswerText, CloseChat, Event, PromptProgress, Sampling, Stop
from tests.app.engine.driver import Driver, is_of

QUESTIONS = (
    "Write a short story about a lighthouse keeper who finds a bottle.",
    "How do I bake bread at home?",
)
CHOICES = (("fp16", 4), ("turboquant_mse", 4))
LONG = "The history of the bicycle is long and full of surprises. " * 40


def test_128_tokens_are_the_same_alone_and_among_others_that_come_and_go(real: Driver) -> None:
    """Greedy, float32, with the default model: two methods, and chats that join and leave in between."""
    alone = {}
    for chat_id, (question, (method, bits)) in enumerate(zip(QUESTIONS, CHOICES, strict=True)):
        real.open(chat_id, method, bits)
        alone[chat_id] = real.ask(chat_id, question, max_tokens=128)
        real.engine.submit(CloseChat(chat_id))
    for chat_id, (question, (method, bits)) in enumerate(zip(QUESTIONS, CHOICES, strict=True)):
        real.open(100 + chat_id, method, bits)
        real.send(100 + chat_id, question, max_tokens=128)
        # One more joins while they answer, and is stopped again.
        real.open(200 + chat_id, "turboquant_mse", 2)
        real.send(200 + chat_id, "Tell me a joke.", max_tokens=400)
        real.until(is_of(AnswerText, 200 + chat_id))
        real.engine.submit(Stop(200 + chat_id))
    real.finish(*(100 + chat_id for chat_id in alone))
    for chat_id in alone:
        assert real.text(100 + chat_id) == alone[chat_id], CHOICES[chat_id]
        assert real.ended(100 + chat_id).stats.tokens > 60
        real.engine.submit(CloseChat(100 + chat_id))
        real.engine.submit(CloseChat(200 + chat_id))


def test_the_uncompressed_method_says_what_mlx_lm_says(real: Driver, default_model_dir: Path) -> None:
    import mlx_lm

    from app.models.loading import load_model

    loaded = load_model(default_model_dir, lambda stage, fraction: None, lambda: False)
    prompt = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTIONS[1]}], add_generation_prompt=True
    )
    theirs = "".join(
        part.text for part in mlx_lm.stream_generate(loaded.model, loaded.tokenizer, prompt, max_tokens=64)
    )
    for chat_id in (300, 301):
        real.open(chat_id)
        real.send(chat_id, QUESTIONS[1], max_tokens=64)
    real.finish(300, 301)
    assert real.text(300) == real.text(301) == theirs
    for chat_id in (300, 301):
        real.engine.submit(CloseChat(chat_id))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.8, top_p=0.9, seed=7, max_tokens=40),
        Sampling(temperature=1.2, top_k=20, min_p=0.05, seed=8, max_tokens=40),
        Sampling(temperature=0.7, repetition_penalty=1.3, seed=9, max_tokens=40),
        Sampling(repetition_penalty=1.5, repetition_window=8, max_tokens=40),
    ],
)
def test_an_answer_with_a_seed_is_the_same_alone_and_among_others(tiny: Driver, sampling: Sampling) -> None:
    """Uncompressed: a batch rounds differently in the last digit, which now and then makes another code of a number."""
    tiny.open(1, "fp16")
    alone = tiny.ask(1, "Hello", sampling=sampling)
    others = (Sampling(temperature=1.0, max_tokens=60), Sampling(max_tokens=50), sampling)
    for chat_id, its in enumerate(others, start=2):
        tiny.open(chat_id, "fp16")
        tiny.send(chat_id, "Hello", sampling=its)
    tiny.finish(2, 3, 4)
    assert tiny.text(4) == alone
    assert tiny.text(2) != alone


def test_without_a_seed_every_answer_is_another(tiny: Driver) -> None:
    texts = set()
    for chat_id in range(3):
        tiny.open(chat_id)
        texts.add(tiny.ask(chat_id, "Hello", sampling=Sampling(temperature=1.0, max_tokens=20)))
    assert len(texts) == 3


def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(real: Driver) -> None:
    real.open(310)
    whole = real.ask(310, "Count from one to ten in words, separated by commas.", max_tokens=40)
    stop = whole[len(whole) // 2 : len(whole) // 2 + 5]
    real.open(311)
    real.open(312)
    real.send(312, "What is the capital of France?", max_tokens=40)  # another chat's stop texts are its own
    text = real.ask(
        311, "Count from one to ten in words, separated by commas.", sampling=Sampling(max_tokens=40, stop=("@@", stop))
    )
    assert text == whole[: whole.index(stop)]
    assert real.ended(311).reason == "stop"
    real.finish(312)
    assert "Paris" in real.text(312)
    for chat_id in (310, 311, 312):
        real.engine.submit(CloseChat(chat_id))


def _between(log: list[Event], first: Event, last: Event) -> list[Event]:
    return log[log.index(first) : log.index(last)]


def test_a_short_question_waits_for_one_chunk_of_a_long_prompt_at_most(tiny: Driver) -> None:
    tiny.open(1, "turboquant_mse")
    tiny.send(1, LONG)
    tiny.until(lambda e: isinstance(e, PromptProgress) and e.done > 64)
    tiny.open(2)
    tiny.send(2, "Hi")
    sent = tiny.until(lambda e: isinstance(e, PromptProgress) and e.chat_id == 2)
    assert isinstance(sent, PromptProgress)
    chunks_of_its_own = -(-sent.total // 64)
    first = tiny.until(lambda e: isinstance(e, AnswerText) and e.chat_id == 2)
    chunks = [e for e in _between(tiny.log, sent, first) if isinstance(e, PromptProgress) and e.chat_id == 1]
    assert len(chunks) <= chunks_of_its_own + 1
    assert chunks[-1].done < chunks[-1].total - 1 if chunks else True  # the long one was still being read


def test_chats_that_answer_go_on_while_a_long_prompt_is_read(tiny: Driver) -> None:
    tiny.open(1)
    tiny.send(1, "Hello", max_tokens=1_500)
    tiny.until(lambda e: isinstance(e, AnswerText))
    tiny.open(2)
    tiny.send(2, LONG)
    tiny.until(lambda e: isinstance(e, AnswerText) and e.chat_id == 2)
    chunks = [e for e in tiny.log if isinstance(e, PromptProgress) and e.chat_id == 2]
    assert len(chunks) > 6
    for one, next_one in pairwise(chunks[1:]):
        assert [e for e in _between(tiny.log, one, next_one) if isinstance(e, AnswerText) and e.chat_id == 1]
