"""GGUF's blocks of weights as MLX's affine groups: value = scale * code + bias, 32 values to a group.

Where a type's own grid is affine over 32 values or more, the codes are the file's and only the scale and bias are
rounded, once, to float16 (by at most 1 in 2,048 of themselves; models that run in bfloat16, on a GPU, round them once
more when they are loaded, by at most 1 in 256, which was not measured). Every other type is decoded by
`gguf.dequantize` and fitted again: scale and bias from the group's least and greatest value, with so many bits that
the added error is far below the one the file already has. Measured, as root mean squares in parts of the weights'
own: the error that is added, and for comparison the least that any code of the type's size can have on normally
distributed weights (2 ** -bits per weight; real ones have up to twice that):

| type                                                       | bits | added         | file, at least |
|------------------------------------------------------------|------|---------------|----------------|
| Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, TQ1_0, TQ2_0, MXFP4          | own  | 0             |                |
| Q4_K, Q5_K (scales are products, rounded to float16)       | 4, 5 | 0.02 %        | 4.4 %, 2.2 %   |
| Q6_K                                                       | 8    | 0.4 %         | 1.1 %          |
| IQ4_NL, IQ4_XS, NVFP4                                      | 6    | 1.6 to 2.6 %  | 4.4 to 5.3 %   |
| Q3_K, IQ3_S, IQ3_XXS                                       | 6    | 1.2 to 1.9 %  | 9.2 to 12 %    |
| Q2_K, IQ2_S, IQ2_XS, IQ2_XXS                               | 5    | 2.1 to 4.4 %  | 16 to 24 %     |
| IQ1_M, IQ1_S                                               | 5    | 3.1, 2.6 %    | 30, 34 %       |

(Errors are independent, so they add as squares: 1 % and 0.4 % make 1.08 %.) The whole of Gemma 3 270M in Q4_K_M
(Q4_K, Q5_0, Q6_K and Q8_0) comes out with a KL divergence of 0.00009 from the file's own weights; all but 0.000002 is
Q6_K's. Fitting scales and biases again by least squares, once or three times, leaves that as it is (0.00010, 0.00009).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

GROUP = 32
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of 32 weights.

    Attributes:
        codes: (groups, 32), below 2 ** bits.
        scales: (groups,)
        biases: (groups,)
    """

    codes: Bytes
    scales: Floats
    biases: Floats


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a type is stored for MLX; `exact` takes (blocks, bytes of a block) where its grid is affine."""

    bits: int
    exact: Callable[[Bytes], Groups] | None = None


def to_groups(data: Bytes, type_name: str) -> Groups:
    """The weights of quantized rows, (rows, bytes of a row), in their order; `type_name` is a key of RECIPES."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType[type_name]
    recipe = RECIPES[type_name]
    # What is no number, or too large for one, is refused by who asked: it shows in the scales or biases.
    with np.errstate(over="ignore", invalid="ignore"):
        if recipe.exact is not None:
            return recipe.exact(data.reshape(-1, GGML_QUANT_SIZES[kind][1]))
        return fit(dequantize(data, kind).reshape(-1, GROUP), recipe.bits)


def fit(values: Floats, bits: int) -> Groups:
    """The affine grids of 2 ** bits steps between the least and the greatest value of every group, (groups, 32).

    The codes are chosen for the scale and bias as they are after rounding to float16, so that this costs nothing.
    """
    levels = np.float32(2**bits - 1)
    low = values.min(axis=1)
    scales = _half((values.max(axis=1) - low) / levels)
    biases = _half(low)
    steps = np.where(scales > 0, scales, np.float32(1))
    codes = (values - biases[:, None]) * (np.float32(1) / steps)[:, None]
    np.rint(codes, out=codes)
    np.clip(codes, 0, levels, out=codes)
    return Groups(codes.astype(np.uint8), scales, biases)


