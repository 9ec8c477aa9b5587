"""Random rotations: they spread every vector's energy evenly, so that one scalar quantizer fits all coordinates."""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from veloxquant_mlx.quantizers.shared import shared

WORD = 32  # packed codes fill whole words of so many bits


def padded(d: int) -> int:
    """The dimensions a d-dimensional vector is rotated into: the next multiple of 32."""
    return -(-d // WORD) * WORD


def rotation(d: int, d_out: int, seed: int) -> mx.array:
    """A (d, d_out) float32 matrix with orthonormal rows, d <= d_out: x @ R keeps norms, and (x @ R) @ R.T is x.

    The same arguments give the same array, shared by all caches of a thread.
    """
    return shared(_on_device, d, d_out, seed)


def _on_device(d: int, d_out: int, seed: int) -> mx.array:
    matrix = mx.array(_rotation(d, d_out, seed))
    mx.eval(matrix)
    return matrix


@lru_cache(maxsize=32)
def _rotation(d: int, d_out: int, seed: int) -> npt.NDArray[np.float32]:
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((d_out, d_out)))
    q *= np.sign(np.diag(r))  # makes the distribution uniform over rotations (Mezzadri, arXiv math-ph/0609050)
    return np.ascontiguousarray(q[:d], dtype=np.float32)
