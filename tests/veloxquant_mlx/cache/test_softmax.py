"""The softmax in plain operations against float64."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from veloxquant_mlx.cache.softmax import FEW, LOG2_E, exp2_weights, wants_base_two


@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0, 1e4])
def test_weights_are_those_of_softmax(spread: float) -> None:
    scores = np.random.default_rng(1).standard_normal((2, 3, 5000)).astype(np.float32) * spread
    weights, totals = exp2_weights(mx.array(scores) * LOG2_E)
    exact = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    exact /= exact.sum(axis=-1, keepdims=True)
    near = 3e-4 + 1e-6 * spread  # a score of 10,000 has no more than three digits after the point in float32
    np.testing.assert_allclose(np.array(weights / totals), exact, rtol=near, atol=1e-30)


def test_long_rows_are_weighed_by_hand_on_cpu_and_short_ones_by_mlx() -> None:
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    assert wants_base_two(FEW) == on_cpu
    assert not wants_base_two(FEW - 1)
