"""How a model's folder is made: by one process at a time, in a temporary folder beside it, and put in place at once."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.models.errors import Cancelled, ModelFileError
from app.models.progress import IsCancelled, Progress
from app.models.verify import check_model_folder

TEMPORARY = ".setup-"


def is_whole(folder: Path, progress: Progress, cancelled: IsCancelled = lambda: False) -> bool:
    """Whether the folder is there, made by this version and undamaged.

    Raises:
        Cancelled: `cancelled()` became true.
    """
    if not folder.exists():
        return False
    progress("Checking the model's files", None)
    try:
        check_model_folder(folder, cancelled)
    except ModelFileError:
        return False
    return True


def scaled(progress: Progress, start: float, end: float) -> Progress:
    """A progress from 0 to 1 as the part from `start` to `end` of another."""

    def part(stage: str, fraction: float | None) -> None:
        progress(stage, None if fraction is None else start + fraction * (end - start))

    return part


@contextmanager
def only_process(parent: Path, progress: Progress, cancelled: IsCancelled) -> Iterator[None]:
    """Let one process at a time set models up in `parent`. The system drops the lock when its holder dies."""
    with (parent / ".lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if cancelled():
                    raise Cancelled from None
                progress("Another window is setting the model up", None)
                time.sleep(0.1)
        yield


def tidy(parent: Path) -> None:
    """Remove what a killed process left half-done, unless somebody is setting a model up in `parent` right now."""
    if not any(parent.glob(f"{TEMPORARY}*")):
        return
    with (parent / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        remove_leftovers(parent)


def remove_leftovers(parent: Path) -> None:
    """Remove what a killed process left half-done; whoever holds the lock knows that nobody is using it."""
    for leftover in parent.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def work_folder(parent: Path) -> Iterator[Path]:
    """A folder for what is half-done; it goes away with all that is in it then."""
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def put_in_place(finished: Path, folder: Path, work: Path) -> None:
    """Make `finished`, in the work folder `work`, the folder `folder`; a damaged one there goes away with `work`."""
    if folder.exists():
        # A rename can't replace a folder with files in it.
        folder.rename(work / "damaged")
    finished.replace(folder)
