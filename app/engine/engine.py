"""Engine: the handle on the worker thread. It takes commands, hands out events, and knows nothing of MLX or Qt."""

from __future__ import annotations

import os
import queue
import threading
from types import TracebackType

from app.engine.messages import Command, EngineStopped, Event
from veloxquant_mlx.core.cpu import prepare_cpu
from veloxquant_mlx.memory.block_pool import PoolConfig

DEFAULT_POOL = PoolConfig(block_size=16, n_blocks=32_768)


class Engine:
    """The worker thread, which imports MLX and owns the model, the pool and every cache.

    `with Engine() as engine:` starts and ends it; a window calls start() and shutdown() itself.
    """

    def __init__(self, pool: PoolConfig = DEFAULT_POOL) -> None:
        self._pool = pool
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

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
