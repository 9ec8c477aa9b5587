"""Collects the licences of everything in the packaged app: Python, the packages of the lock file, system libraries."""

from __future__ import annotations

import filecmp
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from bundle_facts import ROOT
from lock_file import read_lock

LOCK = ROOT / "requirements.lock"
TEXTS = ROOT / "packaging" / "licence_texts"
# Wheels that name their licence and don't bring its text.
_NAMED_ONLY = {
    "PySide6_Essentials": ("LGPL-3.txt", "GPL-3.txt"),
    "shiboken6": ("LGPL-3.txt", "GPL-3.txt"),
    "sentencepiece": ("Apache-2.0.txt",),
    "tokenizers": ("Apache-2.0.txt",),
}
_LICENCE = re.compile(r"licen[cs]e|copying|notice|copyright|authors", re.IGNORECASE)


class LicenceError(Exception):
    """A licence is missing; the message says whose."""


def collect(folder: Path) -> None:
    """Copy the project's own licence, Python's, and those of all packages in the lock file, a folder for each.

    Raises:
        LicenceError: a package is not installed, or has no licence text.
    """
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "LICENSE", folder / "LICENSE")
    shutil.copy(_pythons(), folder / "Python.txt")
    for line in read_lock(LOCK):
        if line.requirement.marker is not None and not line.requirement.marker.evaluate():
            continue  # for another system or Python
        try:
            found = distribution(line.requirement.name)
        except PackageNotFoundError:
            raise LicenceError(f"The package {line.requirement} is not installed; run `make set-up`.") from None
        into = folder / f"{found.name}-{found.version}"
        into.mkdir()
        (into / "METADATA").write_text(found.read_text("METADATA") or "", encoding="utf-8")  # where it comes from
        texts = [(TEXTS / name, name) for name in _NAMED_ONLY.get(found.name, ())] or _of_wheel(found)
        for source, name in texts:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, into / name)
        if not texts:
            raise LicenceError(
                f"The package {found.name} brings no licence text. Add the text to packaging/licence_texts and the "
                f"package's name to packaging/licences.py."
            )


def _of_wheel(found: Distribution) -> list[tuple[Path, str]]:
    """The licences in a wheel, with their place in its .dist-info folder: wheels have several of one name."""
    texts = []
    for file in found.files or ():
        folder, _, place = str(file).partition(".dist-info/")
        if place and "/" not in folder and _LICENCE.search(place):
            texts.append((Path(str(found.locate_file(file))), place))
    return [(path, place) for path, place in texts if path.is_file()]


def _pythons() -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = (Path(sysconfig.get_path("stdlib"), "LICENSE.txt"), Path("/usr/share/doc", version, "copyright"))
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise LicenceError(f"Python's licence is in none of {', '.join(map(str, places))}.")
    return found


def add_system_libraries(internal: Path) -> None:
    """Copy the licences of the system's libraries that were taken into the folder `internal`, one per Debian package.

    Libraries of wheels are links there, to the folders of their packages; Python's own come under its licence.

    Raises:
        LicenceError: the package of a library has none, or a library is nobody's.
    """
    into = internal / "licences" / "system"
    into.mkdir(parents=True)
    for path in sorted(internal.glob("lib*.so*")):
        if path.is_symlink() or path.name.startswith("libpython"):
            continue
        systems = next((place for place in _places(path.name) if filecmp.cmp(place, path, shallow=False)), None)
        if systems is None:
            if Path(sys.base_prefix, "lib", path.name).is_file():
                continue
            raise LicenceError(f"The app has {path.name}, which is neither the system's nor Python's: whose is it?")
        package = _package(systems)
        text = Path("/usr/share/doc", package, "copyright")
        if not text.is_file():
            raise LicenceError(f"The package {package}, whose {path.name} is in the app, has no licence in {text}.")
        shutil.copy(text, into / f"{package}.txt")


def _places(name: str) -> list[Path]:
    return [path for folder in ("/usr/lib", "/lib") for path in sorted(Path(folder).glob(f"**/{name}"))]


def _package(library: Path) -> str:
    """The Debian package that a library belongs to; its database has a link's own name or what it leads to."""
    real = library.resolve()
    for path in (library, real, Path("/", *real.parts[2:]) if real.parts[1] == "usr" else real):
        result = subprocess.run(["dpkg", "-S", str(path)], capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return result.stdout.partition(":")[0]
    raise LicenceError(f"No package says that {library} is its own, so its licence isn't known.")
