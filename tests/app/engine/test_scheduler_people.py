"""Any sequence of what people can do and of what can go wrong, without a model: nobody is lost or waits for ever."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from app.engine.messages import ChatFailed
from tests.app.engine.plain import Room, answer


class People(RuleBasedStateMachine):
    """They talk, stop, fork, close and change the budget while steps are taken and now and then fail.

    `run` asserts of every step that it can be done: whatever takes a block that was not promised, goes on from a token
    that was not sampled, or draws a number for another position, fails there.
    """

    chats = Bundle("chats")
    seen: ClassVar[Counter[str]] = Counter()  # in all runs together

    def __init__(self) -> None:
        super().__init__()
        self.room = Room(30)
        self.drop_idle = False
        self.numbers = iter(range(1, 1_000))
        self.asked: dict[int, tuple[tuple[str, ...], int, int]] = {}  # texts, tokens, characters said before
        self.is_stuck = False

    @initialize(target=chats)
    def open_three(self) -> object:
        return multiple(*(self.open_one() for _ in range(3)))

    @rule(target=chats)
    def open_one(self) -> int:
        chat_id = next(self.numbers)
        self.room.open(chat_id)
        return chat_id

    @rule(chat=chats, n_letters=st.integers(0, 70), n=st.integers(1, 40), steps=st.integers(0, 40), alone=st.booleans())
    def send(self, chat: int, n_letters: int, n: int, steps: int, alone: bool) -> None:
        self.ask(chat, ("q" * n_letters,), n, alone)
        self.steps(steps)

    @rule(chat=chats, n=st.integers(1, 20), steps=st.integers(0, 12))
    def send_next(self, chat: int, n: int, steps: int) -> None:
        if chat in self.asked:
            texts, _, _ = self.asked[chat]
            self.ask(chat, (*texts, "so it is", "and then?"), n, False)
            self.steps(steps)

    def ask(self, chat: int, texts: tuple[str, ...], n: int, alone: bool) -> None:
        self.room.stop(chat)  # as a question does by itself; the text of the answer before ends here
        self.asked[chat] = texts, n, len(self.room.text(chat))
        self.room.send(chat, *texts, n=n, time_alone=alone)
        self.is_stuck = False

    @rule(chat=chats)
    def stop(self, chat: int) -> None:
        self.room.stop(chat)
        self.is_stuck = False

    @rule(chat=consumes(chats))
    def close(self, chat: int) -> None:
        self.room.close(chat)
        self.asked.pop(chat, None)
        self.is_stuck = False

    @rule(target=chats, chat=chats)
    def fork(self, chat: int) -> object:
        if chat not in self.asked:
            return multiple()
        new, (texts, _, _) = next(self.numbers), self.asked[chat]
        self.room.fork(chat, new, *texts)
        self.asked[new] = texts, 0, 0
        self.is_stuck = False
        return new

    @rule(n_blocks=st.integers(15, 60), drop_idle=st.booleans())
    def set_budget(self, n_blocks: int, drop_idle: bool) -> None:
        self.drop_idle, self.is_stuck = drop_idle, False
        self.room.budget(n_blocks, drop_idle=drop_idle)

    @rule(n=st.integers(1, 30))
    def steps(self, n: int) -> None:
        for _ in range(n):
            if not self.room.scheduler.busy:
                return
            if self.room.step() is None:
                self.is_stuck = True
                self.seen["nothing could go on"] += 1
                return

    @rule(chat=chats, exhausted=st.booleans())
    def let_a_chat_fail(self, chat: int, exhausted: bool) -> None:
        self.room.runner.failing = {chat: exhausted}

    @rule()
    def let_tokens_be_lost(self) -> None:
        self.room.runner.loses = True

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0]))
    def let_reading_be_slow(self, seconds: float) -> None:
        self.room.runner.chunk_seconds = seconds

    @invariant()
    def what_is_held_is_known(self) -> None:
        self.room.all_is_in_order()

    @invariant()
    def what_was_said_is_right_so_far(self) -> None:
        for chat, (texts, n, before) in self.asked.items():
            assert answer(*texts, n=n).startswith(self.room.text(chat)[before:])

    @invariant()
    def whoever_waits_waits_for_a_person(self) -> None:
        """Where nothing can go on, chats that don't answer hold what is missing, and may not be dropped."""
        if self.is_stuck:
            chats = self.room.scheduler.chats.values()
            assert all(chat.waiting for chat in chats if chat.answer is not None)
            assert any(chat.answer is None and chat.held for chat in chats)
            assert not self.drop_idle

    def teardown(self) -> None:
        """With memory for all of them every answer comes to its end, word for word; then all is given back."""
        room = self.room
        room.runner.failing, room.runner.loses = {}, False
        answering = [chat_id for chat_id, chat in room.scheduler.chats.items() if chat.answer is not None]
        failed = len(room.of(ChatFailed))
        room.budget(None)
        assert room.run()
        assert not room.scheduler.busy
        assert len(room.of(ChatFailed)) == failed
        self.what_is_held_is_known()
        for chat_id in answering:
            texts, n, before = self.asked[chat_id]
            assert room.text(chat_id)[before:] == answer(*texts, n=n)
        for event in room.log:
            self.seen[type(event).__name__] += 1
        room.close(*room.scheduler.chats)
        assert room.pool.stats.snapshot().blocks_in_use() == 0
        assert room.pool.bytes_in_use == 0
        assert not room.runner.chats


def test_nobody_is_lost_and_nobody_waits_for_ever() -> None:
    People.seen.clear()
    run_state_machine_as_test(
        People,
        settings=settings(
            max_examples=250, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    for name in ("AnswerEnded", "ChatWaiting", "ChatResumed", "CacheDropped", "ChatForked", "nothing could go on"):
        assert People.seen[name] > 5, People.seen  # the runs came to something
