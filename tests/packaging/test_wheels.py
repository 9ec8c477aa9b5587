"""The lock file as a Mac reads it, and the wheels that the bundle is made of."""

from __future__ import annotations

from pathlib import Path

import bundle_facts
import macos_wheels
import pytest
from lock_file import WheelError, find_wheel, lines_for_mac, mac_environment, platform_tag, read_lock, wheels_refused

from tests.packaging.macos_tree import DEV_LOCK, LOCK, locked, wheels_folder

LINES = """\
# a comment
mlx==1.0 ; sys_platform == 'darwin' or sys_platform == 'linux' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
mlx-cpu==1.0 ; sys_platform == 'linux' \\
    --hash=sha256:cc
NumPy==2.0 ; python_full_version < '3.12' \\
    --hash=sha256:dd
numpy==2.5 ; python_full_version >= '3.12' \\
    --hash=sha256:ee
intel==1.0 ; platform_machine == 'x86_64' --hash=sha256:ff
"""


def test_markers_are_read_for_a_mac(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(LINES)
    assert [line.pin for line in lines_for_mac(lock, "3.13")] == ["mlx==1.0", "numpy==2.5"]
    assert [line.pin for line in lines_for_mac(lock, "3.11")] == ["mlx==1.0", "numpy==2.0"]
    assert read_lock(lock)[0].hashes == ("sha256:aa", "sha256:bb")


@pytest.mark.parametrize("line", ["mlx==1.0", "mlx>=1.0 --hash=sha256:aa"])
def test_a_line_without_version_or_hash_is_refused(tmp_path: Path, line: str) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(line)
    with pytest.raises(ValueError, match="no version or no hash; run `make lock`"):
        read_lock(lock)


def test_the_lock_file_has_mlx_for_macs_and_nothing_of_linux() -> None:
    names = {line.name for line in lines_for_mac(LOCK)}
    assert {"mlx", "mlx-metal", "mlx-lm", "pyside6-essentials", "shiboken6", "numpy"} <= names
    assert "mlx-cpu" not in names
    assert "pyinstaller" in {line.name for line in lines_for_mac(DEV_LOCK)}


def test_platform_tags_and_environments() -> None:
    assert (platform_tag("14.0"), platform_tag("26.2"), platform_tag("15")) == (
        "macosx_14_0_arm64",
        "macosx_26_2_arm64",
        "macosx_15_0_arm64",
    )
    assert mac_environment("3.12")["python_full_version"] == "3.12.0"


def test_a_wheel_counts_only_with_a_hash_of_the_lock_file(tmp_path: Path) -> None:
    line = locked("mlx")
    (tmp_path / "mlx-0.1-py3-none-any.whl").write_bytes(b"")
    (tmp_path / f"{line.pin.replace('==', '-')}-cp313-cp313-macosx_14_0_arm64.whl").write_bytes(b"something else")
    assert find_wheel(tmp_path, line) is None


@pytest.mark.large
def test_every_dependency_has_a_wheel_for_the_oldest_macos() -> None:
    assert wheels_refused(lines_for_mac(LOCK), wheels_folder(), bundle_facts.MIN_MACOS) == []


@pytest.mark.large
def test_a_dependency_that_needs_a_newer_macos_is_named(tmp_path: Path) -> None:
    lines = [locked(name) for name in ("jinja2", "mlx", "mlx-metal")]
    assert wheels_refused(lines, tmp_path, "11.0") == [
        f"{locked(name).pin} has no wheel for macOS 11.0 on Apple silicon with Python 3.13."
        for name in ("mlx", "mlx-metal")
    ]


@pytest.mark.large
def test_mlx_for_the_bundle_is_the_one_for_the_oldest_macos(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "build" / "macos-site"
    arguments = ["--python", "3.13", "--wheels", str(wheels_folder().parent), "--site", str(site)]
    assert macos_wheels.main(arguments) == 0
    assert "kernels for macOS 14.0 and Metal 3.1" in capsys.readouterr().out
    assert (site / "mlx/lib/libmlx.dylib").is_file()
    assert (site / "mlx/lib/mlx.metallib").is_file()
    assert [path.name for path in (site / "mlx").glob("core.*")] == ["core.cpython-313-darwin.so"]
    # What is there is used again, also where the index can't be reached.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    before = (site / "mlx/lib/libmlx.dylib").stat().st_mtime_ns
    assert macos_wheels.main(arguments) == 0
    assert (site / "mlx/lib/libmlx.dylib").stat().st_mtime_ns == before
    # A site that holds something else is made anew.
    (site / "wheels.json").write_text("{}")
    (site / "mlx/left_over.py").touch()
    assert macos_wheels.main(arguments) == 0
    assert not (site / "mlx/left_over.py").exists()


@pytest.mark.large
def test_mlx_for_a_newer_macos_is_refused(tmp_path: Path) -> None:
    site = tmp_path / "site"
    macos_wheels.fetch_mlx(wheels_folder().parent, site, "15.0", "3.13")
    with pytest.raises(WheelError, match=r"mlx.metallib is built for macOS 15.0 with Metal 3.2"):
        macos_wheels.check_site(site, "14.0")
    (site / "mlx/lib/mlx.metallib").unlink()
    with pytest.raises(WheelError, match=r"mlx.metallib is missing from the wheels"):
        macos_wheels.check_site(site, "15.0")


@pytest.mark.large
def test_no_wheel_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site"
    assert macos_wheels.main(["--macos", "11.0", "--wheels", str(tmp_path / "w"), "--site", str(site)]) == 1
    assert "has no wheel for macOS 11.0 on Apple silicon" in capsys.readouterr().err
    assert not site.exists()
