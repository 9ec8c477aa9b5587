"""turboquant_mse: a random rotation, then the same scalar quantizer on every coordinate.

TurboQuant (arXiv 2504.19874), section 3.1 and Algorithm 1: after a random rotation each coordinate of a vector is
close to Gaussian with variance |x|^2 / d, whatever the vector was, so one fixed scalar quantizer suits all data.

What differs from the paper, and why:
- The levels are uniform instead of Lloyd-Max, because then the packed codes are what `mx.quantized_matmul` multiplies
  with directly. The cost in squared error is nothing at 1 bit, 1 % at 2, 8 % at 3 and 21 % at 4.
- The stored scale is the least-squares step for the codes chosen, not the vector's norm; that wins part of it back.
- Where d is no multiple of 32 the rotation maps into the next one, since the packed words need it.
"""

from __future__ import annotations

import mlx.core as mx

from veloxquant_mlx.quantizers import bit_planes
from veloxquant_mlx.quantizers.base import Coded
from veloxquant_mlx.quantizers.rotation import rotation

# Steps of the uniform quantizer with the least mean squared error for a unit Gaussian (Max, 1960, table II, extended).
STEPS = {1: 1.5958, 2: 0.9957, 3: 0.5860, 4: 0.3352, 5: 0.1881, 6: 0.1041, 7: 0.0569, 8: 0.0308}


class TurboQuantMSE:
    """Codes of `bits` bits per coordinate and one float16 scale per vector.

    Coded arrays: the planes of `bit_planes.pack`, then scales (n_kv_heads, n_tokens) float16.
    """

    def __init__(self, d: int, bits: int, seed: int) -> None:
        self.d = d
        self.bits = bits
        self.d_code = -(-d // bit_planes.WORD) * bit_planes.WORD
        self.rotation = rotation(d, self.d_code, seed)  # (d, d_code)
        self._centre = (2**bits - 1) / 2
        self._on_cpu = mx.default_device().type == mx.DeviceType.cpu

    @property
    def bytes_per_token(self) -> int:
        return self.d_code * self.bits // 8 + 2

    def encode(self, x: mx.array) -> Coded:
        y = x.astype(mx.float32) @ self.rotation  # (n_kv_heads, n_tokens, d_code)
        step = mx.linalg.norm(y, axis=-1, keepdims=True) * (STEPS[self.bits] / self.d_code**0.5)
        codes = mx.clip(mx.floor(y / mx.maximum(step, 1e-30) + 2 ** (self.bits - 1)), 0, 2**self.bits - 1)
        z = codes - self._centre
        scales = (z * y).sum(-1) / (z * z).sum(-1)  # (n_kv_heads, n_tokens): least squares for these codes
        return (*bit_planes.pack(codes, self.bits), scales.astype(mx.float16))

    def decode(self, coded: Coded) -> mx.array:
        *planes, scales = coded
        z = bit_planes.unpack(tuple(planes), self.bits) - self._centre  # (n_kv_heads, n_tokens, d_code)
        x: mx.array = (z * scales[..., None].astype(mx.float32)) @ self.rotation.T
        return x

    def scores(self, q: mx.array, coded: Coded) -> mx.array:
        *planes, scales = coded
        y = q.astype(mx.float32) @ self.rotation  # (n_kv_heads, m, d_code)
        if not self._on_cpu:
            return bit_planes.quantized_dot(y, tuple(planes), scales, self.bits, transpose=True)
        dots = bit_planes.codes_dot(y, tuple(planes), self.bits)  # (n_kv_heads, m, n_tokens)
        scores: mx.array = (dots - self._centre * y.sum(-1, keepdims=True)) * scales[:, None].astype(mx.float32)
        return scores

    def combine(self, weights: mx.array, coded: Coded) -> mx.array:
        *planes, scales = coded
        weights = weights.astype(mx.float32)
        if not self._on_cpu:
            out = bit_planes.quantized_dot(weights, tuple(planes), scales, self.bits, transpose=False)
        else:
            scaled = weights * scales[:, None].astype(mx.float32)  # (n_kv_heads, m, n_tokens)
            out = bit_planes.weights_dot(scaled, tuple(planes), self.bits)
            out = out - self._centre * scaled.sum(-1, keepdims=True)
        return out @ self.rotation.T
