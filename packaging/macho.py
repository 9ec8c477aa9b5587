"""Mach-O files of a bundle: what they run on, and whether everything they load is there.

Headers are read by macholib, so this works on every system. Which load commands there are:
https://github.com/apple-oss-distributions/xnu/blob/main/EXTERNAL_HEADERS/mach-o/loader.h
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from bundle_tree import Bundle, is_newer, version_text
from macho_symbols import SYSTEM, unknown_symbols
from macholib import mach_o  # type: ignore[import-untyped]
from macholib.MachO import MachO, MachOHeader  # type: ignore[import-untyped]

ARCHITECTURES = {0x0100000C: "arm64", 0x01000007: "x86_64", 12: "arm", 7: "i386"}
EXECUTABLE = mach_o.MH_EXECUTE
_THIN = (b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe")
_FAT = (b"\xca\xfe\xba\xbe", b"\xca\xfe\xba\xbf")
# Java's class files share a magic number with fat files. Their next four bytes are 45 or more.
_MOST_SLICES = 44
_MACOS = 1  # PLATFORM_MACOS of LC_BUILD_VERSION
_LAZY_LOAD_DYLIB = 0x20  # unknown to macholib by name
_LOADS = {
    mach_o.LC_LOAD_DYLIB,
    mach_o.LC_LOAD_WEAK_DYLIB,
    mach_o.LC_REEXPORT_DYLIB,
    mach_o.LC_LOAD_UPWARD_DYLIB,
    _LAZY_LOAD_DYLIB,
}


class DamagedMachOError(ValueError):
    """The file begins like a Mach-O file and can't be read as one."""


@dataclass(frozen=True)
class Library:
    """A library that a slice loads; dyld goes on without a `weak` one."""

    path: str
    weak: bool


@dataclass(frozen=True)
class Slice:
    """The part of a Mach-O file for one processor.

    Attributes:
        architecture: "arm64", "x86_64", or a number where it is neither.
        kind: MH_EXECUTE, MH_DYLIB, MH_BUNDLE ... of loader.h.
        minimum: The oldest macOS it runs on, such as (14, 0, 0); None where it names none.
        signed: Whether there is a signature; arm64 code without one is never run.
    """

    architecture: str
    kind: int
    minimum: tuple[int, int, int] | None
    libraries: tuple[Library, ...]
    rpaths: tuple[str, ...]
    signed: bool


def is_macho(path: Path) -> bool:
    """Whether the file begins as a Mach-O file, thin or fat."""
    with path.open("rb") as file:
        start = file.read(8)
    return start[:4] in _THIN or (
        start[:4] in _FAT and len(start) == 8 and 0 < struct.unpack(">4xI", start)[0] <= _MOST_SLICES
    )


def read_slices(path: Path) -> list[Slice]:
    """The slices of a Mach-O file.

    Raises:
        DamagedMachOError: the header is cut off or makes no sense.
    """
    try:
        headers = MachO(str(path), allow_unknown_load_commands=True).headers
        return [_slice(header) for header in headers]
    except (ValueError, struct.error, OverflowError, AttributeError, TypeError, KeyError) as error:
        # macholib meets damage with whatever its parsing happens to run into.
        raise DamagedMachOError(f"{type(error).__name__}: {error}") from error


def _slice(header: MachOHeader) -> Slice:
    minimum, libraries, rpaths, signed = None, [], [], False
    for load, command, data in header.commands:
        kind = int(load.cmd)
        if kind in _LOADS:
            libraries.append(Library(_text(data), kind == mach_o.LC_LOAD_WEAK_DYLIB))
        elif kind == mach_o.LC_RPATH:
            rpaths.append(_text(data))
        elif kind == mach_o.LC_VERSION_MIN_MACOSX:
            minimum = _version(int(command.version))
        elif kind == mach_o.LC_BUILD_VERSION and int(command.platform) == _MACOS:
            minimum = _version(int(command.minos))
        elif kind == mach_o.LC_CODE_SIGNATURE:
            signed = True
    cpu = int(header.header.cputype)
    return Slice(
        ARCHITECTURES.get(cpu, str(cpu)),
        int(header.header.filetype),
        minimum,
        tuple(libraries),
        tuple(rpaths),
        signed,
    )


def _text(data: bytes) -> str:
    """A path of a load command, which ends at its first zero byte."""
    return data.partition(b"\0")[0].decode(errors="surrogateescape")


def _version(number: int) -> tuple[int, int, int]:
    """Nibbles xxxx.yy.zz, as loader.h describes them."""
    return number >> 16, number >> 8 & 0xFF, number & 0xFF


