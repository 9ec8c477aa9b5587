"""OpenBLAS before MLX: each state, in a process of its own because loading is for good."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="OpenBLAS is for Linux only")
def test_it_loads_once_and_stays_loaded() -> None:
    program = (
        "from veloxquant_mlx.core.blas import preload_openblas as p\nfirst = p()\nimport mlx.core\nprint(first, p())"
    )
    assert run(program) == "loaded loaded"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="OpenBLAS is for Linux only")
def test_after_mlx_it_is_too_late() -> None:
    assert run("import mlx.core; from veloxquant_mlx.core.blas import preload_openblas as p; print(p())") == "too late"


def test_a_machine_without_it_is_only_slow() -> None:
    program = (
        "import ctypes, sys\n"
        "from veloxquant_mlx.core import blas\n"
        "sys.platform = 'linux'\n"
        "def none(*a, **k): raise OSError('no such file')\n"
        "ctypes.CDLL = none\n"
        "print(blas.preload_openblas())"
    )
    assert run(program) == "missing"


def test_macos_needs_none() -> None:
    program = (
        "import sys; from veloxquant_mlx.core.blas import preload_openblas as p; sys.platform = 'darwin'; print(p())"
    )
    assert run(program) == "not needed"
