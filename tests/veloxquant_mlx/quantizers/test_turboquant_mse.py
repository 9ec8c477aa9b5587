"""turboquant_mse keeps the paper's distortion, survives odd vectors and costs the bytes it says."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from veloxquant_mlx.quantizers.rotation import rotation
from veloxquant_mlx.quantizers.turboquant_mse import STEPS, TurboQuantMSE

# Squared error of unit vectors at 1 to 4 bits: TurboQuant (arXiv 2504.19874), Theorem 1, rounded up to two digits.
BOUNDS = {1: 0.37, 2: 0.12, 3: 0.038, 4: 0.012}


def unit_vectors(n: int, d: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((1, n, d))
    unit: np.ndarray = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return unit


@pytest.mark.parametrize("bits", BOUNDS)
def test_distortion_of_unit_vectors_is_within_the_papers_bound(bits: int) -> None:
    x = unit_vectors(4_000, 128)
    codec = TurboQuantMSE(128, bits, seed=1)
    kept = np.array(codec.decode(codec.encode(mx.array(x.astype(np.float32)))))
    assert ((x - kept) ** 2).sum(-1).mean() <= BOUNDS[bits]


@pytest.mark.parametrize("bits", [2, 4])
def test_distortion_does_not_depend_on_the_data(bits: int) -> None:
    """All the energy in one coordinate is as good as Gaussian data once it is rotated."""
    x = np.zeros((1, 128, 128))
    x[0, np.arange(128), np.arange(128)] = 1000.0
    codec = TurboQuantMSE(128, bits, seed=1)
    kept = np.array(codec.decode(codec.encode(mx.array(x.astype(np.float32)))))
    assert ((x - kept) ** 2).sum(-1).mean() / 1000.0**2 <= BOUNDS[bits] * 1.05


def test_more_bits_never_keep_less() -> None:
    x = mx.array(unit_vectors(500, 64).astype(np.float32))
    errors = []
    for bits in range(1, 9):
        codec = TurboQuantMSE(64, bits, seed=3)
        errors.append(float(((x - codec.decode(codec.encode(x))) ** 2).sum(-1).mean()))
    assert errors == sorted(errors, reverse=True)


def test_the_steps_are_the_best_uniform_ones_for_a_gaussian() -> None:
    grid = np.linspace(-8, 8, 200_001)
    density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi) * (grid[1] - grid[0])

    def distortion(bits: int, step: float) -> float:
        centre = (2**bits - 1) / 2
        levels = (np.clip(np.floor(grid / step + 2 ** (bits - 1)), 0, 2**bits - 1) - centre) * step
        return float(((grid - levels) ** 2 * density).sum())

    for bits, step in STEPS.items():
        assert distortion(bits, step) <= min(distortion(bits, step * 0.99), distortion(bits, step * 1.01))


@pytest.mark.parametrize("d", [16, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("bits", [1, 3, 4, 8])
def test_bytes_are_what_the_arrays_hold(d: int, bits: int) -> None:
    codec = TurboQuantMSE(d, bits, seed=1)
    coded = codec.encode(mx.array(unit_vectors(10, d).astype(np.float32)))
    assert sum(array.nbytes for array in coded) == 10 * codec.bytes_per_token


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_scores_and_sums_on_packed_codes_equal_those_of_decoded_vectors(bits: int, on_cpu: bool) -> None:
    rng = np.random.default_rng(bits)
    codec = TurboQuantMSE(80, bits, seed=1)
    codec.linear.by_blas = on_cpu
    coded = codec.encode(mx.array(rng.standard_normal((2, 50, 80)).astype(np.float32) * 3))
    kept = np.array(codec.decode(coded)).astype(np.float64)
    q, weights = rng.standard_normal((2, 3, 80)), rng.uniform(0, 1, (2, 3, 50))
    scores = np.array(codec.scores(mx.array(q.astype(np.float32)), coded))
    np.testing.assert_allclose(scores, q @ kept.swapaxes(1, 2), rtol=1e-3, atol=1e-3)
    sums = np.array(codec.combine(mx.array(weights.astype(np.float32)), coded))
    np.testing.assert_allclose(sums, weights @ kept, rtol=1e-3, atol=1e-3)


def test_zero_vectors_stay_zero() -> None:
    codec = TurboQuantMSE(64, 4, seed=1)
    kept = codec.decode(codec.encode(mx.zeros((2, 5, 64))))
    assert np.array_equal(np.array(kept), np.zeros((2, 5, 64)))


def test_rotations_keep_norms_and_are_shared() -> None:
    r = np.array(rotation(80, 96, 7)).astype(np.float64)
    np.testing.assert_allclose(r @ r.T, np.eye(80), atol=1e-6)
    assert rotation(80, 96, 7) is rotation(80, 96, 7)
    assert not np.allclose(np.array(rotation(80, 96, 8)), r)
