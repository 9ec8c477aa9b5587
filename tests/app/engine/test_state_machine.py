"""Any sequence of what a person can do ends with every block given back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule, run_state_machine_as_test

from app.engine.messages import ChatClosed, CloseChat, MemoryReport, ResizePool, Stop
from tests.app.engine.driver import Driver
from veloxquant_mlx.memory.block_pool import PoolConfig


@pytest.fixture
def small(tiny_model_dir: Path) -> Iterator[Driver]:
    driver = Driver(PoolConfig(n_blocks=60))
    driver.load(tiny_model_dir)
    yield driver
    driver.end()


def test_no_block_is_ever_lost(small: Driver) -> None:
    numbers = iter(range(1, 1_000_000))

    class People(RuleBasedStateMachine):
        chats = Bundle("chats")

        def __init__(self) -> None:
            super().__init__()
            self.open: set[int] = set()

        @rule(target=chats, method=st.sampled_from(["fp16", "turboquant_mse"]), bits=st.integers(1, 8))
        def open_chat(self, method: str, bits: int) -> int:
            chat_id = next(numbers)
            small.open(chat_id, method, bits)
            self.open.add(chat_id)
            return chat_id

        @rule(chat=chats, words=st.integers(1, 150), length=st.integers(1, 60))
        def send(self, chat: int, words: int, length: int) -> None:
            small.send(chat, "word " * words, max_tokens=length)

        @rule(chat=chats)
        def stop(self, chat: int) -> None:
            small.engine.submit(Stop(chat))

        @rule(chat=consumes(chats))
        def close(self, chat: int) -> None:
            small.engine.submit(CloseChat(chat))
            self.open.discard(chat)

        @rule(n_blocks=st.integers(1, 120))
        def resize(self, n_blocks: int) -> None:
            small.engine.submit(ResizePool(n_blocks))

        @rule(events=st.integers(1, 30))
        def wait(self, events: int) -> None:
            for _ in range(events):
                event = small.engine.next_event(timeout=0.02)
                if isinstance(event, MemoryReport):
                    assert event.pool.blocks_in_use == sum(chat.blocks_held for chat in event.chats)
                    assert event.pool.blocks_in_use <= event.pool.n_blocks

        def teardown(self) -> None:
            last = next(numbers)
            small.open(last)
            for chat in (*self.open, last):
                small.engine.submit(CloseChat(chat))
            small.until(lambda e: isinstance(e, ChatClosed) and e.chat_id == last)
            assert small.memory(lambda report: not report.chats).pool.blocks_in_use == 0

    run_state_machine_as_test(
        People,
        settings=settings(
            max_examples=25, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
