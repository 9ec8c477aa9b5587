"""The command line names a model, and the real application opens it."""

from __future__ import annotations

import fcntl
import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from app.__main__ import parse
from app.ui.session import settings
from tests.app.models.conftest import write_gguf
from tests.app.ui.shell.test_quitting import start

PATIENCE_S = 120.0  # only a hang ever waits that long


pytestmark = pytest.mark.usefixtures("models")


def remembered(data: Path) -> str:
    """The model that the next start would open."""
    try:
        with closing(sqlite3.connect(f"file:{data / 'chats.sqlite3'}?mode=ro", uri=True)) as db:
            rows = db.execute("SELECT value FROM settings WHERE key = ?", (settings.MODEL,)).fetchall()
    except sqlite3.Error:
        return ""  # it is not there yet
    return str(json.loads(rows[0][0])) if rows else ""


def wait(process: subprocess.Popen[str], done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


@pytest.mark.parametrize("arguments", [["model"], ["--model", "model"]])
def test_a_model_is_named_by_its_path(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse(arguments).model == str(tmp_path / "model")
    assert parse([]).model is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a.gguf", "--model", "b"], "named twice"),
        (["a.gguf", "b.gguf"], "unrecognized arguments: b.gguf"),
        (["--tour", "pictures", "/nowhere/a.gguf"], "there is no file or folder /nowhere/a.gguf"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_gguf_file_named_on_the_command_line_is_opened_and_remembered(tmp_path: Path, models: Path) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf")
    process = start(tmp_path / "data", str(gguf))
    wait(process, lambda: bool(remembered(tmp_path / "data")))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    folder = Path(remembered(tmp_path / "data"))
    assert folder.parent == models
    assert (folder / "config.json").exists()


def test_quitting_in_the_middle_of_an_import_leaves_nothing(tmp_path: Path, models: Path) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf")
    with (models / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as if another window was converting a model
        process = start(tmp_path / "data", "--theme", "light", str(gguf))
        database = tmp_path / "data" / "chats.sqlite3"
        wait(process, database.exists)
        time.sleep(1.5)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert [entry.name for entry in models.iterdir()] == [".lock"]
    assert remembered(tmp_path / "data") == ""
