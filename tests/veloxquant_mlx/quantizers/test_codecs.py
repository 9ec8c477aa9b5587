"""What each codec promises: unbiased products, the papers' errors, tables and bits where they belong."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from veloxquant_mlx.cache.base import key_codec, value_codec
from veloxquant_mlx.cache.config import METHODS
from veloxquant_mlx.quantizers.polar import Polar, best_angles, tree
from veloxquant_mlx.quantizers.qjl import QJL
from veloxquant_mlx.quantizers.shared import shared
from veloxquant_mlx.quantizers.spectral import ERRORS, FittedSpectral, Spectral, water_fill
from veloxquant_mlx.quantizers.turboquant_mse import TurboQuantMSE
from veloxquant_mlx.quantizers.turboquant_prod import TurboQuantProd

CODED = [method for method, row in METHODS.items() if row.bits]


def gaussian(n: int, d: int = 128, seed: int = 0, heads: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((heads, n, d)).astype(np.float32)


def loss(codec: Any, x: np.ndarray) -> float:
    kept = np.array(codec.decode(codec.encode(mx.array(x))))
    return float(((kept - x) ** 2).sum() / (x**2).sum())


def estimates(codec: Any, q: np.ndarray, x: np.ndarray) -> np.ndarray:
    """<q_i, x_i> as the codec has it, of pairs (n, d), on the packed codes."""
    coded = codec.encode(mx.array(x)[None])
    n = len(x)
    found = []
    for start in range(0, n, 500):
        part = tuple(array[:, start : start + 500] for array in coded)
        scores = np.array(codec.scores(mx.array(q[None, start : start + 500]), part))[0]
        found.append(np.diagonal(scores))
    return np.concatenate(found)


@pytest.mark.parametrize("kind", ["independent", "alike"])
@pytest.mark.parametrize("make", [lambda seed: TurboQuantProd(128, 4, seed), lambda seed: QJL(128, 1, seed)])
def test_inner_products_are_right_on_average(make: Any, kind: str) -> None:
    """10,000 random pairs, the mean error within three standard errors of zero (TurboQuant, Theorem 2)."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((10_000, 128)).astype(np.float32)
    q = rng.standard_normal((10_000, 128)).astype(np.float32)
    if kind == "alike":  # where a code with the least squared error comes out too small
        q = x + 0.3 * q
    # Several rotations, since the promise is about the mean over them.
    errors = np.concatenate(
        [estimates(make(seed), q[i::4], x[i::4]) - (q[i::4] * x[i::4]).sum(axis=1) for i, seed in enumerate(range(4))]
    )
    assert abs(errors.mean()) <= 3 * errors.std() / np.sqrt(len(errors))


def test_turboquant_mse_is_biased_where_prod_is_not() -> None:
    """Why there are two: at 1 to 2 bits the least squared error makes products of like vectors too small."""
    x = gaussian(2000)[0]
    exact = (x * x).sum(axis=1)
    mse, prod = TurboQuantMSE(128, 2, 1), TurboQuantProd(128, 2, 1)
    assert (estimates(mse, x, x) / exact).mean() < 0.9
    assert abs((estimates(prod, x, x) / exact).mean() - 1) < 0.01


def test_orthogonal_sketches_err_less_than_the_papers_gaussian_ones() -> None:
    """pi/2 - 1 of |q|^2 |x|^2 / d for vectors at right angles, where independent Gaussian rows give pi/2."""
    x, q = gaussian(4000, seed=1)[0], gaussian(4000, seed=2)[0]
    q -= x * ((q * x).sum(axis=1) / (x * x).sum(axis=1))[:, None]
    errors = estimates(QJL(128, 1, 3), q, x)
    variance = (errors**2 * 128 / ((q**2).sum(axis=1) * (x**2).sum(axis=1))).mean()
    assert variance == pytest.approx(np.pi / 2 - 1, rel=0.1)


@pytest.mark.parametrize("bits", range(1, 9))
def test_twice_the_signs_halve_qjls_error(bits: int) -> None:
    assert loss(QJL(128, bits, 1), gaussian(1000)) == pytest.approx((np.pi / 2 - 1) / bits, rel=0.05)


@pytest.mark.parametrize(("bits", "most"), [(2, 0.125), (3, 0.036), (4, 0.0096), (6, 0.0007), (8, 0.00008)])
def test_polar_loses_no_more_than_the_best_scalar_codes(bits: int, most: float) -> None:
    """Lloyd-Max levels lose 0.117, 0.0345 and 0.0095 at 2, 3 and 4 bits."""
    assert loss(Polar(128, bits, 1), gaussian(2000)) <= most


