"""affine: MLX's own grouped affine quantization, as mlx-lm's quantized cache uses it; the baseline to beat.

Every group of 64 coordinates (32 where d is no multiple of 64) has a scale and a bias in the type of its input. No
rotation, no centring, and the cache keeps neither first nor latest tokens exact for it, since mlx-lm doesn't.
"""

from __future__ import annotations

import mlx.core as mx

from veloxquant_mlx.quantizers.base import Coded, StaticCodec, on_cpu
from veloxquant_mlx.quantizers.rotation import padded


class Affine(StaticCodec):
    """`bits` bits per coordinate, and a scale and a bias per group.

    Coded arrays: codes as `mx.quantize` packs them, scales and biases.

    Args:
        dtype: Of scales and biases; what x comes in.
    """

    def __init__(self, d: int, bits: int, dtype: mx.Dtype = mx.float32) -> None:
        self.d = d
        self.bits = bits
        self.dtype = dtype
        self.d_code = padded(d)
        self._on_cpu = on_cpu()
        self.group_size = 64 if self.d_code % 64 == 0 else 32

    @property
    def bytes_per_token(self) -> int:
        return self.d_code * self.bits // 8 + self.d_code // self.group_size * 2 * self.dtype.size

    def fitted(self, x: mx.array) -> Affine:
        return Affine(self.d, self.bits, x.dtype)

    def encode(self, x: mx.array) -> Coded:
        return tuple(mx.quantize(self._pad(x.astype(self.dtype)), self.group_size, self.bits))

    def decode(self, coded: Coded) -> mx.array:
        codes, scales, biases = coded
        x: mx.array = mx.dequantize(codes, scales, biases, self.group_size, self.bits)
        return x[..., : self.d].astype(mx.float32)

    def scores(self, q: mx.array, coded: Coded) -> mx.array:
        return self._multiply(self._pad(q), coded, transpose=True)

    def combine(self, weights: mx.array, coded: Coded) -> mx.array:
        return self._multiply(weights, coded, transpose=False)[..., : self.d]

    def _multiply(self, x: mx.array, coded: Coded, *, transpose: bool) -> mx.array:
        codes, scales, biases = coded
        # On CPU, MLX multiplies with 16-bit scales forty times slower than with float32 ones.
        dtype = mx.float32 if self._on_cpu else self.dtype
        scales, biases = scales.astype(dtype), biases.astype(dtype)
        product = mx.quantized_matmul(
            x.astype(dtype), codes, scales, biases, transpose=transpose, group_size=self.group_size, bits=self.bits
        )
        product32: mx.array = product.astype(mx.float32)
        return product32

    def _pad(self, x: mx.array) -> mx.array:
        missing = self.d_code - self.d
        return mx.pad(x, [(0, 0), (0, 0), (0, missing)]) if missing else x
