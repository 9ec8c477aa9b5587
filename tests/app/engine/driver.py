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
    ChatForked,
    Event,
    ForkChat,
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
        self._answering: set[int] = set()
        self._ends: dict[int, AnswerEnded | ChatFailed] = {}

    def load(self, folder: Path) -> ModelReady | ModelFailed:
        self.engine.submit(LoadModel(str(folder)))
        event = self.until(lambda e: isinstance(e, (ModelReady, ModelFailed)))
        assert isinstance(event, (ModelReady, ModelFailed))
        return event

    def open(self, chat_id: int, method: str = "fp16", bits: int = 4) -> None:
        self.engine.submit(OpenChat(chat_id, CacheChoice(method, bits, bits)))

    def send(
        self,
        chat_id: int,
        *texts: str,
        max_tokens: int = 16,
        sampling: Sampling | None = None,
        context_limit: int | None = None,
        drop_oldest: bool = False,
    ) -> None:
        """Send a conversation of alternating user and assistant turns, greedily answered where nothing else is said."""
        self._answering.add(chat_id)
        self.engine.submit(
            Send(
                chat_id,
                conversation(*texts),
                sampling or Sampling(max_tokens=max_tokens),
                context_limit=context_limit,
                drop_oldest=drop_oldest,
            )
        )

    def fork(self, chat_id: int, new_chat_id: int, *texts: str) -> ChatForked:
        """Fork a chat behind these turns."""
        self.engine.submit(ForkChat(chat_id, new_chat_id, conversation(*texts)))
        event = self.until(lambda e: isinstance(e, ChatForked) and e.new_chat_id == new_chat_id)
        assert isinstance(event, ChatForked)
        return event

    def until(self, wanted: Callable[[Event], bool]) -> Event:
        """Collect events up to the first wanted one."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            event = self.engine.next_event(timeout=1.0)
            if event is not None:
                self.log.append(event)
                if isinstance(event, (AnswerEnded, ChatFailed)):
                    self._answering.discard(event.chat_id)
                    self._ends[event.chat_id] = event
                if wanted(event):
                    return event
        raise AssertionError(f"It never came; the last events were {self.log[-5:]}")

    def finish(self, *chat_ids: int) -> dict[int, AnswerEnded | ChatFailed]:
        """Wait until each of these chats has ended its answer, and return how."""
        while self._answering & set(chat_ids):
            self.until(lambda e: isinstance(e, (AnswerEnded, ChatFailed)))
        return {chat_id: self._ends[chat_id] for chat_id in chat_ids}

    def text(self, chat_id: int) -> str:
        """All the text a chat was given since the driver started."""
        return "".join(e.text for e in self.log if isinstance(e, AnswerText) and e.chat_id == chat_id)

    def ask(self, chat_id: int, *texts: str, max_tokens: int = 16, sampling: Sampling | None = None) -> str:
        """Send, wait, and return this answer alone."""
        before = len(self.text(chat_id))
        self.send(chat_id, *texts, max_tokens=max_tokens, sampling=sampling)
        ended = self.finish(chat_id)[chat_id]
        assert isinstance(ended, AnswerEnded), ended
        return self.text(chat_id)[before:]

    def ended(self, chat_id: int) -> AnswerEnded:
        """How this chat's latest answer ended."""
        return next(e for e in reversed(self.log) if isinstance(e, AnswerEnded) and e.chat_id == chat_id)

    def memory(self, wanted: Callable[[MemoryReport], bool] = lambda report: True) -> MemoryReport:
        """The next report that is as wanted."""
        event = self.until(lambda e: isinstance(e, MemoryReport) and wanted(e))
        assert isinstance(event, MemoryReport)
        return event

    def end(self) -> None:
        assert self.engine.shutdown(PATIENCE)


def conversation(*texts: str) -> tuple[Message, ...]:
    """Turns that begin with the user's."""
    return tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(texts))


def is_of(kind: type, chat_id: int) -> Callable[[Event], bool]:
    """Whether an event is of this kind and about this chat."""
    return lambda event: isinstance(event, kind) and getattr(event, "chat_id", None) == chat_id
