"""turboquant_mse: a random rotation, then the same scalar quantizer on every coordinate.

TurboQuant (arXiv 2504.19874), section 3.1 and Algorithm 1: after a random rotation each coordinate of a vector is
close to Gaussian with variance |x|^2 / d, whatever the vector was, so one fixed scalar quantizer suits all data.

What differs from the paper, and why:
- The levels are uniform instead of Lloyd-Max, because then the packed codes are what `mx.quantized_matmul` multiplies
  with directly. The cost in squared error is nothing at 1 bit, 1 % at 2, 8 % at 3 and 21 % at 4.
- The stored scale is the least-squares step for the codes chosen, not the vector's norm; and the codes are chosen
  twice, the second time with that step. That wins part of it back.
- Where d is no multiple of 32 the rotation maps into the next one, since the packed words need it.
"""

from __future__ import annotations

import mlx.core as mx

from veloxquant_mlx.quantizers.base import SCALE_DTYPE, Coded
from veloxquant_mlx.quantizers.linear_codes import LinearCodec, LinearCodes
from veloxquant_mlx.quantizers.rotation import padded, rotation

# Steps of the uniform quantizer with the least mean squared error for a unit Gaussian (Max, 1960, table II, extended).
STEPS = {1: 1.5958, 2: 0.9957, 3: 0.5860, 4: 0.3352, 5: 0.1881, 6: 0.1041, 7: 0.0569, 8: 0.0308}


class TurboQuantMSE(LinearCodec):
    """Codes of `bits` bits per coordinate and one scale per vector.

    Coded arrays: the planes of `BitPlanes.pack`, then scales (n_kv_heads, n_tokens).
    """

    def __init__(self, d: int, bits: int, seed: int) -> None:
        self.d = d
        self.bits = bits
        self.d_code = padded(d)
        self.rotation = rotation(d, self.d_code, seed)  # (d, d_code)
        self.linear = LinearCodes(self.rotation, bits)

    def encode(self, x: mx.array) -> Coded:
        y = x.astype(mx.float32) @ self.rotation  # (n_kv_heads, n_tokens, d_code)
        step = mx.linalg.norm(y, axis=-1, keepdims=True) * (STEPS[self.bits] / self.d_code**0.5)
        codes, scales = uniform_codes(y, step, self.bits)
        codes, scales = uniform_codes(y, scales, self.bits)
        return (*self.linear.planes.pack(codes), scales[..., 0].astype(SCALE_DTYPE))


def uniform_codes(y: mx.array, step: mx.array, bits: int) -> tuple[mx.array, mx.array]:
    """The nearest codes of y (n_kv_heads, n_tokens, d) for a step, and the step that fits these codes best.

    Both steps are (n_kv_heads, n_tokens, 1). Codes are whole numbers in [0, 2**bits) as float32.
    """
    centre = (2**bits - 1) / 2
    codes = mx.clip(mx.floor(y / mx.maximum(step, 1e-30) + 2 ** (bits - 1)), 0, 2**bits - 1)
    z = codes - centre
    # Least squares; z is never zero, as a code is never the centre.
    return codes, (z * y).sum(axis=-1, keepdims=True) / (z * z).sum(axis=-1, keepdims=True)
