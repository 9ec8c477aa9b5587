"""A scripted engine: it notes what it is told and says what a test lets it say. For pure state transitions only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.engine.messages import (
    AnswerEnded,
    AnswerStats,
    AnswerText,
    ChatMemory,
    Command,
    EndReason,
    Event,
    MemoryReport,
    ModelInfo,
    ModelReady,
    PoolReport,
)
from app.store.store import Store
from app.ui.session.controller import Controller
from app.ui.shell.main_window import MainWindow, build_window

INFO = ModelInfo("Small model", "/models/small", 30, 3, 64, 8192, "float32", "CPU", 46_080)


class ScriptedEngine:
    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.queue: list[Event] = []
        self.started = 0

    def start(self) -> None:
        self.started += 1

    def submit(self, command: Command) -> None:
        self.commands.append(command)

    def events(self) -> list[Event]:
        events, self.queue = self.queue, []
        return events

    def told(self, kind: type[Command]) -> list[Command]:
        return [command for command in self.commands if isinstance(command, kind)]


def stats(tokens: int = 3, memory: int = 1000, whole: int = 4000) -> AnswerStats:
    return AnswerStats(10, 0, tokens, 14.2, 20.0, 60, memory, whole)


def report(time: float, **bytes_of: int) -> MemoryReport:
    """A memory report with chats c1, c2, ... (lanes: l1, l2, ...) of so many bytes."""
    chats = tuple(
        ChatMemory(int(name[1:]) * (1 if name[0] == "c" else -1), "decode", 16, 60, held, held * 4)
        for name, held in bytes_of.items()
    )
    blocks, held = sum(chat.blocks_held for chat in chats), sum(bytes_of.values())
    pool = PoolReport(16, 1024, blocks, 0.01, blocks, 0, blocks, 500_000_000, bytes_in_use=held, cache_bytes=held)
    return MemoryReport(time, chats, pool)


def ended(chat_id: int, reason: EndReason = "stop") -> AnswerEnded:
    return AnswerEnded(chat_id, reason, stats())


def say(controller: Controller, *events: Event) -> None:
    """Let the engine say something and the controller hear it."""
    engine = controller._engine
    assert isinstance(engine, ScriptedEngine)
    engine.queue.extend(events)
    controller.drain()


def text(chat_id: int, words: str, n_tokens: int = 1) -> AnswerText:
    return AnswerText(chat_id, words, n_tokens)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "chats.sqlite3")
    yield made
    made.close()


@pytest.fixture
def controller(qapp: QApplication, engine: ScriptedEngine, store: Store) -> Iterator[Controller]:
    made = Controller(engine, store)
    say(made, ModelReady(INFO))
    yield made
    made.deleteLater()


@pytest.fixture
def window(qtbot: QtBot, engine: ScriptedEngine, store: Store) -> Iterator[MainWindow]:
    made = build_window(engine, store, ScriptedEngine)
    made.set_theme("light")
    made.show()
    yield made
    made.close()
    made.deleteLater()
    # Between tests no event loop runs that would do it, and a theme's change restyles every window there is.
    QCoreApplication.sendPostedEvents(made, QEvent.Type.DeferredDelete)
