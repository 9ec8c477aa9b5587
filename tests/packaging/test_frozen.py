"""The packaged app by itself: moved elsewhere, an empty home, no Python packages, no network, and no sources."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import bundle_facts
import pytest
from build_paths import build_roots, find_build_paths
from bundle_tree import read_bundle, total_bytes
from PySide6.QtGui import QImage

pytestmark = pytest.mark.large

# In a network with no way out, and with an empty folder where the sources, .venv and dist/ are.
_APART = 'mount -t tmpfs none "$1" && shift && exec "$@"'
SYSTEM_LIBRARIES = ("/usr/lib/", "/usr/lib64/", "/lib/", "/lib64/", "/System/")


def apart(command: Sequence[str]) -> list[str]:
    """`command` on a system that has neither network nor sources."""
    if not sys.platform.startswith("linux"):
        # The workflow moves .venv away; macOS has no namespaces.
        return list(command)
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    unshare = ["unshare", *root, "--net", "--mount"]
    tried = subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.fail(
            f"These tests put the app into a network and mounts of its own, and the system refuses that "
            f"({tried.stderr.strip()}). Run them as root, or allow user namespaces to users "
            f"(sysctl kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu; --privileged for a container)."
        )
    return [*unshare, "sh", "-c", _APART, "sh", str(bundle_facts.ROOT), *command]


def environment(home: Path) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    return {"HOME": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "QT_QPA_PLATFORM": "offscreen"}


def run(executable: Path, home: Path, *arguments: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        apart([str(executable), *arguments]),
        env=environment(home),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def check_tour(folder: Path, model: str) -> None:
    report = json.loads((folder / "tour.json").read_text(encoding="utf-8"))
    assert report["model"] == model
    assert len(report["chats"]) == 3
    assert all(chat["answer"] and chat["tokens"] > 1 and chat["memory_bytes"] for chat in report["chats"])
    assert report["pool"]["blocks_in_use"] == sum(chat["blocks_held"] for chat in report["chats"])
    assert report["after_close"] == {"blocks_in_use": 0}
    fp16, *coded = report["compare"]["lanes"]
    assert fp16["answer"]
    assert all(lane["answer"] and lane["ratio"] > 1.5 for lane in coded)
    for name in ("chat.png", "memory.png", "compare.png"):
        assert QImage(str(folder / name)).width() >= 300


if sys.platform.startswith("linux"):

    def test_what_the_app_is_kept_from_is_really_gone() -> None:
        looks = 'ls -A "$1"; grep -c : /proc/net/dev'
        found = subprocess.run(
            apart(["sh", "-c", looks, "sh", str(bundle_facts.ROOT)]), capture_output=True, text=True, check=True
        )
        assert found.stdout.split() == ["1"], "no file, and no network interface but its own loopback"


def test_the_app_answers_by_itself_and_passes_its_tour(moved_app: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime for path in moved_app.parent.rglob("*") if path.is_file()}
    process = subprocess.Popen(
        apart([str(moved_app), "--tour", str(tmp_path / "tour")]),
        env=environment(tmp_path / "home"),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    loaded: set[str] = set()
    try:
        while process.poll() is None:
            loaded |= libraries(process.pid)
            time.sleep(0.5)
    finally:
        if process.poll() is None:
            process.kill()
        output, _ = process.communicate()
    assert process.returncode == 0, output
    check_tour(tmp_path / "tour", "SmolLM2-135M-Instruct")
    if sys.platform.startswith("linux"):
        own = [path for path in loaded if path.startswith(str(moved_app.parent))]
        assert any("libopenblas" in path for path in own)
        assert any("libmlx" in path for path in own)
        assert [path for path in loaded if path not in own and not path.startswith(SYSTEM_LIBRARIES)] == []
    assert {path: path.stat().st_mtime for path in moved_app.parent.rglob("*") if path.is_file()} == before
    written = [path for path in (tmp_path / "home").rglob("*") if path.is_file() and path.suffix == ".safetensors"]
    assert written == [], "the model inside was used, not a copy"


def libraries(pid: int) -> set[str]:
    """The shared libraries a process has loaded."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()  # it has just ended, or the system has no /proc
    mapped = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    # By the end of the name: the loader's list of libraries, ld.so.cache, is mapped for a moment too.
    return {path for path in mapped if re.search(r"\.so(\.[0-9]+)*$", path)}