def macho_faults(bundle: Bundle, executable: Path, oldest: tuple[int, ...]) -> tuple[list[str], list[str], int]:
    """What keeps code of the bundle from running on Apple silicon with macOS `oldest`.

    Returns the faults, the libraries that claim to need a newer macOS and don't, and the number of Mach-O files.

    Args:
        bundle: The .app.
        executable: The main executable, whose folder and rpaths every library may use.
        oldest: LSMinimumSystemVersion.
    """
    faults: list[str] = []
    notes: list[str] = []
    claims: dict[Path, tuple[int, ...]] = {}
    slices: dict[Path, list[Slice]] = {}
    for path in filter(is_macho, bundle.files):
        try:
            slices[path] = read_slices(path)
        except DamagedMachOError as error:
            faults.append(f"{bundle.name(path)} is a damaged Mach-O file ({error}).")
    main_slice = _arm64(slices.get(executable, []))
    if executable.is_file() and executable not in slices:
        faults.append(f"The executable {bundle.name(executable)} is no Mach-O file.")
    if main_slice and main_slice.kind != EXECUTABLE:
        faults.append(f"The executable {bundle.name(executable)} is a Mach-O file that can't be started (a library).")
    executable_rpaths = main_slice.rpaths if main_slice else ()
    for path, found in slices.items():
        arm64 = _arm64(found)
        if arm64 is None:
            names = " and ".join(one.architecture for one in found)
            faults.append(f"{bundle.name(path)} has no arm64 code, only {names}.")
            continue
        faults += _slice_faults(bundle.name(path), arm64)
        faults += _load_faults(bundle, path, arm64, executable, executable_rpaths)
        if arm64.minimum and is_newer(arm64.minimum, oldest):
            claims[path] = arm64.minimum
    if executable in claims:  # the system itself refuses to start this one
        faults.append(_needs(bundle.name(executable), claims.pop(executable), oldest) + ".")
    for path, claim in claims.items():
        sentence = _needs(bundle.name(path), claim, oldest)
        unknown = unknown_symbols(path, oldest)
        if unknown:
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            faults.append(f"{sentence}; it imports {', '.join(unknown[:3])}{more}, not known to be there.")
        else:
            notes.append(f"{sentence}; all it imports is there.")
    return faults, notes, len(slices)


def _needs(name: str, claim: tuple[int, ...], oldest: tuple[int, ...]) -> str:
    return f"{name} says it needs macOS {version_text(claim)}, and the bundle promises macOS {version_text(oldest)}"


def _arm64(slices: list[Slice]) -> Slice | None:
    return next((one for one in slices if one.architecture == "arm64"), None)


def _slice_faults(name: str, one: Slice) -> list[str]:
    faults = []
    if one.minimum is None:
        faults.append(f"{name} doesn't say which macOS it needs.")
    if not one.signed:
        faults.append(f"{name} has no code signature, so macOS won't run its arm64 code; sign it, ad hoc at least.")
    return faults


def _load_faults(
    bundle: Bundle, path: Path, one: Slice, executable: Path, executable_rpaths: tuple[str, ...]
) -> list[str]:
    """Libraries that are not where dyld looks for them, and absolute paths outside of the system.

    dyld follows links before it reads @loader_path (lld's test of re-exported libraries behind links says so), so it
    is enough to look from where the file really is. Besides its own, a library may use the executable's rpaths.
    """
    faults = []
    name = bundle.name(path)
    folders = {"@loader_path": path.parent, "@executable_path": executable.parent}
    rpaths = []
    for rpath in one.rpaths:
        if os.path.isabs(rpath):
            if not f"{rpath}/".startswith(SYSTEM):
                faults.append(f"{name} looks for libraries in {rpath}, outside of the bundle and the system.")
        else:
            rpaths.append(_expand(rpath, folders))
    rpaths += [_expand(rpath, {**folders, "@loader_path": executable.parent}) for rpath in executable_rpaths]
    for library in one.libraries:
        wanted = library.path
        if os.path.isabs(wanted):
            if not wanted.startswith(SYSTEM):
                faults.append(f"{name} loads {wanted}, which is neither in the bundle nor the system's.")
            continue
        if wanted.startswith("@rpath/"):
            places = [Path(rpath, wanted.removeprefix("@rpath/")) for rpath in rpaths]
        else:
            places = [_expand(wanted, folders)]
        if not any(place.is_file() and bundle.holds(place) for place in places) and not library.weak:
            faults.append(f"{name} loads {wanted}, which is not in the bundle where dyld looks for it.")
    return faults


def _expand(text: str, folders: dict[str, Path]) -> Path:
    """A path of a load command; one without @ is relative to the working folder, where nothing of ours ever is."""
    start, _, rest = text.partition("/")
    return folders[start] / rest if start in folders else Path("/nonexistent", text)
