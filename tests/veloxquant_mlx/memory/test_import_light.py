"""The pool and PooledKVCache need neither MLX nor NumPy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"mlx", "mlx_lm", "numpy"}
LIGHT = [
    "veloxquant_mlx.memory",
    "veloxquant_mlx.memory.block_pool",
    "veloxquant_mlx.memory.pool_size",
    "veloxquant_mlx.memory.pooled_cache",
    "veloxquant_mlx.memory.pooled_side",
    "veloxquant_mlx.core.abstractions",
]


@pytest.mark.parametrize("module", LIGHT)
def test_importing_it_loads_neither_mlx_nor_numpy(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{m.split('.')[0] for m in sys.modules}} & {HEAVY}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_mlx_part_comes_when_it_is_asked_for() -> None:
    import veloxquant_mlx.memory as memory

    assert memory.PoolBackedKVCache.__module__ == "veloxquant_mlx.memory.pool_backed_cache"
    assert callable(memory.build_pooled_caches)
    with pytest.raises(AttributeError, match="no attribute 'NoSuchCache'"):
        _ = memory.NoSuchCache
