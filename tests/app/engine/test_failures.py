"""Failures in the middle of a step: who ends, who goes on."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from app.engine import decode
from app.engine.messages import AnswerEnded, AnswerText, ChatFailed, CloseChat, EngineStopped
from app.engine.sequence import Sequence
from app.engine.step import Chunk, Failure, Row
from tests.app.engine.driver import Driver, is_of

OUT_OF_MEMORY = "[metal::malloc] Attempting to allocate 8589934592 bytes which is greater than the maximum allowed"
real_forward = decode.Decoder._forward


class Trouble:
    """Lets steps of the engine fail when it is armed."""

    def __init__(self) -> None:
        self.when = ""

    def forward(self, decoder: decode.Decoder, tokens: mx.array, sequences: Seq[Sequence]) -> mx.array:
        if self.when == "built":
            self.when = ""
            raise RuntimeError(OUT_OF_MEMORY)
        logits = real_forward(decoder, tokens, sequences)
        if self.when == "computed":
            # An index that is far outside only shows when MLX computes; what raises here is reading the result.
            self.when = "reading"
        return logits


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Trouble:
    trouble = Trouble()

    class Tokens:
        """A step's tokens whose computation fails."""

        def __init__(self, tokens: mx.array) -> None:
            self._tokens = tokens

        def __getitem__(self, at: slice) -> mx.array:
            return self._tokens[at]

        def tolist(self) -> list[int]:
            raise RuntimeError(OUT_OF_MEMORY)

    real_submit = decode.Decoder._submit

    def submit(decoder: decode.Decoder, rows: Seq[Row], previous: decode.Submitted | None) -> decode.Submitted:
        step = real_submit(decoder, rows, previous)
        if trouble.when == "joined" and previous is not None and len(rows) > len(previous.chat_ids):
            trouble.when = ""
            object.__setattr__(previous, "tokens", Tokens(previous.tokens))
        if trouble.when == "reading":
            trouble.when = ""
            step = decode.Submitted(step.chat_ids, Tokens(step.tokens), step.undisturbed)  # type: ignore[arg-type]
        return step

    monkeypatch.setattr(decode.Decoder, "_forward", lambda self, tokens, rows: trouble.forward(self, tokens, rows))
    monkeypatch.setattr(decode.Decoder, "_submit", submit)
    return trouble


@pytest.mark.parametrize("when", ["built", "computed"])
def test_a_step_that_fails_ends_its_chats_and_the_engine_goes_on(tiny: Driver, trouble: Trouble, when: str) -> None:
    tiny.open(9, "turboquant_mse")
    expected = tiny.ask(9, "Hello", max_tokens=60)
    for chat_id in (1, 2):
        tiny.open(chat_id, "turboquant_mse")
        tiny.send(chat_id, "Hello", max_tokens=400)
    for chat_id in (1, 2):
        tiny.until(is_of(AnswerText, chat_id))
    trouble.when = when
    ends = tiny.finish(1, 2)
    for end in ends.values():
        assert isinstance(end, ChatFailed)
        assert "8589934592" in end.message
        assert "Try again" in end.message
    assert not [e for e in tiny.log if isinstance(e, EngineStopped)]
    # They can be used again, and so can the chat that took no part.
    assert tiny.ask(1, "Hello", max_tokens=60) == expected
    assert tiny.ask(9, "Hello", max_tokens=60) == expected
    for chat_id in (1, 2, 9):
        tiny.engine.submit(CloseChat(chat_id))
    pool = tiny.memory(lambda report: not report.chats).pool
    assert (pool.blocks_in_use, pool.bytes_in_use) == (0, 0)


def test_a_chat_that_only_joined_after_the_failing_step_goes_on(tiny: Driver, trouble: Trouble) -> None:
    """Its first step rests on the one that failed, but nothing of its own went wrong."""
    tiny.open(3)
    expected = tiny.ask(3, "Hi", max_tokens=30)
    tiny.open(1)
    tiny.send(1, "Hello", max_tokens=2_000)
    tiny.until(lambda e: isinstance(e, AnswerText))
    tiny.open(2)
    trouble.when = "joined"  # the step before the one in which the second chat comes in
    tiny.send(2, "Hi", max_tokens=30)
    ends = tiny.finish(1, 2)
    assert isinstance(ends[1], ChatFailed)
    assert isinstance(ends[2], AnswerEnded)
    assert tiny.text(2) == expected


def test_a_prompt_that_fails_ends_that_chat_only(tiny: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.engine.runner import Runner

    def broken(tokens: mx.array, cache: list[Any]) -> mx.array:
        cache[0].update_and_fetch(mx.zeros((1, 2, 64, 16)), mx.zeros((1, 2, 64, 16)))  # one layer has them, one doesn't
        raise RuntimeError(OUT_OF_MEMORY)

    real = Runner._read
    tiny.open(1)
    tiny.send(1, "Hello", max_tokens=300)
    tiny.until(lambda e: isinstance(e, AnswerText))

    def read(self: Runner, chunk: Chunk, failed: dict[int, Failure]) -> None:
        if chunk.chat_id == 2 and self._sequences[2].n_held >= 64:
            loaded = self._loaded
            self._loaded = replace(loaded, model=broken)
            real(self, chunk, failed)
            self._loaded = loaded
        else:
            real(self, chunk, failed)

    monkeypatch.setattr(Runner, "_read", read)
    tiny.open(2)
    tiny.send(2, "word " * 200)
    ends = tiny.finish(1, 2)
    assert isinstance(ends[2], ChatFailed)
    assert isinstance(ends[1], AnswerEnded)


def test_a_worker_that_dies_says_so(tiny: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.engine.worker import Worker

    def report(self: Worker, *, now: bool = False) -> None:
        raise RuntimeError("the ground opened")

    tiny.open(1)
    tiny.ask(1, "Hello")
    monkeypatch.setattr(Worker, "_report", report)
    tiny.open(2)
    stopped = tiny.until(lambda e: isinstance(e, EngineStopped))
    assert isinstance(stopped, EngineStopped)
    assert "the ground opened" in stopped.error
