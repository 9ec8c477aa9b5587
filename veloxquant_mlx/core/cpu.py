"""What a program should do once, before it imports MLX, to be fast on a CPU (standard library only)."""

from __future__ import annotations

from veloxquant_mlx.core.blas import BlasState, preload_openblas
from veloxquant_mlx.core.heap import keep_freed_memory


def prepare_cpu() -> BlasState:
    """Load OpenBLAS for MLX and let malloc keep freed memory. On macOS neither is needed, and nothing happens.

    Returns:
        What `preload_openblas` says. Calling it again is free.
    """
    keep_freed_memory()
    return preload_openblas()