def pack(codes: Bytes, bits: int) -> npt.NDArray[np.uint32]:
    """Codes, (rows, columns), as `mx.quantize` packs them: a little-endian run of bits, (rows, columns * bits / 32)."""
    rows, columns = codes.shape
    if bits == 8:
        data = np.ascontiguousarray(codes)
    elif bits in (2, 4):
        n = 8 // bits  # codes in a byte
        parts = codes.reshape(rows, columns // n, n)
        data = parts[..., 0].copy()
        for i in range(1, n):
            data |= parts[..., i] << np.uint8(bits * i)
    else:
        parts = codes.reshape(rows, columns // 8, 8)
        words = np.zeros((rows, columns // 8), "<u8")  # eight codes fill `bits` bytes
        for i in range(8):
            words |= parts[..., i].astype(np.uint64) << np.uint64(bits * i)
        data = np.ascontiguousarray(words.view(np.uint8).reshape(rows, columns // 8, 8)[..., :bits])
    return data.reshape(rows, -1).view("<u4")


def _half(values: Floats) -> Floats:
    return values.astype(np.float16).astype(np.float32)


def _float16(data: Bytes) -> Floats:
    """Two bytes each, (blocks, 2), as (blocks,)."""
    return np.ascontiguousarray(data).view("<f2")[:, 0].astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """The low halves of all bytes, then the high ones: (..., n) as (..., 2 * n)."""
    return np.concatenate([data & np.uint8(15), data >> np.uint8(4)], axis=-1)


def _bits(data: Bytes) -> Bytes:
    """(..., n) as (..., 8 * n), each byte's lowest bit first."""
    return np.unpackbits(data, axis=-1, bitorder="little")


def _q4_0(blocks: Bytes) -> Groups:
    scales = _float16(blocks[:, :2])
    return Groups(_nibbles(blocks[:, 2:]), scales, -8 * scales)


def _q4_1(blocks: Bytes) -> Groups:
    return Groups(_nibbles(blocks[:, 4:]), _float16(blocks[:, :2]), _float16(blocks[:, 2:4]))


def _q5_0(blocks: Bytes) -> Groups:
    scales = _float16(blocks[:, :2])
    return Groups(_nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << np.uint8(4), scales, -16 * scales)


def _q5_1(blocks: Bytes) -> Groups:
    codes = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << np.uint8(4)
    return Groups(codes, _float16(blocks[:, :2]), _float16(blocks[:, 2:4]))


def _q8_0(blocks: Bytes) -> Groups:
    scales = _float16(blocks[:, :2])
    return Groups(blocks[:, 2:] ^ np.uint8(128), scales, -128 * scales)  # int8 plus 128


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and biases of the eight groups of a Q4_K or Q5_K block, as (groups,).

    A block begins with float16 factors of the scales and of the minimums; then twelve bytes hold eight 6-bit scales and
    eight 6-bit minimums: the first four of each in the low six bits of four bytes, the last four as four low bits in
    bytes 8 to 11 and two high bits on top of the first ones'.
    """
    packed = blocks[:, 4:16]
    low, minimum, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & np.uint8(63), (rest & np.uint8(15)) | (low >> np.uint8(6)) << np.uint8(4)], axis=1)
    minimums = np.concatenate(
        [minimum & np.uint8(63), (rest >> np.uint8(4)) | (minimum >> np.uint8(6)) << np.uint8(4)], axis=1
    )
    factor, factor_minimum = _float16(blocks[:, :2]), _float16(blocks[:, 2:4])
    return (factor[:, None] * scales).reshape(-1), (-factor_minimum[:, None] * minimums).reshape(-1)


def _q4_k(blocks: Bytes) -> Groups:
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32))  # (blocks, 4, 64): two groups of 32 share 32 bytes
    return Groups(codes.reshape(-1, GROUP), *_k_scales(blocks))


def _q5_k(blocks: Bytes) -> Groups:
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, GROUP)
    # Bit g of byte i is the fifth bit of value i of group g.
    fifth = _bits(blocks[:, 16:48, None]).transpose(0, 2, 1)  # (blocks, 8, 32)
    return Groups((codes | fifth << np.uint8(4)).reshape(-1, GROUP), *_k_scales(blocks))


def _ternary(codes: Bytes, scales: Floats) -> Groups:
    """Blocks of 256 codes, one more than what they stand for, under one scale."""
    scales = np.repeat(scales, 256 // GROUP)
    return Groups(codes.reshape(-1, GROUP), scales, -scales)


def _tq1_0(blocks: Bytes) -> Groups:
    """Five ternary digits to a byte, 32 bytes and then 16; four to a byte in the last 4: b * 3 ** k, top trit."""
    parts = []
    for data, digits in ((blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4)):
        powers = np.array([3**k for k in range(digits)], np.uint8)
        shifted = data[:, None, :] * powers[:, None]  # (blocks, digits, bytes), modulo 256
        parts.append(((shifted.astype(np.uint16) * np.uint16(3)) >> np.uint16(8)).reshape(len(blocks), -1))
    return _ternary(np.concatenate(parts, axis=1).astype(np.uint8), _float16(blocks[:, 52:]))


def _tq2_0(blocks: Bytes) -> Groups:
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    codes = (blocks[:, :64].reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)
    return _ternary(codes, _float16(blocks[:, 64:]))


# Twice E2M1's magnitudes, so that they are whole numbers; the fourth bit is the sign. Plus 12: a code.
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12])
_MXFP4_CODES = np.concatenate([12 + _E2M1, 12 - _E2M1]).astype(np.uint8)


def _mxfp4(blocks: Bytes) -> Groups:
    # 2 ** (exponent - 127), halved because the values are doubled.
    scales = np.ldexp(np.float32(1), blocks[:, 0].astype(np.int32) - 128).astype(np.float32)
    return Groups(_MXFP4_CODES[_nibbles(blocks[:, 1:])], scales, -12 * scales)


RECIPES = {
    "Q4_0": Recipe(4, _q4_0),
    "Q4_1": Recipe(4, _q4_1),
    "Q4_K": Recipe(4, _q4_k),
    "Q5_0": Recipe(5, _q5_0),
    "Q5_1": Recipe(5, _q5_1),
    "Q5_K": Recipe(5, _q5_k),
    "Q8_0": Recipe(8, _q8_0),
    "TQ1_0": Recipe(2, _tq1_0),
    "TQ2_0": Recipe(2, _tq2_0),
    "MXFP4": Recipe(5, _mxfp4),
    "Q6_K": Recipe(8),
    "Q3_K": Recipe(6),
    "IQ3_XXS": Recipe(6),
    "IQ3_S": Recipe(6),
    "IQ4_NL": Recipe(6),
    "IQ4_XS": Recipe(6),
    "NVFP4": Recipe(6),
    "Q2_K": Recipe(5),
    "IQ2_XXS": Recipe(5),
    "IQ2_XS": Recipe(5),
    "IQ2_S": Recipe(5),
    "IQ1_S": Recipe(5),
    "IQ1_M": Recipe(5),
}
