"""Packed codes come back as they were, and both ways of multiplying with them give the same numbers."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veloxquant_mlx.quantizers.bit_planes import MANY, BitPlanes


@settings(deadline=None, max_examples=60)
@given(
    bits=st.integers(1, 8),
    n_heads=st.integers(1, 3),
    n_tokens=st.integers(1, 9),
    eights=st.integers(1, 17),
    seed=st.integers(0, 2**32 - 1),
)
def test_codes_of_any_width_come_back(bits: int, n_heads: int, n_tokens: int, eights: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 2**bits, (n_heads, n_tokens, 8 * eights))
    planes = BitPlanes(bits, 8 * eights)
    packed = planes.pack(mx.array(codes))
    assert sum(plane.nbytes for plane in packed) == n_heads * n_tokens * planes.bytes_per_vector
    assert planes.bytes_per_vector * 8 == bits * 8 * eights
    assert np.array_equal(np.array(planes.codes(packed)), codes)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("d", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("n_tokens", [37, MANY + 1])
def test_products_by_planes_and_by_quantized_matmul_agree_with_float64(bits: int, d: int, n_tokens: int) -> None:
    rng = np.random.default_rng(bits * 1000 + d)
    codes = rng.integers(0, 2**bits, (2, n_tokens, d))
    scales = rng.uniform(0.1, 1.0, (2, n_tokens)).astype(np.float32)
    q = rng.standard_normal((2, 3, d)).astype(np.float32)
    weights = rng.uniform(0, 2 / n_tokens, (2, 3, n_tokens)).astype(np.float32)
    planes = BitPlanes(bits, d)
    packed = planes.pack(mx.array(codes))
    values = (codes - (2**bits - 1) / 2) * scales[..., None].astype(np.float64)
    near = {"rtol": 1e-4, "atol": 2e-4 * 2**bits}
    dots = planes.quantized_dots(mx.array(q), packed, mx.array(scales))
    np.testing.assert_allclose(np.array(dots), q @ values.swapaxes(1, 2), **near)
    sums = planes.quantized_sums(mx.array(weights), packed, mx.array(scales))
    np.testing.assert_allclose(np.array(sums), weights @ values, **near)
    halved = planes.halved(n_tokens)
    dots = planes.dots(planes.fold(mx.array(q), halved=halved), packed)
    np.testing.assert_allclose(np.array(dots), q @ codes.swapaxes(1, 2), **near)
    identity = planes.fold(mx.eye(d), halved=halved)  # (d, n_codes)
    sums = planes.sums(mx.array(weights), packed) @ identity.T
    np.testing.assert_allclose(np.array(sums), weights @ codes, **near)
