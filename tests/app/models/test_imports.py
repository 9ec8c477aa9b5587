"""Opening a GGUF file: converted once, found again, and nothing half-done left behind."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from app.models import Cancelled, ModelFileError, check_model_folder, imports
from app.models.convert import gguf_to_mlx_folder
from app.models.imports import InstalledModel, file_identity, import_gguf, installed_models, is_gguf
from app.models.progress import IsCancelled, Progress
from app.models.set_up import only_process, tidy
from app.models.verify import FORMAT
from tests.app.models.conftest import gguf_metadata, write_gguf
from tests.app.models.tiny_models import write_tiny


def ignore(stage: str, fraction: float | None) -> None:
    pass


def never() -> bool:
    return False


def visible(models: Path) -> list[str]:
    return sorted(path.name for path in models.iterdir() if path.name != ".lock") if models.exists() else []


def test_an_imported_file_is_a_model_folder_that_says_where_it_is_from(tmp_path: Path, models: Path) -> None:
    path = write_tiny(tmp_path / "some file.gguf")
    seen: list[float] = []
    folder = import_gguf(path, lambda _, fraction: seen.append(fraction or 0.0), never)
    identity = file_identity(path)
    assert folder == models / f"Tiny-model-{identity[:8]}"
    check_model_folder(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["name"], manifest["licence"]) == ("Tiny model", "0BSD")
    assert manifest["source"] == {
        "file": "some file.gguf",
        "size": path.stat().st_size,
        "identity": identity,
        "architecture": "llama",
    }
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert visible(models) == [folder.name]


def test_the_same_file_from_another_place_is_not_converted_again(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "one.gguf")
    folder = import_gguf(path, ignore, never)
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere" / "two.gguf")
    monkeypatch.setattr(imports, "gguf_to_mlx_folder", lambda *_: pytest.fail("it was converted again"))
    assert import_gguf(moved, ignore, never) == folder


def test_other_weights_are_another_model(tmp_path: Path, models: Path) -> None:
    one, two = (import_gguf(write_tiny(tmp_path / f"{i}.gguf", seed=i), ignore, never) for i in range(2))
    assert one != two
    assert visible(models) == sorted([one.name, two.name])


@pytest.mark.parametrize("damage", ["weights", "missing", "older"])
def test_a_damaged_folder_is_made_again(tmp_path: Path, models: Path, damage: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    folder = import_gguf(path, ignore, never)
    if damage == "weights":
        data = bytearray((folder / "model.safetensors").read_bytes())
        data[-100] ^= 1
        (folder / "model.safetensors").write_bytes(data)
    elif damage == "missing":
        (folder / "tokenizer.json").unlink()
    else:
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 0}))
    assert import_gguf(path, ignore, never) == folder
    check_model_folder(folder)
    assert visible(models) == [folder.name]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("../../a: b*c?", "a-b-c"),
        ("模型", "model"),
        ("x" * 200, "x" * 60),
        (".hidden ", "hidden"),
        ("", "the-file"),
    ],
)
def test_a_name_makes_a_safe_folder(tmp_path: Path, models: Path, name: str, expected: str) -> None:
    metadata = gguf_metadata() | ({"general.name": name} if name else {})
    folder = import_gguf(write_gguf(tmp_path / "the file.gguf", metadata), ignore, never)
    assert folder.parent == models
    assert folder.name[:-9] == expected


@pytest.mark.parametrize("stage", ["Reading", "Writing", "Converting", "Checking"])
def test_cancelling_at_any_stage_leaves_nothing(tmp_path: Path, models: Path, stage: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    stages: list[str] = []
    with pytest.raises(Cancelled):
        import_gguf(path, lambda seen, _: stages.append(seen), lambda: any(seen.startswith(stage) for seen in stages))
    assert visible(models) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "mamba"}, "architecture mamba"),
        ({"tokenizer.ggml.model": "rwkv"}, "rwkv"),
        ({"tokenizer.chat_template": None}, "no chat template"),
    ],
)
def test_what_cannot_be_converted_is_refused_before_the_work_begins(
    tmp_path: Path, models: Path, change: dict[str, str | None], message: str
) -> None:
    metadata = {key: value for key, value in (gguf_metadata() | change).items() if value is not None}
    stages: list[str] = []
    with pytest.raises(ModelFileError, match=message):
        import_gguf(write_gguf(tmp_path / "odd.gguf", metadata), lambda stage, _: stages.append(stage), never)
    assert "Converting the model" not in stages
    assert visible(models) == []


def test_a_full_disk_is_said_before_and_during(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    with monkeypatch.context() as patch:
        patch.setattr(imports, "converted_size", lambda *_: 2**60)
        with pytest.raises(ModelFileError, match=r"not enough space on the disk .* it takes 1,152,921,504,607 MB"):
            import_gguf(path, ignore, never)

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(ModelFileError, match="not enough space"):
        import_gguf(path, ignore, never)
    assert visible(models) == []


def test_what_the_system_says_of_a_failed_write_is_told(tmp_path: Path, models: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # less than the weights, more than the rest
        with pytest.raises(ModelFileError, match=r"can't be written to .*models: File too large\."):
            import_gguf(path, ignore, never)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert visible(models) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    monkeypatch.setenv("VELOXQUANT_MODELS_DIR", str(path / "models"))
    with pytest.raises(ModelFileError, match="can't be written to"):
        import_gguf(path, ignore, never)


_SLOW_IMPORT = """
import sys, time
from pathlib import Path
from app.models import imports
def forever(gguf, folder, *_):
    folder.mkdir()
    (folder / "config.json").write_text("half")
    print("converting", flush=True)
    time.sleep(60)
