"""Any sequence of what a person can do, and of what can go wrong, ends with every block and byte given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)

from app.engine import decode
from app.engine.messages import (
    METHODS,
    ChatClosed,
    CloseChat,
    ForkChat,
    MemoryReport,
    Sampling,
    Send,
    SetBudget,
    Stop,
)
from app.engine.sequence import Sequence
from tests.app.engine.driver import Driver, conversation
from veloxquant_mlx.memory.block_pool import PoolConfig

EVENTS = st.integers(0, 40)  # that are waited for before the next thing happens
TOKEN = 512  # bytes of one uncompressed token of the tiny model


@pytest.fixture
def small(tiny_model_dir: Path) -> Iterator[Driver]:
    driver = Driver(PoolConfig(n_blocks=1, grow_on_exhaustion=True, max_bytes=300 * TOKEN))
    driver.load(tiny_model_dir)
    yield driver
    driver.end()


def test_no_block_is_ever_lost_and_nobody_waits_for_ever(small: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(1, 1_000_000))
    seen: Counter[str] = Counter()
    failures: list[int] = []  # how many steps from now one fails; written here, read in the worker
    real_forward = decode.Decoder._forward

    def forward(self: decode.Decoder, tokens: mx.array, sequences: Seq[Sequence]) -> mx.array:
        if failures:
            failures[0] -= 1
            if failures[0] < 0:
                failures.clear()
                raise RuntimeError("[malloc] Unable to allocate 123456789 bytes.")
        return real_forward(self, tokens, sequences)

    monkeypatch.setattr(decode.Decoder, "_forward", forward)

    class People(RuleBasedStateMachine):
        chats = Bundle("chats")

        def __init__(self) -> None:
            super().__init__()
            self.open: set[int] = set()
            self.said: dict[int, tuple[str, ...]] = {}
            self.budget = 300 * TOKEN
            self.drop_idle = False
            small.engine.submit(SetBudget(self.budget, self.drop_idle))

        @initialize(target=chats, methods=st.lists(st.sampled_from(list(METHODS)), min_size=3, max_size=3))
        def open_three(self, methods: list[str]) -> object:
            return multiple(*(self.open_chat(method, 4) for method in methods))

        @rule(target=chats, method=st.sampled_from(list(METHODS)), bits=st.sampled_from([2, 3, 4, 8]))
        def open_one(self, method: str, bits: int) -> int:
            return self.open_chat(method, bits)

        def open_chat(self, method: str, bits: int) -> int:
            chat_id = next(numbers)
            small.open(chat_id, method, bits)
            self.open.add(chat_id)
            self.said[chat_id] = ()
            return chat_id

        @rule(
            chat=chats,
            words=st.integers(1, 150),
            length=st.integers(1, 90),
            limit=st.sampled_from([None, None, 150, 300]),
            drop=st.booleans(),
            temperature=st.sampled_from([0.0, 1.0]),
            events=EVENTS,
        )
        def send(
            self,
            chat: int,
            words: int,
            length: int,
            limit: int | None,
            drop: bool,
            temperature: float,
            events: int,
        ) -> None:
            """A next turn, whatever the chat is doing."""
            self.said[chat] = (*self.said[chat], "word " * words)
            sampling = Sampling(temperature=temperature, max_tokens=length)
            small.engine.submit(Send(chat, conversation(*self.said[chat]), sampling, limit, drop))
            self.said[chat] = (*self.said[chat], "An answer.")
            self.watch(events)

        @rule(chat=chats, keep=st.integers(0, 4), words=st.integers(1, 40), events=EVENTS)
        def edit(self, chat: int, keep: int, words: int, events: int) -> None:
            """An earlier message is sent anew."""
            self.said[chat] = (*self.said[chat][: keep // 2 * 2], "other " * words)
            small.engine.submit(Send(chat, conversation(*self.said[chat]), Sampling(max_tokens=20)))
            self.said[chat] = (*self.said[chat], "An answer.")
            self.watch(events)

        @rule(chat=chats, events=EVENTS)
        def go_on(self, chat: int, events: int) -> None:
            """The answer that is there is continued."""
            if self.said[chat]:
                small.engine.submit(Send(chat, conversation(*self.said[chat]), Sampling(max_tokens=20)))
                self.watch(events)

        @rule(target=chats, chat=chats, keep=st.integers(0, 6))
        def fork(self, chat: int, keep: int) -> object:
            if not self.said[chat]:
                return multiple()
            new = next(numbers)
            self.said[new] = self.said[chat][: keep // 2 * 2]
            small.engine.submit(ForkChat(chat, new, conversation(*self.said[new])))
            self.open.add(new)
            return new

        @rule(chat=chats)
        def stop(self, chat: int) -> None:
            small.engine.submit(Stop(chat))

        @rule(chat=consumes(chats))
        def close(self, chat: int) -> None:
            small.engine.submit(CloseChat(chat))
            self.open.discard(chat)

        @rule(tokens=st.integers(60, 500), drop_idle=st.booleans(), events=EVENTS)
        def set_budget(self, tokens: int, drop_idle: bool, events: int) -> None:
            # What is in use when a budget is lowered stays, so only the highest so far is a limit to test against.
            self.budget = max(self.budget, tokens * TOKEN)
            small.engine.submit(SetBudget(tokens * TOKEN, drop_idle))
            self.watch(events)

        @rule(steps=st.integers(0, 20))
        def let_a_step_fail(self, steps: int) -> None:
            failures[:] = [steps]

        def watch(self, events: int) -> None:
            for _ in range(events):
                event = small.engine.next_event(timeout=0.05)
                if event is None:
                    return
                seen[type(event).__name__] += 1
                if isinstance(event, MemoryReport):
                    self.look(event)

        def look(self, report: MemoryReport) -> None:
            pool = report.pool
            held = sum(chat.blocks_held for chat in report.chats)
            assert pool.blocks_in_use <= held
            if not pool.shared_blocks:
                assert pool.blocks_in_use == held
            assert pool.cache_bytes <= sum(chat.memory_bytes for chat in report.chats)
            # What a trim makes exact again is never refused; the engine trims where a block ends, so there is none.
            assert pool.bytes_in_use <= self.budget

        def teardown(self) -> None:
            """Every answer ends: with a budget that is large enough nobody may still wait. Then all is given back."""
            failures.clear()
            small.engine.submit(SetBudget(1_000_000 * TOKEN))
            last = next(numbers)
            small.open(last)
            small.send(last, "Hello", max_tokens=2)
            small.finish(last)
            report = small.memory(lambda report: all(chat.state == "idle" for chat in report.chats))
            assert {chat.chat_id for chat in report.chats} >= self.open
            for chat in (*self.open, last):
                small.engine.submit(CloseChat(chat))
            small.until(lambda e: isinstance(e, ChatClosed) and e.chat_id == last)
            pool = small.memory(lambda report: not report.chats).pool
            assert pool.blocks_in_use == 0
            assert pool.bytes_in_use == 0
            assert pool.shared_blocks == 0
            small.log.clear()

    run_state_machine_as_test(
        People,
        settings=settings(
            max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    assert seen["AnswerEnded"], seen  # the runs came to something
