"""Which of the system's symbols a Mach-O file can't do without.

The version that a library says it needs (minos) is a claim of whoever built it, and dyld doesn't hold libraries to it:
what it refuses is a symbol that the system doesn't have. PySide6's own libraries, for one, say 15.0 in wheels tagged
for macOS 13. So a library with too new a claim is measured by its symbols.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path

from macholib import mach_o  # type: ignore[import-untyped]
from macholib.MachO import MachO  # type: ignore[import-untyped]

SYSTEM = ("/usr/lib/", "/System/")
_LOADS = (
    mach_o.LC_LOAD_DYLIB,
    mach_o.LC_LOAD_WEAK_DYLIB,
    mach_o.LC_REEXPORT_DYLIB,
    mach_o.LC_LOAD_UPWARD_DYLIB,
    0x20,  # LC_LAZY_LOAD_DYLIB
)
_N_STAB, _N_TYPE, _N_EXT, _N_WEAK_REF = 0xE0, 0x0E, 0x01, 0x40  # mach-o/nlist.h
_CPU_ARM64 = 0x0100000C

_KNOWN = Path(__file__).with_name("macos14_symbols.txt")
_KNOWN_MACOS = (14, 0)


def unknown_symbols(path: Path, oldest: tuple[int, ...]) -> list[str]:
    """What the arm64 slice imports from the system and isn't known to be there in macOS `oldest`.

    The list of what is known holds for macOS 14 and newer; for an older one, nothing is known.
    """
    known = set() if oldest < _KNOWN_MACOS[: len(oldest)] else set(_known_symbols())
    return sorted(system_imports(path) - known)


@cache
def _known_symbols() -> frozenset[str]:
    lines = _KNOWN.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def system_imports(path: Path) -> set[str]:
    """The names of the system's symbols that the arm64 slice must have to be loaded (those it only might use left out).

    Raises:
        ValueError, struct.error: the file's tables can't be read.
    """
    symbols: set[str] = set()
    for header in MachO(str(path), allow_unknown_load_commands=True).headers:
        if int(header.header.cputype) != _CPU_ARM64:
            continue
        libraries = []
        table = None
        for load, command, data in header.commands:
            if int(load.cmd) in _LOADS:
                libraries.append(data.partition(b"\0")[0].decode(errors="surrogateescape"))
            elif load.cmd == mach_o.LC_SYMTAB:
                table = command
        if table is None:
            continue
        with path.open("rb") as file:
            file.seek(header.offset + int(table.symoff))
            entries = file.read(16 * int(table.nsyms))
            file.seek(header.offset + int(table.stroff))
            names = file.read(int(table.strsize))
        for start, kind, _, description, _ in struct.iter_unpack("<IBBHQ", entries):
            # An undefined name from outside: N_UNDF is 0.
            if kind & _N_STAB or kind & _N_TYPE or not kind & _N_EXT or description & _N_WEAK_REF:
                continue
            library = description >> 8  # counted from 1; 0 and the highest numbers have other meanings
            if 0 < library <= len(libraries) and libraries[library - 1].startswith(SYSTEM):
                symbols.add(names[start : names.index(b"\0", start)].decode(errors="surrogateescape"))
    return symbols
