"""Freed memory stays with the process for the next arrays, and goes back when it is told to."""

from __future__ import annotations

import subprocess
import sys

from veloxquant_mlx.core.cpu import prepare_cpu
from veloxquant_mlx.core.heap import KEPT_FREE

# Page faults of ten buffers of 4 MB at a time, twenty times over; and memory held after 400 MB were freed.
PROGRAM = """
import ctypes, resource, sys
from veloxquant_mlx.core.heap import give_back, keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else False
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def use(n, size=4 << 20):
    buffers = [libc.malloc(size) for _ in range(n)]
    for buffer in buffers:
        libc.memset(buffer, 1, size)
    for buffer in buffers:
        libc.free(buffer)
use(10)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    use(10)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
use(100)
give_back()
pages = int(open("/proc/self/statm").read().split()[1]) if sys.platform.startswith("linux") else 0
print(int(kept), faults, pages * resource.getpagesize())
"""


def run(how: str) -> tuple[bool, int, int]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    kept, faults, resident = map(int, done.stdout.split())
    return bool(kept), faults, resident


def test_buffers_made_one_after_the_other_use_the_same_memory() -> None:
    kept, faults, resident = run("keep")
    assert kept == sys.platform.startswith("linux")
    if kept:
        _, faults_without, _ = run("leave")
        assert faults < faults_without / 10
        assert resident < 2 * KEPT_FREE, "400 MB were freed and should have gone back"


def test_preparing_twice_is_free_and_says_the_same() -> None:
    assert prepare_cpu() == prepare_cpu()