@pytest.mark.parametrize("d", [32, 96, 160, 256])
def test_polar_joins_every_radius_into_one(d: int) -> None:
    levels = tree(d)
    assert 1 + d // 2 + sum(len(pairs) for pairs, _ in levels) == d  # a radius and d - 1 angles
    assert sum(levels[-1][0][0]) == d


@pytest.mark.parametrize("k", [2, 8, 64])
def test_tables_of_angles_are_best_for_gaussian_radii(k: int) -> None:
    rng = np.random.default_rng(2)
    r1, r2 = (np.linalg.norm(rng.standard_normal((20_000, k)), axis=1) for _ in "12")
    angles = np.arctan2(r2, r1)
    levels = best_angles(k, k, 3)

    def error(levels: np.ndarray) -> float:
        return float((np.abs(angles[:, None] - levels).min(axis=1) ** 2).mean())

    assert error(levels) < min(error(np.pi / 4 + (levels - np.pi / 4) * stretch) for stretch in (0.9, 1.1))
    np.testing.assert_allclose(levels + levels[::-1], np.pi / 2, atol=1e-3)  # symmetric, as r1 and r2 are alike


def decaying(n: int, d: int = 64, seed: int = 0) -> np.ndarray:
    """Two heads with energy along a few directions of their own."""
    rng = np.random.default_rng(99)
    axes = np.stack([np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2)])
    strength = np.exp(-np.arange(d) / 6)
    x: np.ndarray = ((gaussian(n, d, seed, heads=2) * strength) @ axes).astype(np.float32)
    return x


def test_spectral_finds_the_axes_and_beats_a_random_rotation_on_later_tokens() -> None:
    codec = Spectral(64, 2, seed=1).fitted(mx.array(decaying(128, seed=1)))
    assert isinstance(codec, FittedSpectral)
    later = decaying(500, seed=2)
    assert loss(codec, later) < loss(TurboQuantMSE(64, 2, 1), later) / 4
    kept = sum(array.nbytes for array in codec.encode(mx.array(later))) / later.shape[0] / later.shape[1]
    assert kept == codec.bytes_per_token
    assert (kept - 64 * 2 / 8) % 2 == 0  # two bits a coordinate, and a scale for each subspace
    assert sum(array.nbytes for array in codec.own_arrays) <= 2 * 64 * 64 * 2


def test_spectral_stores_no_basis_for_data_without_axes() -> None:
    codec = Spectral(64, 4, seed=1).fitted(mx.array(gaussian(100, 64, heads=2)))
    assert codec is shared(TurboQuantMSE, 64, 4, 1)
    assert codec.own_arrays == ()


def test_spectral_says_that_it_has_to_see_data_first() -> None:
    with pytest.raises(ValueError, match=r"fitted\(x\) first"):
        Spectral(64, 4, seed=1).encode(mx.zeros((1, 3, 64)))


@pytest.mark.parametrize("bits", range(1, 9))
def test_water_filling_gives_the_average_and_most_to_the_strongest(bits: int) -> None:
    shares = np.exp(-np.arange(64) / 8.0)
    given = water_fill(shares / shares.sum(), bits)
    assert sum(given) == 64 * bits
    assert given == sorted(given, reverse=True)
    assert max(given) <= min(8, bits + 2)
    assert min(given) >= max(0, bits - 1)
    even = sum(shares) * ERRORS[bits]
    assert (shares * np.array(ERRORS)[given]).sum() <= even
    assert water_fill(np.ones(64) / 64, bits) == [bits] * 64


@pytest.mark.parametrize("method", CODED)
@pytest.mark.parametrize("d", [64, 80, 96, 256])
def test_products_on_packed_codes_equal_those_with_decoded_vectors(method: str, d: int) -> None:
    x, q = mx.array(gaussian(70, d, 1, heads=2) * 3), mx.array(gaussian(3, d, 2, heads=2))
    weights = mx.softmax(mx.array(gaussian(3, 70, 3, heads=2)), axis=-1)
    for bits in (METHODS[method].bits[0], 4, METHODS[method].bits[-1]):
        for make in (key_codec, value_codec):
            codec = make(method, d, bits, 1)
            assert codec is not None
            codec = codec.fitted(x)
            coded = codec.encode(x)
            kept = np.array(codec.decode(coded)).astype(np.float64)
            assert sum(array.nbytes for array in coded) == 2 * 70 * codec.bytes_per_token
            scores = np.array(codec.scores(q, coded))
            np.testing.assert_allclose(scores, np.array(q) @ kept.swapaxes(1, 2), rtol=1e-3, atol=3e-3)
            sums = np.array(codec.combine(weights, coded))
            np.testing.assert_allclose(sums, np.array(weights) @ kept, rtol=1e-3, atol=1e-3)
