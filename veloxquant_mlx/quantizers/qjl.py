"""qjl: the signs of a random sketch, and the vector's norm.

QJL (arXiv 2406.03482), section 3 and Definition 3.1: with S a random matrix, |x| * Sum_j <s_j, q> sign<s_j, x> times a
constant is an unbiased estimate of <q, x>, so a key can be kept as signs and a norm while the query stays exact.

What differs from the paper, and why:
- The rows of S are not independent Gaussians: S is one random rotation, or several stacked. The estimate stays unbiased
  (each row is uniform on the sphere, which is all the proof uses), and its variance falls from pi/2 to pi/2 - 1 times
  |q|^2 |x|^2 / d per rotation, for q at right angles to x, because orthogonal rows don't measure the same thing twice.
- The paper keeps outlier channels apart. Here the cache takes the mean out first, which carries most of them.
- The number of signs per coordinate is `bits`: more bits are more rotations. Twice the bits halve the error only,
  where a scalar quantizer's falls to a sixteenth from 2 bits to 4; that is the price of having no scale to choose.
- Values are coded by `turboquant_mse` (the paper quantizes them per token).
"""

from __future__ import annotations

import math

import mlx.core as mx

from veloxquant_mlx.quantizers.base import SCALE_DTYPE, Coded
from veloxquant_mlx.quantizers.linear_codes import LinearCodec, LinearCodes
from veloxquant_mlx.quantizers.rotation import padded, rotation


class QJL(LinearCodec):
    """`bits` signs per coordinate and the norm.

    Coded arrays: a plane of signs, then norms (n_kv_heads, n_tokens).
    """

    def __init__(self, d: int, bits: int, seed: int) -> None:
        self.d = d
        self.d_code = padded(d)
        self.bits = bits
        self.sketch = mx.concatenate([rotation(d, self.d_code, seed + i) for i in range(bits)], axis=1)
        # E|u_1| of a uniform unit vector u in d_code dimensions: what one row contributes along x.
        half = self.d_code / 2
        mean = math.exp(math.lgamma(half) - math.lgamma(half + 0.5)) / math.sqrt(math.pi)
        # A sign is 2 * (code - 1/2).
        self.linear = LinearCodes(self.sketch * (2 / (mean * self.d_code * bits)), 1)
        mx.eval(self.sketch)

    def encode(self, x: mx.array) -> Coded:
        x = x.astype(mx.float32)
        signs = (x @ self.sketch) >= 0  # (n_kv_heads, n_tokens, bits * d_code)
        return (*self.linear.planes.pack(signs), mx.linalg.norm(x, axis=-1).astype(SCALE_DTYPE))
