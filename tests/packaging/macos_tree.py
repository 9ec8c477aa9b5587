"""Bundles for macOS put together from real wheels and laid out by PyInstaller itself, on any system.

What can't be had here is Python's own library and the app's frozen code: the executable is PyInstaller's own for
macOS (real code for both processors) with an archive of small modules at its end.
"""

from __future__ import annotations

import os
import plistlib
import shutil
import zipfile
from pathlib import Path

import bundle_facts
import platformdirs
from lock_file import APP_PYTHON, Locked, download_wheels, lines_for_mac, wheel_of
from PIL import Image
from PyInstaller.archive.writers import CArchiveWriter, ZlibArchiveWriter  # type: ignore[import-untyped]
from PyInstaller.building.osx import BUNDLE  # type: ignore[import-untyped]

LOCK = bundle_facts.ROOT / "requirements.lock"
DEV_LOCK = bundle_facts.ROOT / "requirements-dev.lock"
QT_FRAMEWORKS = ("QtCore", "QtGui", "QtWidgets", "QtSvg", "QtDBus")
QT_PLUGINS = (
    "platforms/libqcocoa.dylib",
    "platforms/libqoffscreen.dylib",
    "styles/libqmacstyle.dylib",
    "imageformats/libqsvg.dylib",
)

Row = tuple[str, str, str]  # name in the bundle, source, kind, as in PyInstaller's tables


def wheels_folder(macos: str = bundle_facts.MIN_MACOS, python: str = APP_PYTHON) -> Path:
    """Where these tests keep what they downloaded, between runs: a folder per system and Python."""
    return platformdirs.user_cache_path(bundle_facts.NAME, appauthor=False) / "test-wheels" / f"{macos}-py{python}"


def locked(name: str, lock: Path = LOCK) -> Locked:
    """The line of a lock file that names a package, as a Mac reads it."""
    return next(line for line in lines_for_mac(lock) if line.name == name)


def fetch(name: str, lock: Path = LOCK, macos: str = bundle_facts.MIN_MACOS) -> Path:
    """The wheel of a locked package for macOS, downloaded the first time."""
    download_wheels([locked(name, lock)], wheels_folder(macos), macos)
    return wheel_of(wheels_folder(macos), locked(name, lock))


def assemble(app: Path, model: Path) -> None:
    """Write a bundle without faults to `app`; `model` is the default model's folder."""
    collected = app.parent / "collected"
    rows: list[Row] = []
    for name in ("mlx", "mlx-metal", "numpy", "shiboken6", "pyside6-essentials"):
        with zipfile.ZipFile(fetch(name)) as wheel:
            for entry in filter(_is_wanted, wheel.namelist()):
                kind = "DATA" if entry.endswith(".metallib") else "BINARY"
                rows.append((entry, wheel.extract(entry, collected), kind))
    rows += _links(rows)
    rows += [(f"{bundle_facts.MODEL_FOLDER}/{file.name}", str(file), "DATA") for file in sorted(model.iterdir())]
    library = collected / "base_library.zip"
    with zipfile.ZipFile(library, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("abc.py", "pass")
    rows.append(("base_library.zip", str(library), "DATA"))
    _lay_out(app, rows)
    shutil.rmtree(collected)
    (app / "Contents" / "MacOS").mkdir()
    (app / "Contents" / "Info.plist").write_bytes(plistlib.dumps(bundle_facts.info_plist()))
    Image.new("RGBA", (64, 64), "teal").save(app / "Contents" / "Resources" / bundle_facts.ICON)
    write_executable(app, {"app.main": "x = 1"})


def _links(rows: list[Row]) -> list[Row]:
    """The links that PyInstaller's analysis makes for libraries below packages, and packaging/app.spec for MLX."""
    links = [("mlx.metallib", "mlx/lib/mlx.metallib", "SYMLINK")]
    for name, _, _ in rows:
        path = Path(name)
        if path.suffix == ".dylib" and "plugins" not in path.parts:
            links.append((path.name, name, "SYMLINK"))
        elif ".framework/" in name:
            framework = path.parent.parent.parent
            links.append((path.name, name, "SYMLINK"))
            links.append((f"{framework}/Versions/Current", "A", "SYMLINK"))
            links.append((f"{framework}/{path.name}", f"Versions/Current/{path.name}", "SYMLINK"))
    return links


def _lay_out(app: Path, rows: list[Row]) -> None:
    """Put collected files and links where PyInstaller puts them in an .app: its own code decides.

    It divides files between Contents/Frameworks (code) and Contents/Resources (data), with links between the two.
    """
    placed: list[Row] = BUNDLE._process_bundle_toc(BUNDLE.__new__(BUNDLE), rows)
    for name, source, kind in placed:
        place = app / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "SYMLINK":
            place.symlink_to(source)
        else:
            shutil.copyfile(source, place)


def _is_wanted(entry: str) -> bool:
    """What goes into the tree of a wheel's files: code for the app's Qt modules, MLX and NumPy."""
    path = Path(entry)
    if entry.startswith("PySide6/Qt/plugins/"):
        return entry.removeprefix("PySide6/Qt/plugins/") in QT_PLUGINS
    if entry.startswith("PySide6/Qt/"):
        return path.name in QT_FRAMEWORKS
    if entry.startswith("PySide6/"):
        return path.name.split(".")[0] in (*QT_FRAMEWORKS, "libpyside6")
    return path.suffix in (".so", ".dylib", ".metallib")


def link(place: Path, target: Path) -> None:
    """A relative link at `place` to `target`; replaces what is there."""
    place.unlink(missing_ok=True)
    place.symlink_to(os.path.relpath(target, place.parent))


def write_executable(app: Path, modules: dict[str, str]) -> None:
    """PyInstaller's executable for windowed apps, and behind it an archive of modules: {name: source}.

    The archive is written by PyInstaller, for the Python that runs this.
    """
    with zipfile.ZipFile(fetch("pyinstaller", DEV_LOCK)) as wheel:
        bootloader = wheel.read("PyInstaller/bootloader/Darwin-64bit/runw")
    work = app.parent / "frozen"
    work.mkdir(exist_ok=True)
    executable = app / "Contents" / "MacOS" / bundle_facts.EXECUTABLE
    executable.unlink(missing_ok=True)
    executable.write_bytes(bootloader + frozen_archive(work, modules))
    executable.chmod(0o755)


def frozen_archive(work: Path, modules: dict[str, str]) -> bytes:
    """PyInstaller's archive with a PYZ of modules: {name: source}."""
    code = {name: compile(source, f"{name}.py", "exec") for name, source in modules.items()}
    ZlibArchiveWriter(str(work / "PYZ.pyz"), [(name, f"{name}.py", "PYMODULE") for name in modules], code)
    CArchiveWriter(str(work / "app.pkg"), [("PYZ.pyz", str(work / "PYZ.pyz"), False, "z")], "Python")
    return (work / "app.pkg").read_bytes()


def copy_tree(app: Path, folder: Path) -> Path:
    """A copy of a bundle that costs no disk: files are hard links, so a test replaces them, never writes into them."""
    copy = folder / app.name
    shutil.copytree(app, copy, symlinks=True, copy_function=os.link)
    return copy


def replace(path: Path, data: bytes) -> None:
    """New content for a file of a copy, with the mode it had."""
    mode = path.stat().st_mode
    path.unlink()
    path.write_bytes(data)
    path.chmod(mode)
