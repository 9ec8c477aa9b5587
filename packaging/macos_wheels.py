"""Fetch the MLX that a bundle ships: `python packaging/macos_wheels.py`, on any system.

mlx-metal comes as a wheel per macOS version, and pip on a newer macOS takes the newest, whose kernels older systems
refuse ("language version 4.0 not supported"). So the wheels of mlx and mlx-metal for the oldest macOS the app runs on
are downloaded here, at the lock file's versions and hashes, into build/macos-wheels, and unpacked together into
build/macos-site, which the build puts first on its path.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import bundle_facts
from bundle_tree import is_newer, version_text, version_tuple
from lock_file import WheelError, download_wheels, file_sha256, lines_for_mac, wheel_of
from macho import DamagedMachOError, read_slices
from metallib import LIBRARY, METALLIB, DamagedMetallibError, read_metallib, too_new

LOCK = bundle_facts.ROOT / "requirements.lock"
WHEELS = bundle_facts.ROOT / "build" / "macos-wheels"
SITE = bundle_facts.ROOT / "build" / "macos-site"
PACKAGES = ("mlx", "mlx-metal")
_STAMP = "wheels.json"  # beside the packages: which wheels were unpacked, by hash


def main(arguments: list[str] | None = None) -> int:
    """Download, unpack, check; returns the exit code."""
    parser = argparse.ArgumentParser(description="Fetch the MLX that a macOS bundle ships.")
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}", metavar="3.13")
    parser.add_argument("--macos", default=bundle_facts.MIN_MACOS, help="the oldest macOS it has to run on")
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="where wheels are downloaded to and looked for")
    parser.add_argument("--site", type=Path, default=SITE, help="where they are unpacked")
    options = parser.parse_args(arguments)
    try:
        summary = fetch_mlx(options.wheels, options.site, options.macos, options.python)
    except WheelError as error:
        print(error, file=sys.stderr)
        return 1
    print(summary)
    return 0


def fetch_mlx(wheels: Path, site: Path, macos: str, python: str, lock: Path = LOCK) -> str:
    """Put mlx and mlx-metal for macOS `macos` and Python `python` into `site`; returns a line that says what is there.

    Wheels already in `wheels` are used again when their hash is the lock file's; `site` is left alone when it holds
    just these wheels, and otherwise replaced in one step.

    Raises:
        WheelError: there is no such wheel, it can't be downloaded, or what is in it is too new or damaged.
    """
    lines = {line.name: line for line in lines_for_mac(lock, python)}
    missing = [name for name in PACKAGES if name not in lines]
    if missing:
        raise WheelError(f"{lock.name} doesn't pin {' and '.join(missing)} for macOS; run `make lock`.")
    wanted = [lines[name] for name in PACKAGES]
    folder = wheels / f"{macos}-py{python}"
    download_wheels(wanted, folder, macos, python)
    chosen = [wheel_of(folder, line) for line in wanted]
    stamp = {path.name: file_sha256(path) for path in chosen}
    if not _holds(site, stamp):
        _unpack(chosen, site, stamp, macos)
    kernels = read_metallib(site / "mlx" / "lib" / METALLIB)
    return (
        f"{site}: {lines['mlx'].pin} for Python {python}, kernels for macOS {version_text(kernels.macos)} and Metal "
        f"{version_text(kernels.language)} ({kernels.functions:,} functions)."
    )


def _holds(site: Path, stamp: dict[str, str]) -> bool:
    try:
        return bool(json.loads((site / _STAMP).read_text(encoding="utf-8")) == stamp)
    except (FileNotFoundError, ValueError):
        return False


def _unpack(wheels: list[Path], site: Path, stamp: dict[str, str], macos: str) -> None:
    """Unpack all wheels into one tree beside `site`, check it, and only then put it in place of `site`."""
    site.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".macos-site-", dir=site.parent) as name:
        work = Path(name) / "site"
        for wheel in wheels:
            try:
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(work)
            except (zipfile.BadZipFile, OSError) as error:
                raise WheelError(f"The wheel {wheel} can't be unpacked: {error}.") from error
        check_site(work, macos)
        (work / _STAMP).write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")
        if site.exists():
            shutil.rmtree(site)
        work.rename(site)


def check_site(site: Path, macos: str) -> None:
    """Whether unpacked MLX runs on macOS `macos`: its kernels, and the code that loads them.

    Raises:
        WheelError: naming the file that is missing, damaged or too new.
    """
    oldest = version_tuple(macos)
    folder = site / "mlx" / "lib"
    try:
        reason = too_new(read_metallib(folder / METALLIB), oldest)
    except FileNotFoundError:
        reason = "is missing from the wheels"
    except DamagedMetallibError as error:
        reason = str(error)
    if reason:
        raise WheelError(f"mlx/lib/{METALLIB} {reason}.")
    code = [folder / LIBRARY, *sorted((site / "mlx").glob("core.*.so"))]
    if len(code) != 2:
        raise WheelError("The wheel of mlx has no mlx/core.*.so for this Python, or several.")
    for path in code:
        name = path.relative_to(site)
        try:
            slices = read_slices(path)
        except (FileNotFoundError, DamagedMachOError) as error:
            raise WheelError(f"{name} is missing or damaged ({error}).") from error
        for one in slices:
            if one.architecture != "arm64" or one.minimum is None or is_newer(one.minimum, oldest):
                needed = version_text(one.minimum) if one.minimum else "unknown"
                raise WheelError(f"{name} is for {one.architecture} and macOS {needed}, not for macOS {macos}.")


if __name__ == "__main__":
    sys.exit(main())
