"""Paths of the machine that built a bundle, searched for in all of its bytes, compressed ones included.

Looked into are zip files (base_library.zip), PyInstaller's archive at the end of the executable, and the PYZ in it
with the app's modules. A module's file name (co_filename) stands in its code as it is, so the bytes are searched and
code of any Python's version can be checked. Paths of other people's machines, compiled into their wheels, are told
apart: they betray nothing of ours and can't be changed.
"""

from __future__ import annotations

import io
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bundle_tree import Bundle
from PyInstaller.archive.readers import ArchiveReadError, CArchiveReader  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
# Homes that many machines share: others' wheels are built below them too, so they say nothing about whose a path is.
_SHARED_HOMES = {Path("/"), Path("/root"), Path("/home/runner"), Path("/Users/runner"), Path("/github/home")}
_OTHERS = re.compile(
    rb"/(?:(?:Users|home)/[\w.+@-]+|root)/[\w.+@-]+[\w.+@/-]*|/private/var/folders/[\w.+@/-]+"
    rb"|/opt/homebrew/[\w.+@/-]+"
)
_COOKIE = b"MEI\014\013\012\013\016"  # PyInstaller's mark at the end of its archive
_PYZ = "z"


@dataclass(frozen=True)
class Found:
    """A path in a file; `where` names the file, and behind "!" the entry of an archive in it."""

    where: str
    path: str


def build_roots(more: Iterable[Path] = ()) -> list[Path]:
    """The folders whose paths must not be in a bundle built here.

    These are the repository, the virtual environment, the home folder unless it is one that others' machines have too,
    a CI run's workspace and, with a home of one's own, the temporary folders. (Hosted machines are copies of one image,
    and so are their temporary folders' names; wheels built on others of them carry these.)
    """
    roots = {ROOT, *(Path(path).absolute() for path in more)}
    if sys.prefix != sys.base_prefix:
        roots.add(Path(sys.prefix))
    if os.environ.get("GITHUB_WORKSPACE"):
        roots.add(Path(os.environ["GITHUB_WORKSPACE"]))
    temporary = os.environ.get("TMPDIR", "")
    if Path.home() not in _SHARED_HOMES and temporary.startswith(("/var/folders/", "/private/var/folders/")):
        roots.add(Path(temporary))
    roots.add(Path.home())
    roots |= {root.resolve() for root in roots}
    return sorted(root for root in roots - _SHARED_HOMES if len(root.parts) > 1)


def find_build_paths(bundle: Bundle, roots: Iterable[Path]) -> tuple[list[Found], list[Found]]:
    """Paths below `roots` in the bundle's files and links, and paths of others' machines; one of each per file.

    Raises:
        ArchiveReadError, zipfile.BadZipFile, zlib.error: a file that looks like an archive is none.
    """
    ours = re.compile(b"|".join(b"(?:" + re.escape(os.fsencode(root)) + rb"(?![\w-])[\w.+@/-]*)" for root in roots))
    mine, others = [], []
    for link in bundle.links:
        target = os.fsencode(os.readlink(link))
        if match := ours.search(target):
            mine.append(Found(bundle.name(link), _readable(match)))
    for path in bundle.files:
        for entry, data in contents(path):
            where = bundle.name(path) + entry
            if match := ours.search(data):
                mine.append(Found(where, _readable(match)))
            elif match := _OTHERS.search(data):
                others.append(Found(where, _readable(match)))
    return mine, others


def build_path_faults(bundle: Bundle, roots: Iterable[Path]) -> tuple[list[str], list[Found]]:
    """A sentence for each file that names a folder of the machine it was built on, and others' paths."""
    try:
        mine, others = find_build_paths(bundle, roots)
    except (ArchiveReadError, zipfile.BadZipFile, zlib.error) as error:
        return [f"An archive in the bundle can't be read: {error}."], []
    return [f"{found.where} names the path {found.path} of the machine it was built on." for found in mine], others


def contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """The file's bytes under the name "", and what archives in it hold, uncompressed, under "!name"."""
    data = path.read_bytes()
    yield "", data
    if data[:4] == b"PK\x03\x04":
        yield from _zipped(data)
    elif _COOKIE in data:
        archive = CArchiveReader(str(path))
        for name, (*_, kind) in archive.toc.items():
            yield f"!{name}", archive.extract(name)
            if kind == _PYZ:
                yield from _modules(archive, name)


def _zipped(data: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            yield f"!{entry.filename}", archive.read(entry)


def _modules(archive: CArchiveReader, name: str) -> Iterator[tuple[str, bytes]]:
    """The code of every module of a PYZ, as it is marshalled."""
    start = archive._start_offset + archive.toc[name][0]
    # open_embedded_archive() refuses the code of another Python than the one that reads.
    from PyInstaller.loader.pyimod01_archive import ZlibArchiveReader  # type: ignore[import-untyped]

    modules = ZlibArchiveReader(archive._filename, start, check_pymagic=False)
    for module in modules.toc:
        code = modules.extract(module, raw=True)
        if code is not None:  # a package without a file has no code
            yield f"!{name}!{module}", code


def _readable(match: re.Match[bytes]) -> str:
    return match[0].decode(errors="replace")[:200]
