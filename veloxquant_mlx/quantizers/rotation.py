"""Random rotations: they spread every vector's energy evenly, so that one scalar quantizer fits all coordinates."""

from __future__ import annotations

import threading
from functools import lru_cache

import mlx.core as mx
import numpy as np
import numpy.typing as npt

# MLX streams belong to threads, so each thread keeps its own arrays.
_arrays = threading.local()


@lru_cache(maxsize=32)
def _rotation(d: int, d_out: int, seed: int) -> npt.NDArray[np.float32]:
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((d_out, d_out)))
    q *= np.sign(np.diag(r))  # makes the distribution uniform over rotations (Mezzadri, arXiv math-ph/0609050)
    return np.ascontiguousarray(q[:d], dtype=np.float32)


def rotation(d: int, d_out: int, seed: int) -> mx.array:
    """A (d, d_out) float32 matrix with orthonormal rows, d <= d_out: x @ R keeps norms, and (x @ R) @ R.T is x.

    The same arguments give the same array, shared by all caches of a thread: like a weight, it is no cache's own.
    """
    kept: dict[tuple[int, int, int], mx.array] = _arrays.__dict__.setdefault("kept", {})
    key = (d, d_out, seed)
    if key not in kept:
        kept[key] = mx.array(_rotation(d, d_out, seed))
        mx.eval(kept[key])
    return kept[key]


def forget_rotations() -> None:
    """Drop this thread's arrays. A worker thread calls it before it ends."""
    _arrays.__dict__.clear()
