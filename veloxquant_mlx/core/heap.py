"""Makes short-lived arrays cheap on Linux, where MLX takes every array from malloc (standard library only)."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

# mallopt's parameters, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

MMAP_THRESHOLD = 32 << 20  # the most glibc allows
KEPT_FREE = 128 << 20


def keep_freed_memory() -> bool:
    """Let malloc keep up to 128 MB of freed memory for the next arrays, instead of giving it back at once.

    MLX on CPU asks malloc for every array and frees it after its last use. By default glibc maps large ones anew each
    time, and the kernel then clears them page by page: making float32 of 786,000 bytes takes 1.03 ms, of which 0.89 ms
    are page faults (two x86 cores, in a virtual machine). `give_back` returns what is free.

    Returns:
        Whether this C library could be told so (glibc only).
    """
    libc = _glibc()
    if libc is None:
        return False
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD) and libc.mallopt(_M_TRIM_THRESHOLD, KEPT_FREE))


def give_back() -> None:
    """Return freed memory to the system."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
