"""turboquant_prod: `turboquant_mse` with one bit less, and one bit of QJL for what it leaves over.

TurboQuant (arXiv 2504.19874), section 3.2 and Algorithm 2: a quantizer with the least squared error gives inner
products that are biased towards zero. Adding an unbiased estimate of the residual's part makes the whole unbiased.

What differs from the paper, and why: see `turboquant_mse` for the first part; the second is this library's `qjl`, whose
sketch is a random rotation instead of a Gaussian matrix, with the same expectation and a third of the variance. Values
are coded by `turboquant_mse`, since sums of values gain nothing from unbiased inner products.
"""

from __future__ import annotations

import mlx.core as mx

from veloxquant_mlx.quantizers.base import Coded, StaticCodec
from veloxquant_mlx.quantizers.qjl import QJL
from veloxquant_mlx.quantizers.turboquant_mse import TurboQuantMSE

RESIDUAL_SEED = 7919  # added to the seed: the sketch must not depend on the first rotation


class TurboQuantProd(StaticCodec):
    """Codes of `bits - 1` bits per coordinate with a scale, and a sign per coordinate with the residual's norm.

    Coded arrays: those of TurboQuantMSE, then those of QJL.
    """

    def __init__(self, d: int, bits: int, seed: int) -> None:
        self.d = d
        self.bits = bits
        self.mse = TurboQuantMSE(d, bits - 1, seed)
        self.residual = QJL(d, 1, seed + RESIDUAL_SEED)

    @property
    def bytes_per_token(self) -> int:
        return self.mse.bytes_per_token + self.residual.bytes_per_token

    def encode(self, x: mx.array) -> Coded:
        first = self.mse.encode(x)
        return (*first, *self.residual.encode(x.astype(mx.float32) - self.mse.decode(first)))

    def decode(self, coded: Coded) -> mx.array:
        return self.mse.decode(coded[:-2]) + self.residual.decode(coded[-2:])

    def scores(self, q: mx.array, coded: Coded) -> mx.array:
        return self.mse.scores(q, coded[:-2]) + self.residual.scores(q, coded[-2:])

    def combine(self, weights: mx.array, coded: Coded) -> mx.array:
        return self.mse.combine(weights, coded[:-2]) + self.residual.combine(weights, coded[-2:])
