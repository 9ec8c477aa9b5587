"""Drives a real engine in a test: submit commands, collect events until something has happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from app.engine.engine import Engine
from app.engine.messages import (
    AnswerEnded,
    AnswerText,
    CacheChoice,
    ChatFailed,
    Event,
    LoadModel,
    MemoryReport,
    Message,
    ModelFailed,
    ModelReady,
    OpenChat,
    Sampling,
    Send,
)
from veloxquant_mlx.memory.block_pool import PoolConfig

PATIENCE = 120.0  # seconds; only a hang ever waits that long


class Driver:
    """A running engine and everything it said."""

    def __init__(self, pool: PoolConfig | None = None) -> None:
        self.engine = Engine(pool or PoolConfig(n_blocks=8_192))
        self.engine.start()
        self.log: list[Event] = []

    def load(self, folder: Path) -> ModelReady | ModelFailed:
        self.engine.submit(LoadModel(str(folder)))
        event = self.until(lambda e: isinstance(e, (ModelReady, ModelFailed)))
        assert isinstance(event, (ModelReady, ModelFailed))
        return event

    def open(self, chat_id: int, method: str = "fp16", bits: int = 4) -> None:
        self.engine.submit(OpenChat(chat_id, CacheChoice(method, bits, bits)))

    def send(self, chat_id: int, *texts: str, max_tokens: int = 16) -> None:
        """Send a conversation of alternating user and assistant turns that ends with the user's, greedily answered."""
        turns = tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(texts))
        self.engine.submit(Send(chat_id, turns, Sampling(max_tokens=max_tokens)))

    def until(self, wanted: Callable[[Event], bool]) -> Event:
        """Collect events up to the first wanted one."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            event = self.engine.next_event(timeout=1.0)
            if event is not None:
                self.log.append(event)
                if wanted(event):
                    return event
        raise AssertionError(f"It never came; the last events were {self.log[-5:]}")

    def finish(self, *chat_ids: int) -> dict[int, AnswerEnded | ChatFailed]:
        """Wait until each of these chats has ended its answer."""
        ends: dict[int, AnswerEnded | ChatFailed] = {}
        while set(ends) < set(chat_ids):
            event = self.until(lambda e: isinstance(e, (AnswerEnded, ChatFailed)))
            assert isinstance(event, (AnswerEnded, ChatFailed))
            ends[event.chat_id] = event
        return ends

    def text(self, chat_id: int) -> str:
        """All the text a chat was given since the driver started."""
        return "".join(e.text for e in self.log if isinstance(e, AnswerText) and e.chat_id == chat_id)

    def ask(self, chat_id: int, *texts: str, max_tokens: int = 16) -> str:
        """Send, wait, and return this answer alone."""
        before = len(self.text(chat_id))
        self.send(chat_id, *texts, max_tokens=max_tokens)
        self.finish(chat_id)
        return self.text(chat_id)[before:]

    def memory(self, wanted: Callable[[MemoryReport], bool] = lambda report: True) -> MemoryReport:
        """The next report that is as wanted."""
        event = self.until(lambda e: isinstance(e, MemoryReport) and wanted(e))
        assert isinstance(event, MemoryReport)
        return event

    def end(self) -> None:
        assert self.engine.shutdown(PATIENCE)
