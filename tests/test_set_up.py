"""The set-up script's decisions, without installing anything; and the models that all tests share."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, at work in an empty folder with two lock files."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "packaging" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    for name, path in {"VENV": ".venv", "STAMP": ".venv/installed", "INSTALLING": ".venv/installing"}.items():
        monkeypatch.setattr(module, name, tmp_path / path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / "requirements.lock").write_text("a==1\n")
    (tmp_path / "requirements-dev.lock").write_text("a==1\nb==1\n")
    return module


@pytest.fixture
def calls(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands the script would run."""
    seen: list[list[str]] = []
    monkeypatch.setattr(bootstrap, "call", lambda command, *_: seen.append(command))
    return seen


def test_packages_are_installed_once_per_lock_file(bootstrap: ModuleType, calls: list[list[str]]) -> None:
    bootstrap.install("run")
    bootstrap.install("run")
    assert len(calls) == 1
    assert "--require-hashes" in calls[0]
    bootstrap.install("test")
    bootstrap.install("run")  # what tests need includes what running needs
    assert len(calls) == 2
    (bootstrap.ROOT / "requirements.lock").write_text("a==2\n")
    bootstrap.install("run")
    assert len(calls) == 3


def test_a_failed_installation_leaves_no_stamp_and_a_new_venv_next_time(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap.STAMP.write_text("of older lock files")
    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "call", lambda _, failure: bootstrap.fail(failure))
        with pytest.raises(SystemExit, match="1"):
            bootstrap.install("run")
    assert not bootstrap.STAMP.exists()
    made: list[list[str]] = []
    monkeypatch.setattr(bootstrap, "call", lambda command, *_: made.append(command))
    bootstrap.set_up_venv()
    assert made == [[sys.executable, "-m", "venv", str(bootstrap.VENV)]]


def test_without_root_the_exact_command_is_printed(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "missing_libraries", lambda: ["libGL.so.1", "libxcb-icccm.so.4"])
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/usr/bin/apt-get")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="1"):
        bootstrap.set_up_system()
    assert "sudo apt-get install -y --no-install-recommends libgl1 libxcb-icccm4\n" in capsys.readouterr().err


def test_on_another_linux_the_libraries_are_named(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "missing_libraries", lambda: ["libGL.so.1"])
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(SystemExit, match="1"):
        bootstrap.set_up_system()
    assert "libGL.so.1" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_lock_files_have_a_hash_for_everything_and_no_index_and_no_torch(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    packages = re.split(r"\n(?=\S)", text.strip())
    assert all("--hash=sha256:" in package for package in packages)
    assert not any(package.startswith(("torch", "nvidia")) for package in packages)


def test_what_qt_loads_is_what_the_script_asks_for() -> None:
    """A newer Qt may need another library; then the set-up script's table must name it."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the table is for Linux")
    import PySide6

    spec = (ROOT / "packaging" / "bootstrap.py").read_text()
    plugins = Path(PySide6.__file__).parent / "Qt" / "plugins" / "platforms"
    for plugin in ("libqoffscreen.so", "libqxcb.so", "libqwayland.so"):
        listing = subprocess.run(["ldd", str(plugins / plugin)], capture_output=True, text=True, check=True).stdout
        assert "not found" not in listing, plugin
        # The names in the file itself; those of the libraries' own libraries come with their packages.
        named = set(re.findall(rb"lib[\w+-]+\.so\.\d+", (plugins / plugin).read_bytes()))
        ours = {
            name.decode() for name in named if not re.match(rb"lib(Qt6|icu|c|m|gcc_s|pthread|dl|rt)[\w]*\.so", name)
        }
        assert {name for name in ours if f'"{name}"' not in spec} == set(), plugin


def test_the_tiny_model_runs_with_the_default_models_chat_template(tiny_model_dir: Path) -> None:
    import mlx.core as mx
    from mlx_lm.utils import load

    model, tokenizer, *_ = load(str(tiny_model_dir))
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True)
    logits = model(mx.array([prompt]))
    assert logits.shape[:2] == (1, len(prompt))
    assert bool(mx.all(mx.isfinite(logits)))
