"""Chats with models whose layers are not all plain attention, and with one that can't be batched."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from app.engine.messages import AnswerText, CloseChat, ModelReady, Stop
from tests.app.engine.driver import Driver
from tests.architectures import write_model

# Longer than a window, and long enough for codes: what a method keeps exact of the beginning and the end is 112 tokens.
QUESTIONS = tuple(f"{how}, how old is the lighthouse? " * 12 for how in ("Briefly", "In your own words", "Well"))
# The last one has plain attention only, and can't be batched.
ARCHITECTURES = ("gemma3_text", "gpt_oss", "granitemoehybrid", "gpt_bigcode")

ids = count(1)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def plain(architecture: str) -> bool:
    """Whether all layers are plain attention."""
    return architecture == "gpt_bigcode"


@pytest.fixture(scope="module")
def ready(
    architecture: str, tmp_path_factory: pytest.TempPathFactory, default_model_dir: Path
) -> Iterator[tuple[Driver, ModelReady]]:
    folder = write_model(architecture, tmp_path_factory.mktemp("models") / architecture, default_model_dir)
    driver = Driver()
    event = driver.load(folder)
    assert isinstance(event, ModelReady)
    yield driver, event
    driver.end()


@pytest.fixture
def driver(ready: tuple[Driver, ModelReady]) -> Iterator[Driver]:
    """Everything is given back with the chats."""
    driver, first = ready[0], next(ids)
    yield driver
    for chat_id in range(first + 1, next(ids)):
        driver.engine.submit(CloseChat(chat_id))
    pool = driver.memory(lambda report: not report.chats).pool
    assert (pool.blocks_in_use, pool.bytes_in_use) == (0, 0)


def opened(driver: Driver, method: str = "fp16") -> int:
    chat_id = next(ids)
    driver.open(chat_id, method)
    return chat_id


def test_whether_chats_share_their_steps_is_said(ready: tuple[Driver, ModelReady], architecture: str) -> None:
    one_by_one = [notice for notice in ready[1].info.notices if "several chats in one step" in notice]
    assert bool(one_by_one) == (architecture == "gpt_bigcode")


@pytest.mark.parametrize("method", ["fp16", "turboquant_mse"])
def test_three_chats_at_once_say_what_each_says_alone(driver: Driver, method: str) -> None:
    firsts, seconds = [], []
    for question in QUESTIONS:
        chat_id = opened(driver, method)
        firsts.append(driver.ask(chat_id, question, max_tokens=16))
        seconds.append(driver.ask(chat_id, question, firsts[-1], "And now?", max_tokens=16))
    assert len({*firsts, *seconds}) == 6
    chats = [opened(driver, method) for _ in QUESTIONS]
    for chat_id, question in zip(chats, QUESTIONS, strict=True):
        driver.send(chat_id, question, max_tokens=16)
    driver.finish(*chats)
    assert [driver.text(chat_id) for chat_id in chats] == firsts
    for chat_id, question, first in zip(chats, QUESTIONS, firsts, strict=True):
        driver.send(chat_id, question, first, "And now?", max_tokens=16)
    driver.finish(*chats)
    assert [driver.text(chat_id) for chat_id in chats] == [a + b for a, b in zip(firsts, seconds, strict=True)]


def test_going_on_and_going_back_says_what_a_new_chat_says(driver: Driver, plain: bool) -> None:
    question, chat_id = QUESTIONS[0], opened(driver)
    whole = driver.ask(opened(driver), question, max_tokens=40)
    # An answer that was cut off goes on, and nothing is forgotten for that.
    first = driver.ask(chat_id, question, max_tokens=16)
    assert first + driver.ask(chat_id, question, first, max_tokens=24) == whole
    stats = driver.ended(chat_id).stats
    assert stats.reused_tokens == stats.prompt_tokens - 1
    # Another question, and once more behind an answer that was stopped: a window or a state can't go back to it.
    for other in QUESTIONS[1:]:
        assert driver.ask(chat_id, other) == driver.ask(opened(driver), other)
        assert (driver.ended(chat_id).stats.reused_tokens > 0) == plain
        driver.send(chat_id, other, max_tokens=1_000)
        driver.until(lambda e: isinstance(e, AnswerText) and e.chat_id == chat_id)
        driver.engine.submit(Stop(chat_id))
        assert driver.finish(chat_id)[chat_id] == driver.ended(chat_id)
    assert driver.ask(chat_id, question, max_tokens=40) == whole


def test_a_fork_says_what_its_original_says(driver: Driver) -> None:
    chat_id, twin_id = opened(driver, "turboquant_mse"), next(ids)
    first = driver.ask(chat_id, QUESTIONS[0])
    driver.fork(chat_id, twin_id, QUESTIONS[0], first)
    for a_chat in (chat_id, twin_id):
        driver.send(a_chat, QUESTIONS[0], first, "And now?")
    driver.finish(chat_id, twin_id)
    assert driver.text(chat_id) == first + driver.text(twin_id)
    assert driver.text(twin_id)
