"""Licences in the packaged app: every package's, whole, and none for a library that is nobody's."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import licences
import pytest
from lock_file import read_lock


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app") / "licences"
    licences.collect(folder)
    return folder


def test_every_package_of_the_lock_file_has_its_licence(collected: Path) -> None:
    folders = {path.name.rpartition("-")[0].lower().replace("_", "-"): path for path in collected.glob("*-*")}
    for line in read_lock(licences.LOCK):
        if line.requirement.marker is None or line.requirement.marker.evaluate():
            files = [path for path in folders[line.requirement.name.lower()].rglob("*") if path.is_file()]
            assert sum(path.stat().st_size for path in files if path.name != "METADATA") > 200, line.requirement


def test_licences_of_one_name_are_all_there(collected: Path) -> None:
    [numpy] = collected.glob("numpy-*")
    assert len(list(numpy.rglob("LICENSE*"))) > 5


def test_the_licences_that_wheels_only_name_are_there(collected: Path) -> None:
    [qt] = collected.glob("PySide6_Essentials-*")
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in (qt / "LGPL-3.txt").read_text()
    assert "GNU GENERAL PUBLIC LICENSE" in (qt / "GPL-3.txt").read_text()
    assert "PYTHON SOFTWARE FOUNDATION" in (collected / "Python.txt").read_text().upper()


if sys.platform.startswith("linux"):

    def test_a_library_that_is_nobodys_stops_the_build(tmp_path: Path) -> None:
        (tmp_path / "libmine.so.1").write_bytes(b"no library of any package")
        with pytest.raises(licences.LicenceError, match=r"libmine\.so\.1, which is neither the system's nor Python's"):
            licences.add_system_libraries(tmp_path)

    @pytest.mark.large  # asks dpkg, which the build needs and the app doesn't
    def test_a_library_of_the_system_comes_with_its_packages_licence(tmp_path: Path) -> None:
        [systems] = list(Path("/usr/lib").glob("*/libz.so.1"))
        shutil.copy(systems.resolve(), tmp_path / "libz.so.1")
        licences.add_system_libraries(tmp_path)
        [text] = (tmp_path / "licences" / "system").iterdir()
        assert text.name.startswith("zlib1g")
        assert "Gailly" in text.read_text(errors="replace")
