"""Blocks of every GGUF type, as MLX's groups: MLX gives back the values that llama.cpp's package decodes."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from app.models.gguf_blocks import GROUP, RECIPES, fit, pack, to_groups
from app.models.gguf_file import READABLE_TYPES

ROWS, COLUMNS = 64, 1024
# The root mean square of what is added to the values, in parts of their own, at most: see the table in gguf_blocks.
ADDED = {
    "Q4_K": 0.0004,
    "Q5_K": 0.0004,
    "Q6_K": 0.005,
    "IQ4_NL": 0.018,
    "IQ4_XS": 0.018,
    "NVFP4": 0.03,
    "Q3_K": 0.014,
    "IQ3_XXS": 0.02,
    "IQ3_S": 0.02,
    "Q2_K": 0.023,
    "IQ2_XXS": 0.047,
    "IQ2_XS": 0.043,
    "IQ2_S": 0.043,
    "IQ1_S": 0.03,
    "IQ1_M": 0.034,
}
# Where the package can't encode: (offset, size) of the float16 factors that a block of random bytes needs to be sane.
FACTORS = {
    "Q2_K": [(80, 2e-4), (82, 2e-4)],
    "Q3_K": [(108, 6e-4)],
    "Q4_K": [(0, 3e-4), (2, 3e-4)],
    "Q5_K": [(0, 3e-4), (2, 3e-4)],
    "Q6_K": [(208, 1.5e-4)],
    "IQ4_XS": [(0, 3e-4)],
}


def blocks(name: str) -> npt.NDArray[np.uint8]:
    """Rows of valid blocks: of normally distributed weights where the package can encode them, else random."""
    kind = gguf.GGMLQuantizationType[name]
    rng = np.random.default_rng(3)
    try:
        weights = (0.02 * rng.standard_normal((ROWS, COLUMNS))).astype(np.float32)
        quantized: npt.NDArray[np.uint8] = gguf.quantize(weights, kind)
        return quantized
    except NotImplementedError:
        values, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (ROWS * COLUMNS // values, n_bytes), dtype=np.uint8)
    if name == "IQ1_M":  # the factor's four digits are the highest ones of four scales
        factor = (0.001 * rng.uniform(0.5, 1, len(data))).astype(np.float16).view(np.uint16)
        scales = data[:, 48:56].view(np.uint16)
        for i in range(4):
            scales[:, i] = (scales[:, i] & 0x0FFF) | ((factor >> (4 * i)) & 15) << 12
    elif name == "NVFP4":  # the scales are small floats of a sign, which has to be plus, and seven bits
        data[:, :4] = rng.integers(32, 96, (len(data), 4))
    else:
        for offset, size in FACTORS.get(name, [(0, 1e-3)]):
            factor = (size * rng.uniform(0.5, 1, (len(data), 1))).astype(np.float16)
            data[:, offset : offset + 2] = factor.view(np.uint8)
    return data.reshape(ROWS, -1)


def through_mlx(data: npt.NDArray[np.uint8], name: str) -> npt.NDArray[np.float32]:
    import mlx.core as mx

    groups, bits = to_groups(data, name), RECIPES[name].bits
    scales, biases = (
        mx.array(part.astype(np.float16).reshape(ROWS, -1)).astype(mx.float32)
        for part in (groups.scales, groups.biases)
    )
    packed = mx.array(pack(groups.codes.reshape(ROWS, COLUMNS), bits))
    return np.array(mx.dequantize(packed, scales, biases, group_size=GROUP, bits=bits))


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.exact])
def test_an_affine_type_keeps_its_values(name: str) -> None:
    data = blocks(name)
    expected = gguf.dequantize(data, gguf.GGMLQuantizationType[name])
    found = through_mlx(data, name)
    if name not in ADDED:
        np.testing.assert_array_equal(found, expected)
        return
    # Each value is code * scale + bias, of which both are rounded to float16 (or to its least step, 2 ** -24).
    groups = to_groups(data, name)
    parts = groups.codes * np.abs(groups.scales)[:, None] + np.abs(groups.biases)[:, None]
    bound = parts.reshape(ROWS, COLUMNS) * 2.0**-11 + 2.0**-25 * 2 ** RECIPES[name].bits
    assert np.all(np.abs(found - expected) <= bound * 1.001)


@pytest.mark.parametrize("name", ADDED)
def test_what_a_type_adds_to_the_error_stays_below_its_bound(name: str) -> None:
    data = blocks(name)
    expected = gguf.dequantize(data, gguf.GGMLQuantizationType[name])
    assert np.isfinite(expected).all()
    added = np.sqrt(np.mean((through_mlx(data, name) - expected) ** 2) / np.mean(expected**2))
    assert added < ADDED[name]


def test_every_type_is_exact_or_has_a_bound() -> None:
    assert {name for name, recipe in RECIPES.items() if not recipe.exact} < ADDED.keys() <= RECIPES.keys()


def test_the_readable_types_are_those_the_package_decodes() -> None:
    decoded = set()
    for kind, (_, n_bytes) in gguf.GGML_QUANT_SIZES.items():
        try:
            gguf.dequantize(np.zeros((1, n_bytes), np.uint8), kind)
        except NotImplementedError:
            continue
        decoded.add(kind.name)
    assert decoded == set(READABLE_TYPES) == {"F32", "F16", "BF16", *RECIPES}


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_codes_are_packed_as_mlx_packs_them(bits: int) -> None:
    import mlx.core as mx

    weights = mx.random.normal((16, 256), key=mx.random.key(0))
    packed, scales, biases = mx.quantize(weights, group_size=32, bits=bits)
    values = np.array(mx.dequantize(packed, scales, biases, group_size=32, bits=bits))
    steps, starts = (np.repeat(np.array(part), 32, axis=1) for part in (scales, biases))
    codes = np.rint((values - starts) / steps).astype(np.uint8)
    np.testing.assert_array_equal(pack(codes, bits), np.array(packed))


@pytest.mark.parametrize("values", [[0.0] * 32, [0.25] * 32, [-1.0, *[1.0] * 31], [1e-7] * 31 + [2e-7]])
def test_groups_without_much_in_them_are_fitted(values: list[float]) -> None:
    groups = fit(np.array([values], np.float32), 6)
    found: Any = groups.codes * groups.scales[:, None] + groups.biases[:, None]
    np.testing.assert_allclose(found[0], values, rtol=1e-3, atol=1e-7)
