"""Engine: the handle on the worker thread. It takes commands, hands out events, and knows nothing of MLX or Qt."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from app.engine.importing import Importing
from app.engine.messages import (
    AnswerEnded,
    AnswerText,
    CancelImport,
    ChatClosed,
    ChatFailed,
    Command,
    EngineStopped,
    Event,
    ImportCancelled,
    ImportFailed,
    ImportModel,
    ImportRefused,
    LoadModel,
    ModelFailed,
    ModelImported,
    ModelReady,
    OpenChat,
    Send,
)
from app.engine.values import CacheChoice, Message, ModelInfo, Sampling
from app.models.weights import installed_memory
from veloxquant_mlx.core.cpu import prepare_cpu
from veloxquant_mlx.memory.block_pool import PoolConfig


def default_budget() -> int:
    """Bytes that all chats' caches may have together where nobody has said: a quarter of this computer's memory."""
    installed = installed_memory() or 8 << 30
    return installed // 4 // 1_000_000 * 1_000_000


# Blocks are made as they are needed: what limits the chats is the budget, so that compression buys room for more.
DEFAULT_POOL = PoolConfig(block_size=16, n_blocks=32_768, grow_on_exhaustion=True, max_bytes=default_budget())


class EngineError(Exception):
    """What a blocking call of Engine asked for can't be done; the message says why and what to do."""


class Engine:
    """The worker thread, which imports MLX and owns the model, the pool and every cache.

    `with Engine() as engine:` starts and ends it; a window calls start() and shutdown() itself, and uses commands and
    events only. `load`, `open`, `ask` and `stream` are for scripts; the first and the last wait, and take events out of
    the same queue.
    """

    def __init__(self, pool: PoolConfig = DEFAULT_POOL) -> None:
        self._pool = pool
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._importing = Importing(self._events.put)
        self._thread: threading.Thread | None = None
        self._error = ""  # what ended the worker
        self._asked: Counter[int] = Counter()  # answers that `stream` still waits for, by chat
        self._aside: deque[AnswerText | AnswerEnded | ChatFailed | ChatClosed] = (
            deque()
        )  # came while something else was waited for

    def start(self) -> None:
        """Start the worker. An engine serves once; after it has stopped, make another."""
        # A daemon, so that a worker stuck in one long MLX call can't keep a process alive that has ended otherwise.
        self._thread = threading.Thread(target=self._run, name="velox-worker", daemon=True)
        self._thread.start()
        self._importing.tidy()

    def submit(self, command: Command) -> None:
        """Queue a command for the worker, or let an import begin or end. Never blocks."""
        match command:
            case ImportModel(path):
                self._importing.start(path)
            case CancelImport():
                self._importing.cancel()
            case _:
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
    def load(self, path: str | os.PathLike[str] | None = None) -> ModelInfo:
        """Load a model folder, a GGUF file (which is converted the first time) or the default model, and wait for it.

        Raises:
            EngineError: It can't be loaded.
        """
        folder = None if path is None else os.fspath(path)
        if folder is not None:
            from app.models.imports import is_gguf

            if is_gguf(Path(folder)):
                folder = self._import(folder)
        self.submit(LoadModel(folder))
        while True:
            match self._wait():
                case ModelReady(info):
                    return info
                case ModelFailed(message):
                    raise EngineError(message)
                case event:
                    self._keep(event)

    def _import(self, path: str) -> str:
        self.submit(ImportModel(path))
        while True:
            match self._wait():
                case ModelImported(came, folder) if came == path:
                    return folder
                case ImportFailed(came, message) | ImportRefused(came, message) if came == path:
                    raise EngineError(message)
                case ImportCancelled(came) if came == path:
                    raise EngineError(f"The import of {path} was cancelled.")
                case event:
                    self._keep(event)

    def _keep(self, event: Event) -> None:
        """Put what chats say aside for `stream` while something else is waited for."""
        if isinstance(event, AnswerText | AnswerEnded | ChatFailed | ChatClosed):
            self._aside.append(event)

    def open(self, chat_id: int, cache: CacheChoice | None = None) -> None:
        """Make a chat; one that has this id already is closed."""
        self._asked.pop(chat_id, None)
        self.submit(OpenChat(chat_id, cache or CacheChoice()))

    def ask(self, chat_id: int, said: str | Sequence[Message], sampling: Sampling | None = None) -> None:
        """Let a chat answer a question, or a whole conversation. Returns at once; `stream` has the answer."""
        messages = (Message("user", said),) if isinstance(said, str) else tuple(said)
        self.submit(Send(chat_id, messages, sampling or Sampling()))
        self._asked[chat_id] += 1

    def stream(self) -> Iterator[tuple[int, str]]:
        """What the chats say, as (chat id, more text), until all that were asked have ended.

        Raises:
            EngineError: One of them failed, or the engine has stopped. After a chat's failure, another `stream` has
                what the others say.
        """
        while self._asked:
            match self._aside.popleft() if self._aside else self._wait():
                case AnswerText(chat_id, text):
                    yield chat_id, text
                case AnswerEnded(chat_id):
                    self._has_ended(chat_id)
                case ChatClosed(chat_id):
                    self._asked.pop(chat_id, None)  # nobody answers any more
                case ChatFailed(chat_id, message):
                    self._has_ended(chat_id)
                    raise EngineError(f"Chat {chat_id}: {message}")

    def _has_ended(self, chat_id: int) -> None:
        self._asked[chat_id] -= 1
        self._asked += Counter()  # only what is left of it

    def _wait(self) -> Event:
        """The next event, for those who wait for one that must come.

        Raises:
            EngineError: None will come any more.
        """
        if self._thread is None:
            raise EngineError("The engine was not started. Use it as `with Engine() as engine:`.")
        while True:
            is_alive = self._thread.is_alive()
            event = self.next_event(timeout=1.0 if is_alive else 0.0)
            if isinstance(event, EngineStopped) or (event is None and not is_alive):
                raise EngineError(f"The engine has stopped ({self._error or 'it was asked to'}). Make another one.")
            if event is not None:
                return event

    # ------------------------------------------------------------------ the end
    def shutdown(self, timeout: float) -> bool:
        """Ask the worker and the import to end and wait up to `timeout` seconds. Returns whether they have ended."""
        deadline = time.monotonic() + timeout
        self._stopping.set()
        self._importing.end()
        self._commands.put(None)  # wakes the worker when it waits for commands
        if self._thread is not None:
            self._thread.join(timeout)
        has_ended = self._importing.join(deadline - time.monotonic())
        return has_ended and (self._thread is None or not self._thread.is_alive())

    def _run(self) -> None:
        # Everything that touches MLX is imported and run in this thread only: MLX's streams belong to threads.
        os.environ["HF_HUB_OFFLINE"] = "1"  # read at import: tokenizers come from the folder, nothing is looked up
        try:
            prepare_cpu()  # before the first import of MLX, which binds to whatever BLAS is there
            from app.engine.worker import Worker

            Worker(self._pool, self._commands, self._events.put, self._stopping).run()
        except BaseException as exc:  # noqa: BLE001  # the last frame of the thread: report, never die silently
            self._error = f"{type(exc).__name__}: {exc}"
        self._importing.end()  # nobody could load what it makes
        self._events.put(EngineStopped(self._error))

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown(10.0)
