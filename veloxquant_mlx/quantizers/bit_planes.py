"""Small integers packed in planes, and the ways to multiply with them.

A b-bit code is cut into planes of 8, 4, 2 or 1 bits (3 bits are a 2-bit and a 1-bit plane). A plane of w-bit fields
for n codes is B = n * w / 8 bytes per vector, and field j of byte i belongs to code j * B + i. So masking a whole
plane with one constant leaves a run of neighbouring codes, one in each byte.

Two ways lead from packed codes to products:
- On Metal and CUDA `mx.quantized_matmul` multiplies with the planes as they lie in memory, reading four to sixteen
  times fewer bytes than 16-bit attention. It counts fields byte by byte, so the other factor is put in that order.
- On CPU that kernel is slow (one thread, and it unpacks again for every query row). There the fields are masked out 64
  bits at a time, made float32, and multiplied by BLAS. A field is left where it stands in its byte, too large by a
  power of two; `fold` puts that into the other factor, once for all tokens. Measured on two x86 cores, 30 layers of
  3 heads of 64, 8,000 tokens, 4 bits, 3 query rows: unpacking both sides 21 ms, the four products 18 ms, where MLX's
  attention on the uncompressed float32 cache takes 69 ms.
"""

from __future__ import annotations

from functools import cache

import mlx.core as mx
import numpy as np

# Tokens from which on two products, each with half of the 4-bit fields, beat one on an array of twice the size.
MANY = 1024


@cache
def plane_widths(bits: int) -> tuple[tuple[int, int], ...]:
    """(width, shift) of each plane of a `bits`-bit code, wide ones first: 3 -> ((2, 0), (1, 2))."""
    planes, shift = [], 0
    for width in (8, 4, 2, 1):
        if bits - shift >= width:
            planes.append((width, shift))
            shift += width
    return tuple(planes)


