"""Small integers in packed planes, and the two ways to multiply with them.

A b-bit code is cut into planes of 8, 4, 2 or 1 bits (3 bits are a 2-bit and a 1-bit plane), each packed as
`mx.quantized_matmul` reads it: little-endian in uint32 words. On Metal and CUDA that kernel multiplies with the planes
as they lie in memory, reading four to sixteen times fewer bytes than 16-bit attention. On CPU it is slow (one thread,
and it unpacks again for every query row); there the bytes of a plane are cut into float32 sub-planes, fused by
`mx.compile`, and multiplied by BLAS. Measured on two x86 cores, 3 heads of 64, 4,096 tokens, 4 bits, 3 queries:
0.8 ms against 2.3 ms.
"""

from __future__ import annotations

from functools import cache

import mlx.core as mx

WORD = 32  # bits of a packed word


@cache
def plane_widths(bits: int) -> tuple[tuple[int, int], ...]:
    """(width, shift) of each plane of a `bits`-bit code, wide ones first: 3 -> ((2, 0), (1, 2))."""
    planes, shift = [], 0
    for width in (8, 4, 2, 1):
        if bits - shift >= width:
            planes.append((width, shift))
            shift += width
    return tuple(planes)


def pack(codes: mx.array, bits: int) -> tuple[mx.array, ...]:
    """Codes in [0, 2**bits), (n_kv_heads, n_tokens, d), to planes of uint32, (n_kv_heads, n_tokens, d * width / 32)."""
    codes = codes.astype(mx.uint32)
    planes = []
    for width, shift in plane_widths(bits):
        part = (codes >> shift) & (2**width - 1)
        part = part.reshape(*codes.shape[:-1], -1, WORD // width)  # (n_kv_heads, n_tokens, words, codes in a word)
        planes.append((part << (mx.arange(WORD // width, dtype=mx.uint32) * width)).sum(-1))
    return tuple(planes)


def unpack(planes: tuple[mx.array, ...], bits: int) -> mx.array:
    """The inverse of `pack`, as float32."""
    codes: mx.array | None = None
    for plane, (width, shift) in zip(planes, plane_widths(bits), strict=True):
        # (n_kv_heads, n_tokens, bytes, codes in a byte): code i of a byte is sub-plane i
        part = mx.stack(_sub_planes(width)(plane.view(mx.uint8)), axis=-1)
        part = part.reshape(*plane.shape[:-1], -1) * 2.0**shift
        codes = part if codes is None else codes + part
    assert codes is not None
    return codes


def codes_dot(q: mx.array, planes: tuple[mx.array, ...], bits: int) -> mx.array:
    """q (n_kv_heads, m, d) float32 times the codes, (n_kv_heads, m, n_tokens), by BLAS on sub-planes."""
    total: mx.array | None = None
    for plane, (width, shift) in zip(planes, plane_widths(bits), strict=True):
        per_byte = 8 // width
        q_plane = q * 2.0**shift if shift else q
        for i, sub in enumerate(_sub_planes(width)(plane.view(mx.uint8))):  # (n_kv_heads, n_tokens, d / per_byte)
            part = q_plane[..., i::per_byte] @ sub.swapaxes(-1, -2)
            total = part if total is None else total + part
    assert total is not None
    return total


def weights_dot(weights: mx.array, planes: tuple[mx.array, ...], bits: int) -> mx.array:
    """Weights (n_kv_heads, m, n_tokens) float32 times the codes, (n_kv_heads, m, d), by BLAS on sub-planes."""
    total: mx.array | None = None
    for plane, (width, shift) in zip(planes, plane_widths(bits), strict=True):
        subs = _sub_planes(width)(plane.view(mx.uint8))
        part = mx.stack([weights @ sub for sub in subs], axis=-1)  # (n_kv_heads, m, d / per_byte, per_byte)
        part = part.reshape(*weights.shape[:-1], -1)
        if shift:
            part = part * 2.0**shift
        total = part if total is None else total + part
    assert total is not None
    return total


def quantized_dot(
    x: mx.array, planes: tuple[mx.array, ...], scales: mx.array, bits: int, *, transpose: bool
) -> mx.array:
    """Multiply x with scale * (code - centre) by `mx.quantized_matmul`, on the packed planes as they are.

    Args:
        x: (n_kv_heads, m, d) with transpose, (n_kv_heads, m, n_tokens) without.
        planes: What `pack` made.
        scales: (n_kv_heads, n_tokens), one per token.
        bits: Of the codes.
        transpose: Multiply along d (scores) instead of along n_tokens (weighted sums).
    """
    d = planes[0].shape[-1] * WORD // plane_widths(bits)[0][0]
    group = next(size for size in (128, 64, 32) if d % size == 0)
    per_group = mx.broadcast_to(scales[..., None].astype(x.dtype), (*scales.shape, d // group))
    total: mx.array | None = None
    for plane, (width, shift) in zip(planes, plane_widths(bits), strict=True):
        step = mx.contiguous(per_group * 2.0**shift)
        bias = per_group * (-(2**bits - 1) / 2) if shift == 0 else mx.zeros_like(step)
        part = mx.quantized_matmul(
            x, plane, step, mx.contiguous(bias), transpose=transpose, group_size=group, bits=width
        )
        total = part if total is None else total + part
    assert total is not None
    return total


@cache
def _sub_planes(width: int):  # type: ignore[no-untyped-def]  # mx.compile is untyped
    """Cuts bytes holding 8 / width codes each into that many float32 arrays of the bytes' shape."""

    def cut(packed: mx.array) -> list[mx.array]:
        if width == 8:
            return [packed.astype(mx.float32)]
        mask = 2**width - 1
        return [((packed >> (i * width)) & mask).astype(mx.float32) for i in range(8 // width)]

    return mx.compile(cut, shapeless=True)
