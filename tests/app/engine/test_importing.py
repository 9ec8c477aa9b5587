"""Importing GGUF files beside the worker: real conversions of a tiny file, while chats go on."""

from __future__ import annotations

import fcntl
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine import importing
from app.engine.engine import Engine, EngineError
from app.engine.messages import (
    AnswerText,
    CacheChoice,
    CancelImport,
    EngineStopped,
    Event,
    ImportCancelled,
    ImportFailed,
    ImportModel,
    ImportProgress,
    ImportRefused,
    ModelFailed,
    ModelImported,
    ModelReady,
    Sampling,
)
from app.models import convert, imports
from app.models.errors import Cancelled
from app.models.progress import IsCancelled, Progress
from tests.app.engine.driver import PATIENCE, Driver
from tests.app.models.conftest import write_gguf

ROOT = Path(__file__).parents[3]
ENDS = (ModelImported, ImportFailed, ImportCancelled, ImportRefused)


pytestmark = pytest.mark.usefixtures("models")


@pytest.fixture
def gguf(tmp_path: Path) -> str:
    return str(write_gguf(tmp_path / "tiny.gguf"))


@contextmanager
def held(models: Path) -> Iterator[None]:
    """As if another window was converting a model, which keeps an import going for as long as that takes."""
    with (models / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_end(event: Event) -> bool:
    return isinstance(event, ENDS)


def left_in(models: Path) -> list[str]:
    return sorted(entry.name for entry in models.iterdir() if entry.name != ".lock")


def test_a_file_is_converted_once_and_its_folder_loads(tiny: Driver, gguf: str) -> None:
    tiny.engine.submit(ImportModel(gguf))
    done = tiny.until(is_end)
    assert isinstance(done, ModelImported), done
    assert done.path == gguf
    fractions = [e.fraction for e in tiny.log if isinstance(e, ImportProgress) and e.fraction is not None]
    assert fractions == sorted(fractions)
    config = Path(done.folder) / "config.json"
    written = config.stat().st_mtime_ns
    tiny.engine.submit(ImportModel(gguf))
    assert tiny.until(is_end) == done
    assert config.stat().st_mtime_ns == written, "it was not converted again"
    assert isinstance(tiny.load(Path(done.folder)), ModelReady)
    tiny.open(1)
    tiny.ask(1, "Hello", max_tokens=4)


def test_chats_answer_while_a_file_is_imported(tiny: Driver, gguf: str, models: Path) -> None:
    tiny.open(1)
    with held(models):
        tiny.engine.submit(ImportModel(gguf))
        tiny.until(lambda e: isinstance(e, ImportProgress))
        assert tiny.ask(1, "Hello")
        assert not [e for e in tiny.log if is_end(e)]
    assert isinstance(tiny.until(is_end), ModelImported)


def test_a_second_import_is_refused_and_the_first_goes_on(tiny: Driver, gguf: str, models: Path) -> None:
    with held(models):
        tiny.engine.submit(ImportModel(gguf))
        tiny.engine.submit(ImportModel("/elsewhere/other.gguf"))
        refused = tiny.until(is_end)
        assert isinstance(refused, ImportRefused)
        assert refused.path == "/elsewhere/other.gguf"
        assert "“tiny.gguf” is still being opened" in refused.message
        tiny.engine.submit(ImportModel(gguf))
        again = tiny.until(is_end)
        assert isinstance(again, ImportRefused)
        assert "already" in again.message
    assert isinstance(tiny.until(is_end), ModelImported)


def test_an_import_waiting_for_another_window_can_be_cancelled(tiny: Driver, gguf: str, models: Path) -> None:
    with held(models):
        tiny.engine.submit(ImportModel(gguf))
        tiny.until(lambda e: isinstance(e, ImportProgress))
        tiny.engine.submit(CancelImport())
        assert tiny.until(is_end) == ImportCancelled(gguf)
    assert not left_in(models)
    tiny.engine.submit(ImportModel(gguf))
    assert isinstance(tiny.until(is_end), ModelImported)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A conversion that never ends by itself; set once it has written the first of its weights."""
    begun = threading.Event()

    def write_weights(file: Any, plan: Any, folder: Path, progress: Any, cancelled: Any) -> None:
        (folder / "model.safetensors").write_bytes(b"half of it")
        begun.set()
        while not cancelled():
            progress("Converting the model", 0.5)
        raise Cancelled

    monkeypatch.setattr(convert, "write_weights", write_weights)
    return begun


def test_a_cancelled_conversion_leaves_nothing(tiny: Driver, gguf: str, models: Path, endless: threading.Event) -> None:
    tiny.engine.submit(ImportModel(gguf))
    assert endless.wait(PATIENCE)
    assert left_in(models)
    tiny.engine.submit(CancelImport())
    assert tiny.until(is_end) == ImportCancelled(gguf)
    assert not left_in(models)


def test_an_engine_that_is_shut_down_cancels_its_import(gguf: str, models: Path, endless: threading.Event) -> None:
    driver = Driver()
    driver.engine.submit(ImportModel(gguf))
    assert endless.wait(PATIENCE)
    driver.end()
    assert not left_in(models)
    assert [e for e in driver.engine.events() if is_end(e)] == [ImportCancelled(gguf)]
    driver.engine.submit(ImportModel(gguf))
    [refused] = driver.engine.events()
    assert isinstance(refused, ImportRefused)


def test_an_import_ends_with_a_worker_that_dies(
    gguf: str, models: Path, endless: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.engine.worker import Worker

    def run(worker: Worker) -> None:
        assert endless.wait(PATIENCE)
        raise MemoryError("no more")

    monkeypatch.setattr(Worker, "run", run)
    driver = Driver()
    driver.engine.submit(ImportModel(gguf))
    seen = {type(driver.until(lambda e: isinstance(e, ImportCancelled | EngineStopped))) for _ in range(2)}
    assert seen == {ImportCancelled, EngineStopped}
    assert not left_in(models)
    driver.end()


def test_progress_is_told_twenty_times_a_second_at_most_and_the_last_word_is_not_lost(
    gguf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(importing, "time", SimpleNamespace(monotonic=lambda: next(clock) / 1000))

    def import_gguf(path: Path, progress: Progress, cancelled: IsCancelled) -> Path:
        for step in range(1000):  # a report each millisecond
            progress("Converting", step / 1000)
        progress("Writing", None)
        while not cancelled():  # and a look each millisecond after it
            pass
        raise Cancelled

    monkeypatch.setattr(imports, "import_gguf", import_gguf)
    told: queue.SimpleQueue[Event] = queue.SimpleQueue()
    imported = importing.Importing(told.put)
    imported.start(gguf)
    stages = []
    while "Writing" not in stages:
        event = told.get(timeout=PATIENCE)
        assert isinstance(event, ImportProgress)
        stages.append(event.stage)
    imported.end()
    assert imported.join(PATIENCE)
    assert 15 <= stages.count("Converting") <= 21
    assert told.get(timeout=PATIENCE) == ImportCancelled(gguf)


@pytest.mark.parametrize("data", [b"", b"GGUF" + b"\xff" * 100, None], ids=["empty", "damaged", "gone"])
def test_a_file_that_can_not_be_converted_is_told_and_the_model_stays(
    tiny: Driver, gguf: str, models: Path, data: bytes | None
) -> None:
    if data is None:
        Path(gguf).unlink()
    else:
        Path(gguf).write_bytes(data)
    tiny.engine.submit(ImportModel(gguf))
    failed = tiny.until(is_end)
    assert isinstance(failed, ImportFailed)
    assert gguf in failed.message
    assert not left_in(models)
    tiny.open(1)
    assert tiny.ask(1, "Hello")


class Panic(BaseException):
    """What tokenizers throws is no Exception either."""


@pytest.mark.parametrize("error", [ZeroDivisionError("by accident"), Panic("by accident")])
def test_what_nobody_expected_is_a_sentence_too(
    tiny: Driver, gguf: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def import_gguf(*_: object) -> Path:
        raise error

    monkeypatch.setattr(imports, "import_gguf", import_gguf)
    tiny.engine.submit(ImportModel(gguf))
    failed = tiny.until(is_end)
    assert isinstance(failed, ImportFailed)
    assert gguf in failed.message
    assert f"{type(error).__name__}: by accident" in failed.message
    monkeypatch.undo()
    tiny.engine.submit(CancelImport())  # there is none
    tiny.open(1)
    assert tiny.ask(1, "Hello")


def test_a_script_loads_a_gguf_file(tiny_model_dir: Path, gguf: str) -> None:
    with Engine() as engine:
        engine.load(tiny_model_dir)
        engine.open(1, CacheChoice("fp16"))
        engine.ask(1, "Hello", Sampling(max_tokens=4))
        while not isinstance(event := engine.next_event(PATIENCE), AnswerText):
            assert event is not None
        info = engine.load(gguf)
        assert info.n_layers == 2
        engine.open(2, CacheChoice("fp16"))
        engine.ask(2, "Hello", Sampling(max_tokens=4))
        assert {chat for chat, _ in engine.stream()} <= {1, 2}


def test_a_script_hears_why_a_gguf_file_can_not_be_loaded(gguf: str) -> None:
    Path(gguf).write_bytes(b"GGUF")
    with Engine() as engine, pytest.raises(EngineError, match=r"tiny\.gguf"):
        engine.load(gguf)


def test_a_process_that_ends_in_the_middle_leaves_nothing_once_the_next_import_ran(
    tiny: Driver, gguf: str, models: Path
) -> None:
    """As when the window closes while a disk hangs: the process is gone without a word."""
    script = (
        "import os, sys, threading\n"
        "from app.engine.engine import Engine\n"
        "from app.engine.messages import ImportModel\n"
        "from app.models import convert\n"
        "def write_weights(file, plan, folder, progress, cancelled):\n"
        "    (folder / 'model.safetensors').write_bytes(b'half of it')\n"
        "    os._exit(7)\n"
        "convert.write_weights = write_weights\n"
        "engine = Engine()\n"
        "engine.submit(ImportModel(sys.argv[1]))\n"
        "threading.Event().wait(60)\n"
    )
    result = subprocess.run([sys.executable, "-c", script, gguf], cwd=ROOT, env=os.environ, timeout=60)
    assert result.returncode == 7
    assert left_in(models)
    tiny.engine.submit(ImportModel(gguf))
    done = tiny.until(is_end)
    assert isinstance(done, ModelImported)
    assert left_in(models) == [Path(done.folder).name]


def test_what_a_killed_import_left_is_removed_at_the_next_start(models: Path) -> None:
    (models / ".setup-dead").mkdir()
    driver = Driver()
    stop_at = time.monotonic() + PATIENCE
    while left_in(models) and time.monotonic() < stop_at:
        time.sleep(0.01)
    assert not left_in(models)
    driver.end()


def test_a_gguf_file_is_no_folder(tiny: Driver, gguf: str) -> None:
    """LoadModel takes folders; what is given a file says so, and the engine serves on."""
    failed = tiny.load(Path(gguf))
    assert isinstance(failed, ModelFailed)
    assert gguf in failed.message
