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
from pathlib import Path

import bundle_facts as facts
import icons
import licences
from bundle_tree import read_bundle, total_bytes

MADE = facts.ROOT / "build" / "bundle"
LICENCES = MADE / "licences"
MACOS_SITE = facts.ROOT / "build" / "macos-site"
N_LARGEST = 15
_OPENBLAS = "usr/lib/*/openblas-pthread/libopenblas.so.0"  # where Debian and Ubuntu have it
# What PyInstaller puts the app together with on Linux, and what tells which libraries a library needs.
_TOOLS = ("objcopy", "objdump", "ldd")


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
            licences.add_system_libraries(facts.LINUX_FOLDER / "_internal")
        print_sizes(facts.app_path())
    except (BuildError, licences.LicenceError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Built {facts.app_path().relative_to(facts.ROOT)} in {time.monotonic() - started:.0f} s.")
    return 0


def prepare() -> dict[str, str]:
    """Make what the spec needs; returns the environment variables that tell it where things are."""
    shutil.rmtree(MADE, ignore_errors=True)
    licences.collect(LICENCES)
    if sys.platform == "darwin":
        icons.write_icns(MADE / facts.ICON)
        wheels = [sys.executable, str(facts.ROOT / "packaging" / "macos_wheels.py")]
        if subprocess.run(wheels, check=False).returncode:
            raise BuildError("The MLX wheels for the oldest macOS could not be fetched; what is said above says why.")
        return {"VELOXQUANT_MACOS_SITE": str(MACOS_SITE)}
    if not sys.platform.startswith("linux"):
        raise BuildError(f"The app can be built on macOS and on Linux, not on {sys.platform}.")
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise BuildError(f"Programs are missing: {', '.join(missing)} (sudo apt-get install binutils libc-bin).")
    return {"VELOXQUANT_OPENBLAS": str(find_openblas())}


def find_openblas() -> Path:
    """The OpenBLAS that goes into the app."""
    found = next(iter(sorted(Path("/").glob(_OPENBLAS))), None)
    if found is None:
        raise BuildError(
            "OpenBLAS, which goes into the app, is not installed (sudo apt-get install libopenblas0-pthread). "
            "The app is built on Debian or Ubuntu."
        )
    return found


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
