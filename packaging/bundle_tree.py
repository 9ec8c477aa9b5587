"""A bundle on the disk: its files and links, and the words that faults are written with."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Bundle:
    """An .app or any other folder, read once.

    Attributes:
        root: The folder itself.
        files: Every regular file below it, sorted.
        links: Every symbolic link below it, to files and to folders, sorted.
        others: What is neither file, folder nor link.
    """

    root: Path
    files: tuple[Path, ...] = field(repr=False)
    links: tuple[Path, ...] = field(repr=False)
    others: tuple[Path, ...] = field(repr=False)

    def name(self, path: Path) -> str:
        """`path` as it reads in a sentence: from the bundle's root."""
        return path.relative_to(self.root).as_posix()

    def holds(self, path: Path) -> bool:
        """Whether `path`, every link on its way followed, lies inside the bundle."""
        # os.path.realpath() also answers for a link that points to itself.
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.root))

    def named(self, name: str) -> list[Path]:
        """Every file and every link called `name`."""
        return [path for path in (*self.files, *self.links) if path.name == name]


def read_bundle(root: Path) -> Bundle:
    """Walk `root` without following links.

    Raises:
        OSError: `root` or a folder in it can't be read.
    """
    files, links, others = [], [], []
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.is_symlink():
                    links.append(path)
                elif entry.is_dir():
                    folders.append(path)
                elif entry.is_file():
                    files.append(path)
                else:
                    others.append(path)
    return Bundle(root, tuple(sorted(files)), tuple(sorted(links)), tuple(sorted(others)))


def total_bytes(bundle: Bundle) -> int:
    """The bytes of all files; hard links to one file count once."""
    sizes = {}
    for path in bundle.files:
        status = path.stat()
        sizes[(status.st_dev, status.st_ino)] = status.st_size
    return sum(sizes.values())


def link_faults(bundle: Bundle) -> list[str]:
    """Links that lead nowhere, out of the bundle, or to an absolute path (which no longer fits once it is moved)."""
    faults = []
    for link in bundle.links:
        target = os.readlink(link)
        if os.path.isabs(target):
            faults.append(f"The link {bundle.name(link)} points to the absolute path {target}; make it relative.")
        elif not bundle.holds(link):
            faults.append(f"The link {bundle.name(link)} leads out of the bundle, to {target}.")
        elif not link.exists():
            faults.append(f"The link {bundle.name(link)} dangles: there is no {target}.")
    return faults


def mode_faults(bundle: Bundle) -> list[str]:
    """What everybody may write to, what runs as somebody else, and what is no file, folder or link at all."""
    faults = [f"{bundle.name(path)} is neither a file, a folder nor a link." for path in bundle.others]
    folders = sorted({parent for path in bundle.files for parent in path.parents if parent.is_relative_to(bundle.root)})
    for path in (*folders, *bundle.files):
        mode = path.stat().st_mode
        name = bundle.name(path)
        if mode & stat.S_IWOTH:
            faults.append(f"{name} may be written to by everybody (mode {stat.S_IMODE(mode):o}).")
        if path not in folders and mode & (stat.S_ISUID | stat.S_ISGID):
            faults.append(f"{name} runs as another user (mode {stat.S_IMODE(mode):o}).")
    return faults


def version_tuple(text: str) -> tuple[int, ...]:
    """'14.0' as (14, 0).

    Raises:
        ValueError: `text` is no version of numbers and dots.
    """
    return tuple(int(part) for part in text.split("."))


def version_text(version: tuple[int, ...]) -> str:
    """(14, 0, 0) as '14.0'; two numbers at least."""
    numbers = list(version)
    while len(numbers) > 2 and numbers[-1] == 0:
        numbers.pop()
    return ".".join(map(str, numbers))


def is_newer(version: tuple[int, ...], limit: tuple[int, ...]) -> bool:
    """Whether `version` comes after `limit`; 14 and 14.0.0 are the same."""
    length = max(len(version), len(limit))
    return version + (0,) * (length - len(version)) > limit + (0,) * (length - len(limit))
