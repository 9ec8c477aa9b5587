"""Converts GGUF files beside the worker: pure NumPy in a thread of its own, so that chats go on answering meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event as Flag

from app.engine.messages import (
    Event,
    ImportCancelled,
    ImportFailed,
    ImportProgress,
    ImportRefused,
    ModelImported,
)
from app.models.errors import Cancelled, ModelFileError

REPORT_EVERY = 0.05  # seconds between two reports of progress
HINT = "Check that it is whole and that the disk has room, then open it again."


class Importing:
    """One import at a time. Its verbs may be called from any thread and never block.

    Args:
        emit: Takes every event, in the import's own thread or in the caller's.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._path: str | None = None  # of the file that is being imported
        self._cancelled = Flag()
        self._thread: threading.Thread | None = None
        self._ended = False

    def start(self, path: str) -> None:
        """Import the file; ends in one of ModelImported, ImportFailed, ImportCancelled and ImportRefused."""
        with self._lock:
            if self._ended:
                self._emit(ImportRefused(path, f"“{_name(path)}” can't be opened: the engine has stopped."))
                return
            if self._path is not None:
                self._emit(ImportRefused(path, busy_with(self._path, path)))
                return
            self._path, self._cancelled = path, Flag()
            # A daemon for the same reason as the worker: a read from a disk that hangs must not keep the process alive.
            self._thread = threading.Thread(
                target=self._run, args=(path, self._cancelled), name="velox-import", daemon=True
            )
            self._thread.start()

    def tidy(self) -> None:
        """Remove what an import left that was killed in the middle: gigabytes, perhaps. Returns at once."""
        threading.Thread(target=_tidy, name="velox-tidy", daemon=True).start()

    def cancel(self) -> None:
        """Let the running import end and remove what it has made; nothing where there is none."""
        self._cancelled.set()

    def end(self) -> None:
        """Cancel, and take no more."""
        with self._lock:
            self._ended = True
        self.cancel()

    def join(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the import's thread. Returns whether none is running."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(max(timeout, 0.0))
        return not thread.is_alive()

    def _run(self, path: str, cancelled: Flag) -> None:
        reports = _Reports(path, self._emit, cancelled)
        event: Event
        try:
            from app.models.imports import import_gguf  # NumPy and gguf, which nothing needs until now

            event = ModelImported(path, str(import_gguf(Path(path), reports.progress, reports.cancelled)))
        except Cancelled:
            event = ImportCancelled(path)
        except ModelFileError as exc:
            event = ImportFailed(path, str(exc))
        except BaseException as exc:  # noqa: BLE001  # the last frame of the thread: report, never die silently
            event = ImportFailed(path, f"The file {path} can't be converted ({type(exc).__name__}: {exc}). {HINT}")
        with self._lock:
            self._path = None  # before the event: who has seen it may start the next
        self._emit(event)


def _tidy() -> None:
    from app.models.default_model import models_dir
    from app.models.set_up import tidy

    with suppress(OSError):  # a folder that can't be written to; whoever imports something is told so then
        tidy(models_dir())


class _Reports:
    """Passes progress on, twenty times a second at most; what is held back comes with the next look."""

    def __init__(self, path: str, emit: Callable[[Event], None], cancelled: Flag) -> None:
        self._path, self._emit, self._cancelled = path, emit, cancelled
        self._held_back: ImportProgress | None = None
        self._reported_at = float("-inf")

    def progress(self, stage: str, fraction: float | None) -> None:
        self._held_back = ImportProgress(self._path, stage, fraction)
        self._pass_on()

    def cancelled(self) -> bool:
        self._pass_on()
        return self._cancelled.is_set()

    def _pass_on(self) -> None:
        now = time.monotonic()
        if self._held_back is not None and now - self._reported_at >= REPORT_EVERY:
            self._emit(self._held_back)
            self._held_back, self._reported_at = None, now


def busy_with(running: str, wanted: str) -> str:
    """Why `wanted` can't be opened while `running` is."""
    if running == wanted:
        return f"“{_name(wanted)}” is being opened already."
    return (
        f"“{_name(running)}” is still being opened. Wait until it is ready, or cancel it, "
        f"then open “{_name(wanted)}” again."
    )


def _name(path: str) -> str:
    return Path(path).name or path
