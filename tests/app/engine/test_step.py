"""What goes between scheduler and runner: plain, small, and the same on the other side of a pipe."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from app.engine.messages import AnswerEnded, Sampling
from app.engine.runner import Runner
from app.engine.step import Alone, Chunk, Done, Failure, Fork, Open, Rewind, Row, Sample, Step, Timed
from app.engine.values import CacheChoice
from tests.app.engine.driver import Driver
from tests.app.engine.plain import CHUNK, Room

PLAIN = (int, float, str, bool, type(None))
EVERYTHING = Step(
    releases=(1,),
    opens=(Open(2, CacheChoice()),),
    rewinds=(Rewind(2, 100),),
    forks=(Fork(2, 3, 64),),
    samples=(Sample(2, Sampling(seed=5), 101, (1, 2)),),
    chunk=Chunk(2, (7, 8, 9)),
    rows=(Row(4), Row(5, 17)),
    settles=(6,),
    alone=(Alone(7, 18, 6),),
)
ALL_OF_IT = Done(
    kept=((2, 96), (3, 64)),
    tokens=((4, 11),),
    failed=(Failure(5, "RuntimeError: no", exhausted=True),),
    lost="MemoryError: no",
    seconds=0.5,
    alone_seconds=0.1,
    timed=(Timed(7, 0.2, 4),),
)


def values(thing: Any) -> list[Any]:
    """Everything a value is made of, down to numbers and texts."""
    if is_dataclass(thing):
        return [value for field in fields(thing) for value in values(getattr(thing, field.name))]
    if isinstance(thing, tuple):
        return [value for part in thing for value in values(part)]
    return [thing]


def size(thing: Step | Done) -> int:
    return len(pickle.dumps(thing))


@pytest.mark.parametrize("thing", [EVERYTHING, ALL_OF_IT, Step(), Done()])
def test_it_is_the_same_on_the_other_side(thing: Step | Done) -> None:
    assert pickle.loads(pickle.dumps(thing)) == thing
    assert all(isinstance(value, PLAIN) for value in values(thing))
    assert not hasattr(thing, "__dict__")  # nothing can be hung on it
    with pytest.raises(FrozenInstanceError):
        setattr(thing, fields(thing)[0].name, ())


@pytest.mark.parametrize("sampling", [Sampling(max_tokens=8), Sampling(repetition_penalty=1.5, seed=1, max_tokens=8)])
def test_its_size_is_that_of_a_chunk_however_long_the_conversation_is(sampling: Sampling) -> None:
    largest = {}
    for n_turns in (4, 40):
        room = Room()
        room.open(1)
        turns = ["a question, or what was said to it"] * n_turns
        for texts in (turns[:-1], [*turns, "And?"]):
            room.send(1, *texts, sampling=sampling)
            assert room.run()
        assert all(len(step.chunk.tokens) <= CHUNK for step in room.runner.steps if step.chunk is not None)
        largest[n_turns] = max(size(step) for step in room.runner.steps)
    assert largest[40] <= largest[4] + 8  # a number more here or there takes another byte
    assert largest[40] < 1_000


def test_a_decode_step_of_many_chats_is_a_few_bytes_for_each() -> None:
    room = Room()
    chats = range(1, 41)
    room.open(*chats)
    for chat_id in chats:
        room.send(chat_id, "Hello", n=200)
    assert room.run(5_000)
    decode = [step for step in room.runner.steps if step.rows is not None and len(step.rows) == 40]
    assert len(decode) > 3
    assert max(size(step) for step in decode) < 40 * 40


def test_the_engine_answers_as_well_with_a_runner_behind_a_pipe(
    tiny: Driver, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything a real model is asked to do, and all that comes back, as bytes."""
    tiny.open(9, "turboquant_mse")
    first = tiny.ask(9, "word " * 150, max_tokens=30)
    expected = tiny.ask(9, "word " * 150, first, "And?", max_tokens=30)
    run, sizes = Runner.run, []

    def run_elsewhere(runner: Runner, step: Step) -> Done:
        sent = pickle.dumps(step)
        done = run(runner, pickle.loads(sent))
        assert all(isinstance(value, PLAIN) for value in (*values(step), *values(done)))
        answered = pickle.dumps(done)
        sizes.append(len(sent) + len(answered))
        found: Done = pickle.loads(answered)
        return found

    monkeypatch.setattr(Runner, "run", run_elsewhere)
    for chat_id in (1, 2):
        tiny.open(chat_id, "turboquant_mse")
        tiny.send(chat_id, "word " * 150, max_tokens=30)
    tiny.finish(1, 2)
    assert tiny.text(1) == tiny.text(2) == first
    tiny.fork(1, 3, "word " * 150, first)
    assert tiny.ask(3, "word " * 150, first, "And?", max_tokens=30) == expected
    assert isinstance(tiny.ended(3), AnswerEnded)
    assert len(sizes) > 30
    assert max(sizes) < 2_000
