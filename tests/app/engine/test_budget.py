"""Memory as a budget: who gets it, who waits, who gives it back, and what is said when nothing helps."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from app.engine.messages import (
    AnswerEnded,
    AnswerText,
    BudgetSet,
    CacheDropped,
    ChatFailed,
    ChatResumed,
    ChatWaiting,
    CloseChat,
    PromptProgress,
    SetBudget,
    Stop,
)
from tests.app.engine.driver import Driver, is_of
from veloxquant_mlx.memory.block_pool import PoolConfig

# The tiny model: 2 layers with keys and values of 2 heads of 16 float32 numbers, so a token takes 512 bytes.
TOKEN = 512
LONG = "Hello there, " * 150  # some 450 tokens
ELASTIC = PoolConfig(n_blocks=1, grow_on_exhaustion=True)


@pytest.fixture
def driver(tiny_model_dir: Path) -> Driver:
    driver = Driver(ELASTIC)
    driver.load(tiny_model_dir)
    return driver


def budget(driver: Driver, tokens: int, *, drop_idle: bool = False) -> None:
    """Room for so many uncompressed tokens."""
    driver.engine.submit(SetBudget(tokens * TOKEN, drop_idle))
    assert driver.until(lambda e: isinstance(e, BudgetSet)) == BudgetSet(tokens * TOKEN, drop_idle)


def let_wait(driver: Driver, *chat_ids: int) -> None:
    """Let chats ask, one after the other, while chat 1 holds nearly all there is."""
    budget(driver, 600)
    driver.open(1)
    driver.ask(1, LONG)
    for chat_id in chat_ids:
        driver.open(chat_id)
        driver.send(chat_id, LONG)
        driver.until(is_of(ChatWaiting, chat_id))


def close_all(driver: Driver, *chat_ids: int) -> None:
    for chat_id in chat_ids:
        driver.engine.submit(CloseChat(chat_id))
    pool = driver.memory(lambda report: not report.chats).pool
    assert (pool.blocks_in_use, pool.bytes_in_use) == (0, 0)
    driver.end()


def test_a_chat_that_can_never_fit_ends_with_all_numbers_and_advice(driver: Driver) -> None:
    budget(driver, 200)
    driver.open(1)
    driver.send(1, LONG)
    failed = driver.finish(1)[1]
    assert isinstance(failed, ChatFailed)
    assert "0.1 MB" in failed.message  # what there is: 200 tokens are 102,400 bytes
    assert "Memory budget" in failed.message
    assert "fewer bits" in failed.message
    driver.engine.submit(SetBudget(1_000 * TOKEN))
    assert driver.ask(1, LONG)
    close_all(driver, 1)


def test_the_budget_counts_bytes_so_compression_buys_room(driver: Driver) -> None:
    """What does not fit uncompressed fits with 4 bits."""
    budget(driver, 300)
    driver.open(1, "fp16")
    driver.send(1, LONG)
    assert isinstance(driver.finish(1)[1], ChatFailed)
    driver.open(2, "turboquant_mse", 4)
    driver.send(2, LONG)
    assert isinstance(driver.finish(2)[2], AnswerEnded)
    report = driver.memory(lambda report: report.pool.bytes_in_use > 0)
    assert report.pool.bytes_in_use <= 300 * TOKEN
    close_all(driver, 1, 2)


def test_a_chat_waits_visibly_and_goes_on_by_itself_when_another_is_closed(driver: Driver) -> None:
    budget(driver, 600)
    driver.open(1)
    driver.ask(1, LONG)
    driver.open(2)
    driver.send(2, LONG)
    waiting = driver.until(lambda e: isinstance(e, ChatWaiting))
    assert isinstance(waiting, ChatWaiting)
    assert waiting.chat_id == 2
    assert waiting.needed_bytes > waiting.free_bytes
    assert "closing a chat" in waiting.message
    states = {chat.chat_id: chat.state for chat in driver.memory().chats}
    assert states == {1: "idle", 2: "waiting"}
    driver.engine.submit(CloseChat(1))
    assert driver.until(lambda e: isinstance(e, ChatResumed)) == ChatResumed(2)
    assert isinstance(driver.finish(2)[2], AnswerEnded)
    close_all(driver, 2)


def test_a_larger_budget_lets_a_waiting_chat_go_on(driver: Driver) -> None:
    let_wait(driver, 2)
    driver.engine.submit(SetBudget(2_000 * TOKEN))
    assert isinstance(driver.finish(2)[2], AnswerEnded)
    close_all(driver, 1, 2)


def test_those_who_wait_go_on_in_the_order_in_which_they_asked(driver: Driver) -> None:
    let_wait(driver, 2, 3)
    driver.engine.submit(CloseChat(1))
    driver.until(lambda e: isinstance(e, AnswerEnded) and e.chat_id == 2)
    assert not [e for e in driver.log if isinstance(e, AnswerText) and e.chat_id == 3]
    driver.engine.submit(CloseChat(2))
    driver.finish(3)
    close_all(driver, 3)


def test_idle_chats_are_dropped_the_one_used_longest_ago_first_and_rebuilt_when_used(driver: Driver) -> None:
    budget(driver, 1_100, drop_idle=True)
    answers = {}
    for chat_id in (1, 2):
        driver.open(chat_id)
        answers[chat_id] = driver.ask(chat_id, LONG)
    driver.ask(1, LONG, answers[1], "Go on")  # so 2 is the one used longest ago
    driver.open(3)
    driver.send(3, LONG)
    assert driver.until(lambda e: isinstance(e, CacheDropped)) == CacheDropped(2)
    driver.finish(3)
    assert [e.chat_id for e in driver.log if isinstance(e, CacheDropped)] == [2]
    assert not [e for e in driver.log if isinstance(e, ChatWaiting)]
    assert driver.ask(2, LONG) == answers[2]  # from its text, at the cost of another
    assert driver.ended(2).stats.reused_tokens == 0
    close_all(driver, 1, 2, 3)


def test_two_chats_that_can_not_both_fit_end_one_after_the_other(driver: Driver) -> None:
    """Both answer and need more than there is: the later one gives way, waits, and is read again from its text."""
    budget(driver, 700, drop_idle=True)
    for chat_id in (1, 2):
        driver.open(chat_id)
        driver.send(chat_id, LONG, max_tokens=60)
    ends = driver.finish(1, 2)
    assert all(isinstance(end, AnswerEnded) for end in ends.values())
    order = [e.chat_id for e in driver.log if isinstance(e, AnswerEnded)]
    assert order == [1, 2]
    assert driver.text(1) == driver.text(2)
    # The second does not try again for every block that comes free: it made way once, and is read again once.
    done = [e.done for e in driver.log if isinstance(e, PromptProgress) and e.chat_id == 2]
    assert sum(later < earlier for earlier, later in pairwise(done)) <= 1
    close_all(driver, 1, 2)


def test_a_chat_that_waits_goes_on_when_the_last_one_that_answered_has_ended(driver: Driver) -> None:
    """Between a chunk and the decode steps that are owed for it, nobody was left to take them, and it waited on."""
    for n in range(8):
        budget(driver, 540, drop_idle=True)
        driver.open(1)
        driver.send(1, LONG, max_tokens=1 + n)
        driver.until(is_of(AnswerText, 1))
        driver.open(2)
        driver.send(2, LONG, max_tokens=2)
        assert isinstance(driver.finish(1, 2)[2], AnswerEnded)
        for chat_id in (1, 2):
            driver.engine.submit(CloseChat(chat_id))
    close_all(driver)


def test_what_is_in_use_never_exceeds_the_budget(driver: Driver) -> None:
    budget(driver, 700, drop_idle=True)
    for chat_id, (method, bits) in enumerate(
        [("fp16", 4), ("turboquant_mse", 4), ("spectral", 3), ("polar", 4), ("qjl", 2), ("affine", 4)]
    ):
        driver.open(chat_id, method, bits)
        driver.send(chat_id, LONG, max_tokens=40)
    most = 0
    while len([e for e in driver.log if isinstance(e, (AnswerEnded, ChatFailed))]) < 6:
        most = max(most, driver.memory().pool.bytes_in_use)
        assert most <= 700 * TOKEN
    assert most > 300 * TOKEN
    close_all(driver, *range(6))


def test_a_smaller_budget_takes_nothing_away_unless_idle_chats_may_be_dropped(driver: Driver) -> None:
    driver.open(1)
    driver.ask(1, LONG)
    driver.engine.submit(SetBudget(10 * TOKEN))
    report = driver.memory(lambda report: report.pool.max_bytes == 10 * TOKEN)
    assert report.pool.bytes_in_use > 10 * TOKEN
    driver.engine.submit(SetBudget(10 * TOKEN, drop_idle=True))
    assert driver.until(lambda e: isinstance(e, CacheDropped)) == CacheDropped(1)
    assert driver.memory(lambda report: report.pool.bytes_in_use == 0)
    close_all(driver, 1)


def test_a_waiting_chat_can_be_stopped_and_closed(driver: Driver) -> None:
    let_wait(driver, 2, 3)
    driver.engine.submit(Stop(2))
    ended = driver.finish(2)[2]
    assert isinstance(ended, AnswerEnded)
    assert ended.reason == "stopped"
    close_all(driver, 1, 2, 3)


def test_a_pool_of_so_many_blocks_refuses_in_blocks(tiny_model_dir: Path) -> None:
    driver = Driver(PoolConfig(n_blocks=64))  # 2 layers, keys and values: 4 blocks for every 16 tokens
    driver.load(tiny_model_dir)
    driver.open(1)
    driver.send(1, "Hello", max_tokens=70)
    driver.open(2)
    driver.send(2, LONG, max_tokens=300)
    ends = driver.finish(1, 2)
    failed = ends[2]
    assert isinstance(failed, ChatFailed)
    assert "64 blocks" in failed.message
    assert isinstance(ends[1], AnswerEnded)
    close_all(driver, 1, 2)


def test_where_blocks_are_short_nobody_is_told_to_raise_the_budget(tiny_model_dir: Path) -> None:
    driver = Driver(PoolConfig(n_blocks=160, max_bytes=10**9))
    driver.load(tiny_model_dir)
    driver.open(1)
    driver.ask(1, LONG)
    driver.open(2)
    driver.send(2, LONG)
    waiting = driver.until(lambda e: isinstance(e, ChatWaiting))
    assert isinstance(waiting, ChatWaiting)
    assert "of 160 are free" in waiting.message
    assert "budget" not in waiting.message
    driver.open(3)
    driver.send(3, LONG * 2)
    failed = driver.finish(3)[3]
    assert isinstance(failed, ChatFailed)
    assert "160 blocks" in failed.message
    assert "budget" not in failed.message
    close_all(driver, 1, 2, 3)


@pytest.mark.parametrize("wrong", [0, -5, 1.5, True])
def test_a_budget_that_is_none_is_refused_before_it_reaches_the_engine(wrong: int) -> None:
    with pytest.raises(ValueError, match="whole number of bytes"):
        SetBudget(wrong)
