"""Compiled Metal kernels: what an mlx.metallib was built for, and whether it sits where MLX looks for it.

Apple doesn't document the format. The layout below was found by others (https://github.com/YuAo/MetalLibraryArchive
and the naga wiki) and agrees with the three builds of mlx-metal 0.32.4: the wheel for macOS 14 says 14.0 and Metal
3.1, the one for 15 says 15.0 and 3.2, the one for 26 says 26.2 and 4.0.

    0   4 bytes   "MTLB"
    11  u8        the system it is for: 0x81 is macOS
    12  2 x u16   that system's version, major and minor
    16  u64       the file's size
    24  2 x u64   offset and size of the list of functions: u32 count, then per function a u32 size (itself included)
                  and tags (4 letters, u16 size, content); the tag VERS has 4 x u16: AIR version, Metal version
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from bundle_tree import Bundle, is_newer, version_text

LIBRARY = "libmlx.dylib"
METALLIB = "mlx.metallib"
_HEADER = struct.Struct("<4s7xB2HQ2Q")
_MACOS = 0x81
# The newest Metal that each macOS compiles and loads; https://developer.apple.com/documentation/metal/mtllanguageversion
_METAL_OF_MACOS = {13: (3, 0), 14: (3, 1), 15: (3, 2), 26: (4, 0)}


class DamagedMetallibError(ValueError):
    """The file is no whole Metal library for macOS."""


@dataclass(frozen=True)
class Metallib:
    """What a Metal library was built for: the oldest macOS, the newest Metal of its functions, their number."""

    macos: tuple[int, int]
    language: tuple[int, int]
    functions: int


def read_metallib(path: Path) -> Metallib:
    """Read the header and the list of functions.

    Raises:
        DamagedMetallibError: with a sentence's end that says what is wrong.
    """
    size = path.stat().st_size
    if size < _HEADER.size:
        raise DamagedMetallibError(f"has {size:,} bytes, too few for a Metal library")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        magic, system, major, minor, said_size, start, length = _HEADER.unpack_from(data, 0)
        if magic != b"MTLB":
            raise DamagedMetallibError("is no Metal library")
        if system != _MACOS:
            raise DamagedMetallibError("is a Metal library for another system than macOS")
        if said_size != size:
            raise DamagedMetallibError(f"is damaged: it has {size:,} bytes instead of {said_size:,}")
        try:
            languages = _languages(data[start : start + length + 4])
        except (struct.error, IndexError, ValueError) as error:
            raise DamagedMetallibError(f"is damaged: its list of functions can't be read ({error})") from error
    if not languages:
        raise DamagedMetallibError("has no functions")
    return Metallib((major, minor), max(languages), len(languages))


def _languages(listing: bytes) -> list[tuple[int, int]]:
    """The Metal version of every function."""
    (count,) = struct.unpack_from("<I", listing)
    languages, place = [], 4
    for _ in range(count):
        (size,) = struct.unpack_from("<I", listing, place)
        if size < 8:
            raise ValueError(f"a function of {size} bytes")
        languages.append(_language(listing[place + 4 : place + size]))
        place += size
    return languages


def _language(tags: bytes) -> tuple[int, int]:
    place = 0
    while tags[place : place + 4] not in (b"ENDT", b""):
        name, size = struct.unpack_from("<4sH", tags, place)
        if name == b"VERS":
            major, minor = struct.unpack_from("<2H", tags, place + 6 + 4)
            return int(major), int(minor)
        place += 6 + size
    raise ValueError("a function without a version")


def newest_metal(macos: tuple[int, ...]) -> tuple[int, int]:
    """The newest Metal language of a macOS; of one that is not listed, that of the last listed before it."""
    return _METAL_OF_MACOS[max(major for major in _METAL_OF_MACOS if major <= max(macos[0], min(_METAL_OF_MACOS)))]


def too_new(kernels: Metallib, oldest: tuple[int, ...]) -> str | None:
    """Why macOS `oldest` can't load the kernels, as the end of a sentence; None where it can."""
    if not is_newer(kernels.macos, oldest) and kernels.language <= newest_metal(oldest):
        return None
    return (
        f"is built for macOS {version_text(kernels.macos)} with Metal {version_text(kernels.language)}, and macOS "
        f"{version_text(oldest)} loads Metal {version_text(newest_metal(oldest))} at most; take the mlx-metal wheel "
        f"for macOS {version_text(oldest)}"
    )


def metallib_faults(bundle: Bundle, oldest: tuple[int, ...]) -> list[str]:
    """Copies of libmlx.dylib that MLX would find no kernels beside, and kernels that are damaged, too new or differ.

    MLX looks beside the path that dladdr gives for its library, which may be a link's; so both the link and what it
    points to need the file beside them.
    """
    libraries = bundle.named(LIBRARY)
    if not libraries:
        return [f"The bundle has no {LIBRARY}, so no model can run."]
    faults = []
    # A file may be reached by several of the names below; a missing one is told once per folder.
    folders = {library.parent: library for library in libraries}
    for library in libraries:
        if library.exists() and bundle.holds(library):
            folders.setdefault(bundle.root / library.resolve().relative_to(bundle.root.resolve()).parent, library)
    for folder, library in sorted(folders.items()):
        if not (folder / METALLIB).is_file():
            faults.append(
                f"There is no {METALLIB} beside {bundle.name(folder / library.name)}, where MLX looks for its kernels."
            )
    copies = sorted({(folder / METALLIB).resolve() for folder in folders if (folder / METALLIB).is_file()})
    contents = set()
    for copy in copies:
        name = bundle.name(bundle.root / copy.relative_to(bundle.root.resolve())) if bundle.holds(copy) else str(copy)
        try:
            reason = too_new(read_metallib(copy), oldest)
        except DamagedMetallibError as error:
            reason = str(error)
        if reason:
            faults.append(f"{name} {reason}.")
        with copy.open("rb") as file:
            contents.add(hashlib.file_digest(file, "sha256").digest())
    if len(contents) > 1:
        faults.append(f"The bundle has {len(contents)} different files {METALLIB}; all must be the same.")
    return faults
