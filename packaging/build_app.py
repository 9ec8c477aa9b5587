"""`make app`: the packaged app in dist/, for the system this runs on. See README.md beside it.

Makes what app.spec needs, runs PyInstaller, puts beside the app what Linux desktops want, and prints what is largest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import bundle_facts as facts
import icons
from bundle_tree import read_bundle, total_bytes
from lock_file import read_lock

MADE = facts.ROOT / "build" / "bundle"
LICENCES = MADE / "licences"
MACOS_SITE = facts.ROOT / "build" / "macos-site"
LOCK = facts.ROOT / "requirements.lock"
N_LARGEST = 15
_LICENCE_NAMES = ("licen", "copying", "notice", "copyright", "authors")
# Debian keeps every package's licence here. The library comes from the system the app is built on.
_OPENBLAS = "/usr/lib/*/openblas-pthread/libopenblas.so.0"
_OPENBLAS_LICENCE = Path("/usr/share/doc/libopenblas0-pthread/copyright")


class BuildError(Exception):
    """The app can't be built; the message says why and what to do."""


def main() -> int:
    """Build, and return the exit code."""
    started = time.monotonic()
    try:
        environment = {**os.environ, **prepare()}
        run_pyinstaller(environment)
        if sys.platform.startswith("linux"):
            add_desktop_files(facts.LINUX_FOLDER)
        print_sizes(facts.app_path())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Built {facts.app_path().relative_to(facts.ROOT)} in {time.monotonic() - started:.0f} s.")
    return 0


def prepare() -> dict[str, str]:
    """Make what the spec needs; returns the environment variables that tell it where things are."""
    shutil.rmtree(MADE, ignore_errors=True)
    collect_licences(LICENCES)
    if sys.platform == "darwin":
        icons.write_icns(MADE / facts.ICON)
        wheels = [sys.executable, str(facts.ROOT / "packaging" / "macos_wheels.py")]
        if subprocess.run(wheels, check=False).returncode:
            raise BuildError("The MLX wheels for the oldest macOS could not be fetched; what is said above says why.")
        return {"VELOXQUANT_MACOS_SITE": str(MACOS_SITE)}
    if not sys.platform.startswith("linux"):
        raise BuildError(f"The app can be built on macOS and on Linux, not on {sys.platform}.")
    return {"VELOXQUANT_OPENBLAS": str(find_openblas())}


def find_openblas() -> Path:
    """The OpenBLAS that goes into the app; its licence goes beside the others."""
    found = next(iter(sorted(Path("/").glob(_OPENBLAS.removeprefix("/")))), None)
    if found is None or not _OPENBLAS_LICENCE.is_file():
        raise BuildError(
            "OpenBLAS, which goes into the app, is not installed (sudo apt-get install libopenblas0-pthread). "
            "The app is built on Debian or Ubuntu."
        )
    shutil.copy(_OPENBLAS_LICENCE, LICENCES / "OpenBLAS.txt")
    return found


def collect_licences(folder: Path) -> None:
    """Copy the project's own licence and those of all packages that the app may contain, a folder for each."""
    folder.mkdir(parents=True)
    shutil.copy(facts.ROOT / "LICENSE", folder / "LICENSE")
    for line in read_lock(LOCK):
        if line.requirement.marker is not None and not line.requirement.marker.evaluate():
            continue  # for another system or Python
        try:
            found = distribution(line.requirement.name)
        except PackageNotFoundError:
            raise BuildError(f"The package {line.requirement} is not installed; run `make set-up`.") from None
        into = folder / f"{found.name}-{found.version}"
        into.mkdir()
        # Says where the package comes from; a few packages (Qt's binding) name their licence there and nowhere else.
        (into / "METADATA").write_text(found.read_text("METADATA") or "", encoding="utf-8")
        for path in _licence_files(found):
            shutil.copy(path, into / path.name)


def _licence_files(found: Distribution) -> list[Path]:
    paths = [Path(str(found.locate_file(file))) for file in found.files or () if ".dist-info" in str(file)]
    return [path for path in paths if path.name.lower().startswith(_LICENCE_NAMES) and path.is_file()]


def run_pyinstaller(environment: Mapping[str, str]) -> None:
    """Follow app.spec into dist/."""
    shutil.rmtree(facts.app_path(), ignore_errors=True)
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level=WARN", "--distpath", str(facts.DIST)]
    command += ["--workpath", str(facts.ROOT / "build" / "pyinstaller"), str(facts.ROOT / "packaging" / "app.spec")]
    if subprocess.run(command, env=dict(environment), check=False).returncode:
        raise BuildError("PyInstaller could not build the app; what it says above says why.")


def add_desktop_files(folder: Path) -> None:
    """Put the .desktop file, the icon, and what adds both to a person's desktop beside the app."""
    icons.write_png(folder / f"{facts.EXECUTABLE}.png", 512)
    (folder / f"{facts.EXECUTABLE}.desktop").write_text(facts.desktop_entry(), encoding="utf-8")
    script = folder / "add-to-desktop.sh"
    shutil.copy(facts.ROOT / "packaging" / script.name, script)
    script.chmod(0o755)


def print_sizes(root: Path) -> None:
    """Print the whole, and its largest parts.

    Raises:
        BuildError: it is larger than people were promised.
    """
    bundle = read_bundle(root)
    total = total_bytes(bundle)
    parts: dict[str, int] = {}
    for path in bundle.files:
        name = part_of(path.relative_to(root))
        parts[name] = parts.get(name, 0) + path.lstat().st_size
    print(f"{root.name}: {total / 1e6:.1f} MB. The largest parts:")
    for name, n_bytes in sorted(parts.items(), key=lambda part: -part[1])[:N_LARGEST]:
        print(f"{n_bytes / 1e6:8.1f} MB  {name}")
    if total > facts.MAX_BYTES:
        raise BuildError(f"{root} has {total / 1e6:.1f} MB; at most {facts.MAX_BYTES / 1e6:.0f} MB are allowed.")


def part_of(path: Path) -> str:
    """What a file is counted under: its package, or itself where it lies alone."""
    parts = [part for part in path.parts if part not in ("_internal", "Contents", "Frameworks", "Resources", "MacOS")]
    return parts[0] if len(parts) > 1 else path.name


if __name__ == "__main__":
    sys.exit(main())
