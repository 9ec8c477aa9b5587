"""The lock file's lines for another system than the one that reads them, and their wheels from the package index.

pip evaluates a requirement's markers ("; sys_platform == 'darwin'") for the system it runs on, even when it is asked
for wheels of another one. So the markers are evaluated here, for a Mac, and pip gets the lines that remain, without
markers, with their hashes and without their dependencies (the lock file names all of them).
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

# The Python that the .app is built with. The lock files allow any from 3.11; this one is newer, has wheels of every
# package, and is the one whose None can't be freed (see pyproject.toml about PySide6).
APP_PYTHON = "3.13"
_NO_WHEEL = re.compile(r"No matching distribution found for (\S+)")


class WheelError(RuntimeError):
    """Wheels could not be had; the message is a sentence."""


@dataclass(frozen=True)
class Locked:
    """One line of a lock file: a version, when it is wanted, and the hashes that its files may have."""

    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The package's normalised name."""
        return canonicalize_name(self.requirement.name)

    @property
    def pin(self) -> str:
        """`name==version`, without marker."""
        return f"{self.name}{self.requirement.specifier}"


def read_lock(path: Path) -> list[Locked]:
    """Every line of a lock file of uv or pip-tools.

    Raises:
        ValueError: a line pins no version or has no hash.
    """
    lines = []
    for line in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        text, *hashes = line.partition(" #")[0].split("--hash=")
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        requirement = Requirement(text.strip())
        if not hashes or not str(requirement.specifier).startswith("=="):
            raise ValueError(f"{path.name}: the line {text.strip()!r} has no version or no hash; run `make lock`.")
        lines.append(Locked(requirement, tuple(one.strip() for one in hashes)))
    return lines


def mac_environment(python: str = APP_PYTHON) -> dict[str, str]:
    """What markers see on a Mac with Apple silicon; `python` is major.minor."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": "arm64",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Darwin",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "darwin",
    }


def lines_for_mac(path: Path, python: str = APP_PYTHON) -> list[Locked]:
    """The lines of a lock file that a Mac with Apple silicon installs."""
    environment = mac_environment(python)
    return [
        line
        for line in read_lock(path)
        if line.requirement.marker is None or line.requirement.marker.evaluate(environment)
    ]


def platform_tag(macos: str) -> str:
    """The newest platform tag that macOS `macos` ("14.0") accepts; pip adds all the older ones by itself."""
    major, minor = [*macos.split("."), "0"][:2]
    return f"macosx_{major}_{minor}_arm64"


def download_wheels(lines: Sequence[Locked], folder: Path, macos: str, python: str = APP_PYTHON) -> None:
    """Download one wheel per line into `folder`, checked against the line's hashes.

    A wheel that is there already with one of these hashes is not asked for again, so a folder is for one `macos` and
    one `python`.

    Args:
        lines: What to download; nothing else is, no dependencies.
        folder: Made if it isn't there.
        macos: The oldest macOS that the wheels have to run on, such as "14.0".
        python: The Python they are for.

    Raises:
        WheelError: one has no such wheel (the message names it), or the index can't be reached.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted_lines = [line for line in lines if find_wheel(folder, line) is None]
    if not wanted_lines:
        return
    with tempfile.TemporaryDirectory() as name:
        wanted = Path(name) / "requirements.txt"
        pinned = [f"{line.pin} {' '.join(f'--hash={one}' for one in line.hashes)}\n" for line in wanted_lines]
        wanted.write_text("".join(pinned), encoding="utf-8")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]
        options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(folder)]
        options += ["--platform", platform_tag(macos), "--implementation", "cp", "--python-version", python]
        run = subprocess.run(
            [*command, *options, "--requirement", str(wanted)], capture_output=True, text=True, check=False
        )
    if run.returncode:
        missing = _NO_WHEEL.search(run.stderr)
        if missing:
            pin = missing[1].split("(")[0]
            raise WheelError(f"{pin} has no wheel for macOS {macos} on Apple silicon with Python {python}.")
        lines_of_error = [line for line in run.stderr.splitlines() if line.startswith("ERROR")] or run.stderr.split(
            "\n"
        )
        raise WheelError(f"pip could not download the wheels: {' '.join(lines_of_error)[-600:]}")


def wheels_refused(lines: Iterable[Locked], folder: Path, macos: str, python: str = APP_PYTHON) -> list[str]:
    """Download all wheels into `folder`; a sentence for each line that has none for `macos`."""
    every = list(lines)
    try:
        download_wheels(every, folder, macos, python)
    except WheelError:
        sentences = []
        for line in every:  # pip stops at the first; people want to know all
            try:
                download_wheels([line], folder, macos, python)
            except WheelError as error:
                sentences.append(str(error))
        return sentences
    return []


def find_wheel(folder: Path, line: Locked) -> Path | None:
    """The wheel of a line in `folder`, when it is there and has one of the line's hashes."""
    version = Version(str(line.requirement.specifier).removeprefix("=="))
    for path in sorted(folder.glob("*.whl")):
        name, wheel_version, _, _ = parse_wheel_filename(path.name)
        if name == line.name and wheel_version == version and f"sha256:{file_sha256(path)}" in line.hashes:
            return path
    return None


def wheel_of(folder: Path, line: Locked) -> Path:
    """`find_wheel` for a wheel that must be there.

    Raises:
        WheelError: it isn't.
    """
    path = find_wheel(folder, line)
    if path is None:
        raise WheelError(f"There is no wheel of {line.pin} with the lock file's hash in {folder}.")
    return path


def file_sha256(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
