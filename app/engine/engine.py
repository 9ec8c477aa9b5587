"""Engine: the handle on the worker thread. It takes commands, hands out events, and knows nothing of MLX or Qt."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType

from app.engine.messages import (
    AnswerEnded,
    AnswerText,
    ChatFailed,
    Command,
    EngineStopped,
    Event,
    LoadModel,
    ModelFailed,
    ModelReady,
    OpenChat,
    Send,
)
from app.engine.values import CacheChoice, Message, ModelInfo, Sampling
from veloxquant_mlx.core.cpu import prepare_cpu
from veloxquant_mlx.memory.block_pool import PoolConfig


def default_budget() -> int:
    """Bytes that all chats' caches may have together where nobody has said: a quarter of this computer's memory."""
    try:
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # a system that doesn't tell
        installed = 8 << 30
    return installed // 4 // 1_000_000 * 1_000_000


# Blocks are made as they are needed: what limits the chats is the budget, so that compression buys room for more.
DEFAULT_POOL = PoolConfig(block_size=16, n_blocks=32_768, grow_on_exhaustion=True, max_bytes=default_budget())


class EngineError(Exception):
    """What a blocking call of Engine asked for can't be done; the message says why and what to do."""


class Engine:
    """The worker thread, which imports MLX and owns the model, the pool and every cache.

    `with Engine() as engine:` starts and ends it; a window calls start() and shutdown() itself, and uses commands and
    events only. `load`, `open`, `ask` and `stream` are for scripts: they wait, and take events out of the same queue.
    """

    def __init__(self, pool: PoolConfig = DEFAULT_POOL) -> None:
        self._pool = pool
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._asked: set[int] = set()  # chats that `stream` still waits for

    def start(self) -> None:
        """Start the worker. An engine serves once; after it has stopped, make another."""
        # A daemon, so that a worker stuck in one long MLX call can't keep a process alive that has ended otherwise.
        self._thread = threading.Thread(target=self._run, name="velox-worker", daemon=True)
        self._thread.start()

    def submit(self, command: Command) -> None:
        """Queue a command for the worker. Never blocks."""
        self._commands.put(command)

    def events(self) -> list[Event]:
        """Everything that happened since the last call, in order. Never blocks."""
        happened: list[Event] = []
        while True:
            try:
                happened.append(self._events.get_nowait())
            except queue.Empty:
                return happened

    def next_event(self, timeout: float | None = None) -> Event | None:
        """Wait for the next event, for scripts without a timer. None when nothing happened within `timeout` seconds."""
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None

    # ------------------------------------------------------------------ for scripts
    def load(self, folder: str | None = None) -> ModelInfo:
        """Load a model folder, or the default model, and wait until it is ready.

        Raises:
            EngineError: It can't be loaded.
        """
        self.submit(LoadModel(folder))
        while True:
            event = self.next_event()
            if isinstance(event, ModelReady):
                return event.info
            if isinstance(event, ModelFailed):
                raise EngineError(event.message)
            self._check(event)

    def open(self, chat_id: int, cache: CacheChoice | None = None) -> None:
        """Make a chat."""
        self.submit(OpenChat(chat_id, cache or CacheChoice()))

    def ask(self, chat_id: int, said: str | Sequence[Message], sampling: Sampling | None = None) -> None:
        """Let a chat answer a question, or a whole conversation. Returns at once; `stream` has the answer."""
        messages = (Message("user", said),) if isinstance(said, str) else tuple(said)
        self.submit(Send(chat_id, messages, sampling or Sampling()))
        self._asked.add(chat_id)

    def stream(self) -> Iterator[tuple[int, str]]:
        """What the chats say, as (chat id, more text), until all that were asked have ended.

        Raises:
            EngineError: One of them failed.
        """
        while self._asked:
            event = self.next_event()
            match event:
                case AnswerText(chat_id, text, _):
                    yield chat_id, text
                case AnswerEnded(chat_id):
                    self._asked.discard(chat_id)
                case ChatFailed(chat_id, message):
                    self._asked.discard(chat_id)
                    raise EngineError(f"Chat {chat_id}: {message}")
                case _:
                    self._check(event)

    @staticmethod
    def _check(event: Event | None) -> None:
        if isinstance(event, EngineStopped):
            raise EngineError(f"The engine has stopped ({event.error or 'it was asked to'}). Make another one.")

    # ------------------------------------------------------------------ the end
    def shutdown(self, timeout: float) -> bool:
        """Ask the worker to end and wait up to `timeout` seconds. Returns whether it has ended."""
        self._stopping.set()
        self._commands.put(None)  # wakes it when it waits for commands
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def _run(self) -> None:
        # Everything that touches MLX is imported and run in this thread only: MLX's streams belong to threads.
        error = ""
        os.environ["HF_HUB_OFFLINE"] = "1"  # read at import: tokenizers come from the folder, nothing is looked up
        try:
            prepare_cpu()  # before the first import of MLX, which binds to whatever BLAS is there
            from app.engine.worker import Worker

            Worker(self._pool, self._commands, self._events.put, self._stopping).run()
        except BaseException as exc:  # noqa: BLE001  # the last frame of the thread: report, never die silently
            error = f"{type(exc).__name__}: {exc}"
        self._events.put(EngineStopped(error))

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown(10.0)
