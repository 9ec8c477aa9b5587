"""Makes MLX on Linux use OpenBLAS instead of the reference BLAS inside its wheel (standard library only)."""

from __future__ import annotations

import _ctypes
import ctypes
import glob
import os
import platform
import sys
from pathlib import Path
from typing import Literal

BlasState = Literal["loaded", "not needed", "missing", "too late"]

# Where distributions put it when no libopenblas.so.0 is on the loader's own path. Debian keeps one folder per threading
# model; pthread first, because that is the one the measurements below were made with.
_PATTERNS = (
    "/usr/lib/*/openblas-pthread/libopenblas.so.0",
    "/usr/lib/*/openblas-openmp/libopenblas.so.0",
    "/usr/lib/*/openblas-serial/libopenblas.so.0",
    "/usr/lib64/libopenblasp.so.0",
    "/usr/lib64/libopenblas.so.0",
)

_CORE = "OPENBLAS_CORETYPE"
# What OpenBLAS calls itself on an x86 processor it does not know: kernels of 2004, without AVX.
_UNKNOWN_CORES = ("Prescott", "Core2", "Nehalem")
# The best kernels that any processor with these instructions can run.
_CORES_BY_FLAGS = (
    ("SkylakeX", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma"}),
    ("Haswell", {"avx2", "fma"}),
)

_loaded: ctypes.CDLL | None = None


def preload_openblas() -> BlasState:
    """Load OpenBLAS so that MLX's matrix products find it; call this before the first `import mlx.core`.

    MLX's Linux wheel bundles the reference BLAS. With OpenBLAS loaded first and its symbols global, the loader binds
    MLX's `cblas_*` calls to it instead: a 512x576 @ 576x1536 product takes 6 ms instead of 494 ms on two x86 cores.
    Nothing breaks without it, everything is only slow. Never raises; calling it again is free.

    An OpenBLAS older than the processor may not know it and fall back to kernels without AVX (Debian 12's 0.3.21 on
    a Sapphire Rapids: 16 ms for the same product). Then it is loaded again and told which kernels to use, unless the
    environment variable OPENBLAS_CORETYPE has settled that already.

    Returns:
        "loaded"; "not needed" (macOS has Accelerate and Metal); "missing" (no OpenBLAS found: on Debian it is the
        package libopenblas0-pthread); "too late" (MLX was imported first, so its calls are already bound).
    """
    global _loaded
    if not sys.platform.startswith("linux"):
        return "not needed"
    if _loaded is not None:
        return "loaded"
    if "mlx.core" in sys.modules:
        return "too late"
    for name in _candidates():
        try:
            _loaded = _with_fitting_kernels(name)
        except OSError:
            continue
        return "loaded"
    return "missing"


def _candidates() -> list[str]:
    """Names to try, best first: in an app made by PyInstaller its own copy, which is there on every system."""
    bundle = getattr(sys, "_MEIPASS", None)
    own = [str(Path(bundle) / "libopenblas.so.0")] if bundle else []
    return [*own, "libopenblas.so.0", *(path for pattern in _PATTERNS for path in sorted(glob.glob(pattern)))]


def openblas_core() -> str:
    """Which processor's kernels the loaded OpenBLAS uses, in its own words; empty when none is loaded."""
    return _core_of(_loaded) if _loaded is not None else ""


def openblas_path() -> str:
    """What the loaded OpenBLAS was loaded from; empty when none is loaded."""
    return str(_loaded._name) if _loaded is not None else ""


def _with_fitting_kernels(name: str) -> ctypes.CDLL:
    library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    better = _better_core(_core_of(library), _processor_flags()) if _CORE not in os.environ else None
    if better is None:
        return library
    # The choice is made when the library is loaded, from the environment; nothing else may see the variable.
    _ctypes.dlclose(library._handle)
    os.environ[_CORE] = better
    try:
        return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    finally:
        del os.environ[_CORE]


def _better_core(core: str, flags: set[str]) -> str | None:
    """The kernels to ask for instead of `core`'s, or None where those are what the processor deserves."""
    if core not in _UNKNOWN_CORES:
        return None
    return next((name for name, needed in _CORES_BY_FLAGS if needed <= flags), None)


def _core_of(library: ctypes.CDLL) -> str:
    try:
        ask = library.openblas_get_corename
    except AttributeError:  # an OpenBLAS built without it
        return ""
    ask.restype = ctypes.c_char_p
    name = ask()
    return name.decode() if name else ""


def _processor_flags() -> set[str]:
    if platform.machine() != "x86_64":
        return set()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())