def test_a_gguf_file_is_converted_and_answers(moved_app: Path, smollm2_file: Path, tmp_path: Path) -> None:
    gguf = tmp_path / "another name.gguf"
    shutil.copy(smollm2_file, gguf)  # out of the folder that is hidden, wherever the cache may be
    result = run(moved_app, tmp_path / "home", "--tour", str(tmp_path / "tour"), str(gguf))
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads((tmp_path / "tour" / "tour.json").read_text(encoding="utf-8"))
    check_tour(tmp_path / "tour", report["model"])
    assert list((tmp_path / "home").rglob("model.safetensors")), "converted into the person's own folder"


def test_help_names_the_app_and_a_wrong_argument_is_refused(moved_app: Path, tmp_path: Path) -> None:
    result = run(moved_app, tmp_path / "home", "--help")
    assert result.returncode == 0
    assert result.stdout.startswith(f"usage: {moved_app.name}")
    result = run(moved_app, tmp_path / "home", "--no-such-option")
    assert result.returncode == 2
    assert "--no-such-option" in result.stderr


@pytest.mark.parametrize("after", [0.5, 2.0, 6.0])
def test_a_polite_kill_ends_it_in_order(moved_app: Path, tmp_path: Path, after: float) -> None:
    with subprocess.Popen(
        apart([str(moved_app)]), env=environment(tmp_path / "home"), stderr=subprocess.PIPE, text=True
    ) as process:
        time.sleep(after)  # starting, loading the model, ready: whatever it is at, it must end well
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors


def test_it_stays_within_its_size_and_holds_the_licences(built_app: Path) -> None:
    root = bundle_facts.app_path()
    assert total_bytes(read_bundle(root)) < bundle_facts.MAX_BYTES
    [licences] = [path for path in root.rglob("licences") if path.is_dir() and not path.is_symlink()]
    assert (licences / "LICENSE").read_text() == (bundle_facts.ROOT / "LICENSE").read_text()
    packages = {folder.name.rpartition("-")[0]: folder for folder in licences.glob("*-*")}
    texts = {
        name: "".join(
            path.read_text(errors="replace") for path in folder.rglob("*") if path.name != "METADATA" and path.is_file()
        )
        for name, folder in packages.items()
    }
    assert {"mlx", "mlx-lm", "gguf", "transformers"} <= set(texts)
    assert all(len(text) > 500 for text in texts.values())
    assert "NumPy Developers" in texts["numpy"]
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in texts["PySide6_Essentials"]
    assert "PYTHON SOFTWARE FOUNDATION" in (licences / "Python.txt").read_text().upper()
    [model] = [path.parent for path in root.rglob("manifest.json") if not path.is_symlink()]
    assert (model / "LICENSE").is_file()


def test_nothing_names_the_place_where_it_was_built(built_app: Path) -> None:
    ours, _ = find_build_paths(read_bundle(bundle_facts.app_path()), build_roots())
    assert ours == []


if sys.platform.startswith("linux"):

    def test_every_system_library_in_it_is_needed_and_has_its_licence(built_app: Path) -> None:
        internal = built_app.parent / "_internal"
        libraries = [path for path in internal.rglob("*.so*") if path.is_file() and not path.is_symlink()]
        needed = {name for path in libraries for name in needs(path)} | {"libopenblas.so.0"}  # which is loaded by name
        top = {path.name for path in internal.glob("lib*.so*") if not path.is_symlink()}
        assert [name for name in top - needed if not name.startswith("libpython")] == []
        packages = {path.stem for path in (internal / "licences" / "system").iterdir()}
        assert "libopenblas0-pthread" in packages
        assert any(name.startswith("libglib2.0") for name in packages)


def needs(library: Path) -> list[str]:
    told = subprocess.run(["objdump", "-p", str(library)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^ *NEEDED +(\S+)$", told, re.MULTILINE)
