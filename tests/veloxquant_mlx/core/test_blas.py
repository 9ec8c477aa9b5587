"""OpenBLAS before MLX: each state, in a process of its own because loading is for good."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from veloxquant_mlx.core import blas


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


SAPPHIRE_RAPIDS = {"sse3", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("core", "flags", "better"),
    [
        ("Prescott", SAPPHIRE_RAPIDS, "SkylakeX"),
        ("Prescott", {"sse3", "avx", "avx2", "fma"}, "Haswell"),
        ("Prescott", {"sse3"}, None),  # it really is an old one
        ("Haswell", SAPPHIRE_RAPIDS, None),  # chosen by OpenBLAS itself or by the person: not ours to change
        ("", SAPPHIRE_RAPIDS, None),
        ("armv8", set(), None),
    ],
)
def test_a_processor_newer_than_openblas_gets_the_kernels_it_can_run(
    core: str, flags: set[str], better: str | None
) -> None:
    """MLX answered ten times slower where OpenBLAS took a new processor for one of 2004."""
    assert blas._better_core(core, flags) == better


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="OpenBLAS is preloaded on Linux only")
def test_products_are_right_with_the_chosen_kernels_and_the_environment_stays_as_it_was() -> None:
    printed = run(
        "import os; from veloxquant_mlx.core.blas import preload_openblas, openblas_core\n"
        "preload_openblas()\n"
        "import mlx.core as mx, numpy as np\n"
        "rng, worst = np.random.default_rng(0), 0.0\n"
        "for m, k, n in ((1, 576, 1536), (3, 64, 700), (64, 576, 192), (129, 33, 65), (9, 2000, 64)):\n"
        "    a, b = rng.standard_normal((m, k)), rng.standard_normal((n, k))\n"
        "    c = np.array(mx.array(a.astype(np.float32)) @ mx.array(b.astype(np.float32)).T)\n"
        "    worst = max(worst, float(np.abs(c - a @ b.T).max()))\n"
        "print(worst, openblas_core() or '-', 'OPENBLAS_CORETYPE' in os.environ)"
    )
    worst, core, in_environment = printed.split()
    assert float(worst) < 1e-3
    assert core not in ("-", "Prescott") or "avx2" not in blas._processor_flags()
    assert in_environment == str("OPENBLAS_CORETYPE" in os.environ)