imports.gguf_to_mlx_folder = forever
imports.import_gguf(Path(sys.argv[1]), lambda *_: None, lambda: False)
"""


def test_processes_wait_for_each_other_and_remove_what_a_killed_one_left(tmp_path: Path, models: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    with subprocess.Popen([sys.executable, "-c", _SLOW_IMPORT, str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"converting\n"
        stop_at = time.monotonic() + 0.3
        with pytest.raises(Cancelled):
            import_gguf(path, ignore, lambda: time.monotonic() > stop_at)
        child.kill()
    assert any(name.startswith(".setup-") for name in visible(models))
    folder = import_gguf(path, ignore, never)
    assert visible(models) == [folder.name]


def test_installed_models_are_listed_from_their_manifests(tmp_path: Path, models: Path) -> None:
    assert installed_models() == []
    folder = import_gguf(write_tiny(tmp_path / "tiny.gguf"), ignore, never)
    n_bytes = sum(file.stat().st_size for file in folder.iterdir() if file.name != "manifest.json")
    tiny = InstalledModel("Tiny model", folder, n_bytes)
    default = models / "SmolLM2-135M-Instruct"
    shutil.copytree(folder, default)
    manifest = json.loads((folder / "manifest.json").read_text())
    (default / "manifest.json").write_text(json.dumps({**manifest, "name": "SmolLM2"}))
    # Neither folders without a manifest nor damaged ones nor what is half-done are models.
    (models / "empty").mkdir()
    shutil.copytree(folder, models / ".setup-x" / "model")
    shutil.copytree(folder, models / ".setup-y")
    shutil.copytree(folder, models / "damaged")
    (models / "damaged" / "manifest.json").write_text("[1]")
    assert installed_models() == [InstalledModel("SmolLM2", default, n_bytes), tiny]


@pytest.mark.parametrize(
    ("name", "make", "expected"),
    [
        ("model.gguf", lambda path: path.write_bytes(b""), True),
        ("MODEL.GGUF", lambda path: path.write_bytes(b"x"), True),
        ("blob", lambda path: path.write_bytes(b"GGUF\x03"), True),
        ("blob", lambda path: path.write_bytes(b"GGU"), False),
        ("folder.gguf", lambda path: path.mkdir(), False),
        ("nothing.gguf", lambda path: None, False),
    ],
)
def test_what_a_gguf_file_is(tmp_path: Path, name: str, make: Callable[[Path], object], expected: bool) -> None:
    make(tmp_path / name)
    assert is_gguf(tmp_path / name) is expected


def test_a_file_that_changes_while_it_is_read_is_not_taken_for_a_model(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    convert = gguf_to_mlx_folder

    def while_it_is_written(gguf: Path, folder: Path, progress: Progress, cancelled: IsCancelled) -> None:
        convert(gguf, folder, progress, cancelled)
        write_tiny(gguf, seed=1)

    monkeypatch.setattr(imports, "gguf_to_mlx_folder", while_it_is_written)
    with pytest.raises(ModelFileError, match=r"tiny\.gguf was changed while it was read"):
        import_gguf(path, ignore, never)
    assert visible(models) == []


def test_what_only_people_read_may_be_unreadable(tmp_path: Path, models: Path) -> None:
    metadata = gguf_metadata() | {"general.name": 7, "general.license": ["MIT", "0BSD"]}
    folder = import_gguf(write_gguf(tmp_path / "odd one.gguf", metadata), ignore, never)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["name"], manifest["licence"]) == ("odd one", "unknown")


@pytest.mark.parametrize("size", ["Infinity", "[" * 100_000])
def test_an_odd_manifest_is_a_damaged_one(tmp_path: Path, models: Path, size: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    folder = import_gguf(path, ignore, never)
    whole = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(f'{{"format": {FORMAT}, "files": {{"config.json": {{"size": {size}')
    if size == "Infinity":
        with (folder / "manifest.json").open("a") as file:
            file.write(', "sha256": ""}}}')
    assert installed_models() == []
    assert import_gguf(path, ignore, never) == folder
    assert (folder / "manifest.json").read_text() == whole


def test_leftovers_are_removed_unless_somebody_is_at_work(models: Path) -> None:
    left = models / ".setup-dead"
    left.mkdir()
    (left / "half").write_bytes(b"half")
    with only_process(models, ignore, never):
        tidy(models)
    assert left.exists()
    tidy(models)
    assert visible(models) == []