class BitPlanes:
    """The planes of `n_codes` codes of `bits` bits per vector.

    Args:
        bits: 1 to 8.
        n_codes: Codes of one vector; a multiple of 8, and of 32 for the products by `mx.quantized_matmul`.
    """

    def __init__(self, bits: int, n_codes: int) -> None:
        self.bits = bits
        self.n_codes = n_codes
        self.widths = plane_widths(bits)
        self.bytes_per_vector = n_codes * bits // 8
        self._words = [_word(n_codes * width // 8) for width, _ in self.widths]
        self._masks = [_masks(width, word) for (width, _), word in zip(self.widths, self._words, strict=True)]
        self._alone = len(self.widths) == 1

    def halved(self, n_tokens: int) -> bool:
        """Whether `floats` gives two arrays for so many tokens: the whole bytes, and their high fields."""
        return self.bits == 4 and n_tokens > MANY

    def fold(self, matrix: mx.array, *, halved: bool) -> mx.array:
        """What to multiply `floats` with, to get what `matrix` (..., n_codes) times codes would give."""
        if halved:
            # low = byte - high fields, where they stand; high = those / 16
            low, high = mx.split(matrix, 2, axis=-1)
            return mx.concatenate([low, high / 16 - low], axis=-1)
        if len(self.widths) > 1 or self.bits == 8:
            return matrix
        per_byte = 8 // self.bits
        factors = np.repeat(2.0 ** (-self.bits * np.arange(per_byte)), self.n_codes // per_byte)
        return matrix * mx.array(factors.astype(np.float32))

    def pack(self, codes: mx.array) -> tuple[mx.array, ...]:
        """Codes in [0, 2**bits), (n_kv_heads, n_tokens, n_codes), to planes, (n_kv_heads, n_tokens, words)."""
        codes = codes.astype(mx.uint8)
        planes = []
        for (width, shift), word in zip(self.widths, self._words, strict=True):
            part = codes if self.bits == 8 else (codes >> shift) & (2**width - 1)
            fields = mx.split(part, 8 // width, axis=-1)  # each (n_kv_heads, n_tokens, bytes)
            packed = fields[0]
            for j, field in enumerate(fields[1:], 1):
                packed = packed | (field << (j * width))
            planes.append(mx.contiguous(packed).view(word))
        return tuple(planes)

    def codes(self, planes: tuple[mx.array, ...]) -> mx.array:
        """The inverse of `pack`, as uint8."""
        whole: mx.array | None = None
        for plane, (width, shift), (shifts, _, ones) in zip(planes, self.widths, self._masks, strict=True):
            if width < 8:
                plane = (mx.expand_dims(plane, 2) >> shifts) & ones  # (n_kv_heads, n_tokens, fields of a byte, words)
                if shift:
                    plane = plane << mx.array(shift, plane.dtype)
                plane = mx.flatten(plane, 2)
            part = plane.view(mx.uint8)
            whole = part if whole is None else whole | part
        assert whole is not None
        return whole

    def floats(self, planes: tuple[mx.array, ...]) -> list[mx.array]:
        """The codes as float32 for products with what `fold` returns: one array, or two one after the other."""
        if not self._alone:
            return [self.codes(planes).astype(mx.float32)]
        (plane,), ((_, masks, _),) = planes, self._masks
        if self.bits == 8:
            return [plane.view(mx.uint8).astype(mx.float32)]
        if self.halved(plane.shape[1]):
            return [part.view(mx.uint8).astype(mx.float32) for part in (plane, plane & masks[1])]
        fields = mx.expand_dims(plane, 2) & masks  # (n_kv_heads, n_tokens, fields of a byte, words)
        return [mx.flatten(fields, 2).view(mx.uint8).astype(mx.float32)]

    # ------------------------------------------------------------------ products by BLAS
    def dots(self, y: mx.array, planes: tuple[mx.array, ...]) -> mx.array:
        """y (n_kv_heads, m, n_codes) times `floats`, (n_kv_heads, m, n_tokens)."""
        floats = self.floats(planes)
        y = y.swapaxes(-1, -2)  # tokens first: with few query rows BLAS is faster that way around
        if len(floats) == 1:
            return (floats[0] @ y).swapaxes(-1, -2)
        half = self.n_codes // 2
        return mx.addmm(floats[0] @ y[:, :half], floats[1], y[:, half:]).swapaxes(-1, -2)

    def sums(self, weights: mx.array, planes: tuple[mx.array, ...]) -> mx.array:
        """Sums of `floats` under weights (n_kv_heads, m, n_tokens), (n_kv_heads, m, n_codes)."""
        sums = [weights @ part for part in self.floats(planes)]
        return sums[0] if len(sums) == 1 else mx.concatenate(sums, axis=-1)

    # ------------------------------------------------------------------ products by quantized_matmul
    def quantized_dots(self, y: mx.array, planes: tuple[mx.array, ...], scales: mx.array) -> mx.array:
        """y (n_kv_heads, m, n_codes) times scale * (code - centre), scales (n_kv_heads, n_tokens)."""
        total: mx.array | None = None
        for plane, (width, _), grouped in zip(planes, self.widths, self._grouped(scales, y.dtype), strict=True):
            fields = y.reshape(*y.shape[:-1], 8 // width, -1).swapaxes(-1, -2).reshape(y.shape)
            part = self._multiply(fields, plane, grouped, width, transpose=True)
            total = part if total is None else total + part
        assert total is not None
        return total

    def quantized_sums(self, weights: mx.array, planes: tuple[mx.array, ...], scales: mx.array) -> mx.array:
        """Sums of scale * (code - centre) under weights, (n_kv_heads, m, n_codes)."""
        total: mx.array | None = None
        for plane, (width, _), grouped in zip(planes, self.widths, self._grouped(scales, weights.dtype), strict=True):
            part = self._multiply(weights, plane, grouped, width, transpose=False)
            part = part.reshape(*part.shape[:-1], -1, 8 // width).swapaxes(-1, -2).reshape(part.shape)
            total = part if total is None else total + part
        assert total is not None
        return total

    def _grouped(self, scales: mx.array, dtype: mx.Dtype) -> list[tuple[mx.array, mx.array]]:
        """quantized_matmul's scales and biases of each plane, per group of codes."""
        groups = (*scales.shape, self.n_codes // self._group)
        steps = mx.broadcast_to(scales[..., None].astype(dtype), groups)
        biases = [steps * (-(2**self.bits - 1) / 2)] + [mx.zeros(groups, dtype)] * (len(self.widths) - 1)
        return [
            (mx.contiguous(steps * 2.0**shift), mx.contiguous(bias))
            for (_, shift), bias in zip(self.widths, biases, strict=True)
        ]

    @property
    def _group(self) -> int:
        return next(size for size in (128, 64, 32) if self.n_codes % size == 0)

    def _multiply(
        self, x: mx.array, plane: mx.array, grouped: tuple[mx.array, mx.array], width: int, *, transpose: bool
    ) -> mx.array:
        product: mx.array = mx.quantized_matmul(
            x, plane.view(mx.uint32), *grouped, transpose=transpose, group_size=self._group, bits=width
        )
        return product


def _word(n_bytes: int) -> mx.Dtype:
    """The widest word that n_bytes bytes are a whole number of."""
    return mx.uint64 if n_bytes % 8 == 0 else mx.uint32 if n_bytes % 4 == 0 else mx.uint8


def _masks(width: int, word: mx.Dtype) -> tuple[mx.array, mx.array, mx.array]:
    """For the fields of a byte, shifts and masks (fields, 1); and the mask of the lowest field."""
    per_byte, n_bytes = 8 // width, word.size
    every_byte = int.from_bytes(b"\1" * n_bytes, "little")
    fields = [width * j for j in range(per_byte)]
    numbers = np.dtype(f"u{n_bytes}")
    return (
        mx.array(np.array(fields, numbers)[:, None]),
        mx.array(np.array([((2**width - 1) << field) * every_byte for field in fields], numbers)[:, None]),
        mx.array(np.array((2**width - 1) * every_byte, numbers)),
    )
