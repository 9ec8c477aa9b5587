"""Packed codes come back as they were, and both ways of multiplying with them give the same numbers."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veloxquant_mlx.quantizers import bit_planes


@settings(deadline=None, max_examples=60)
@given(
    bits=st.integers(1, 8),
    n_heads=st.integers(1, 3),
    n_tokens=st.integers(1, 9),
    words=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_codes_of_any_width_come_back(bits: int, n_heads: int, n_tokens: int, words: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 2**bits, (n_heads, n_tokens, 32 * words))
    planes = bit_planes.pack(mx.array(codes), bits)
    assert sum(plane.nbytes for plane in planes) * 8 == codes.size * bits
    assert np.array_equal(np.array(bit_planes.unpack(planes, bits)), codes)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("d", [32, 64, 96, 128, 256])
def test_products_by_planes_and_by_quantized_matmul_agree_with_float64(bits: int, d: int) -> None:
    rng = np.random.default_rng(bits * 1000 + d)
    codes = rng.integers(0, 2**bits, (2, 37, d))
    scales = rng.uniform(0.1, 1.0, (2, 37)).astype(np.float32)
    q, weights = rng.standard_normal((2, 3, d)), rng.uniform(0, 1, (2, 3, 37))
    planes = bit_planes.pack(mx.array(codes), bits)
    values = (codes - (2**bits - 1) / 2) * scales[..., None].astype(np.float64)
    for x, exact, transpose in ((q, q @ values.swapaxes(1, 2), True), (weights, weights @ values, False)):
        got = bit_planes.quantized_dot(
            mx.array(x.astype(np.float32)), planes, mx.array(scales), bits, transpose=transpose
        )
        np.testing.assert_allclose(np.array(got), exact, rtol=1e-4, atol=2e-4 * 2**bits)
    dots = bit_planes.codes_dot(mx.array(q.astype(np.float32)), planes, bits)
    np.testing.assert_allclose(np.array(dots), q @ codes.swapaxes(1, 2), rtol=1e-4, atol=2e-4 * 2**bits)
    sums = bit_planes.weights_dot(mx.array(weights.astype(np.float32)), planes, bits)
    np.testing.assert_allclose(np.array(sums), weights @ codes, rtol=1e-4, atol=1e-4)
