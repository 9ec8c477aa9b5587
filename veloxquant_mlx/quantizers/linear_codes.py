"""LinearCodes: vectors that are a matrix times small integers, which is what most methods come down to."""

from __future__ import annotations

import mlx.core as mx

from veloxquant_mlx.quantizers.base import SCALE_DTYPE, Coded, StaticCodec, on_cpu
from veloxquant_mlx.quantizers.bit_planes import BitPlanes


class LinearCodes:
    """Products with vectors scale * P (code - centre), on the packed codes.

    Args:
        projection: P, (d, n_codes) float32.
        bits: Of the codes; centre is (2**bits - 1) / 2.
    """

    def __init__(self, projection: mx.array, bits: int) -> None:
        self.bits = bits
        self.centre = (2**bits - 1) / 2
        self.projection = projection
        self.planes = BitPlanes(bits, projection.shape[1])
        self.by_blas = on_cpu()
        if self.by_blas:
            self._folded = {
                halved: self.planes.fold(projection, halved=halved) for halved in self._ways()
            }  # (d, n_codes)
            self._folded_t = {halved: mx.contiguous(folded.T) for halved, folded in self._folded.items()}
            self._centre = projection.sum(axis=1, keepdims=True) * -self.centre  # (d, 1): what the centre adds
            self._centre_t = mx.contiguous(self._centre.T)
            mx.eval(self._folded, self._folded_t, self._centre, self._centre_t)

    def decode(self, planes: tuple[mx.array, ...], scales: mx.array) -> mx.array:
        """The vectors, (n_kv_heads, n_tokens, d) float32; scales is (n_kv_heads, n_tokens)."""
        z = self.planes.codes(planes).astype(mx.float32) - self.centre  # (n_kv_heads, n_tokens, n_codes)
        x: mx.array = (z * scales[..., None].astype(mx.float32)) @ self.projection.T
        return x

    def scores(self, q: mx.array, planes: tuple[mx.array, ...], scales: mx.array) -> mx.array:
        """q (n_kv_heads, m, d) float32 times the vectors, (n_kv_heads, m, n_tokens)."""
        if not self.by_blas:
            return self.planes.quantized_dots(q @ self.projection, planes, scales)
        dots = self.planes.dots(q @ self._folded[self._halved(planes)], planes) + q @ self._centre
        scores: mx.array = dots * mx.expand_dims(scales.astype(mx.float32), 1)
        return scores

    def combine(self, weights: mx.array, planes: tuple[mx.array, ...], scales: mx.array) -> mx.array:
        """Sums of the vectors under weights (n_kv_heads, m, n_tokens) float32, (n_kv_heads, m, d)."""
        if not self.by_blas:
            sums: mx.array = self.planes.quantized_sums(weights, planes, scales) @ self.projection.T
            return sums
        scaled = weights * mx.expand_dims(scales.astype(mx.float32), 1)  # (n_kv_heads, m, n_tokens)
        out = self.planes.sums(scaled, planes) @ self._folded_t[self._halved(planes)]
        return mx.addmm(out, scaled.sum(axis=-1, keepdims=True), self._centre_t)

    def _ways(self) -> tuple[bool, ...]:
        return (False, True) if self.bits == 4 else (False,)

    def _halved(self, planes: tuple[mx.array, ...]) -> bool:
        return self.planes.halved(planes[0].shape[1])


class LinearCodec(StaticCodec):
    """What codecs have in common whose vectors are LinearCodes with one scale each.

    Coded arrays: the planes of `BitPlanes.pack`, then scales (n_kv_heads, n_tokens).
    """

    linear: LinearCodes

    @property
    def bytes_per_token(self) -> int:
        return self.linear.planes.bytes_per_vector + SCALE_DTYPE.size

    def decode(self, coded: Coded) -> mx.array:
        *planes, scales = coded
        return self.linear.decode(tuple(planes), scales)

    def scores(self, q: mx.array, coded: Coded) -> mx.array:
        *planes, scales = coded
        return self.linear.scores(q, tuple(planes), scales)

    def combine(self, weights: mx.array, coded: Coded) -> mx.array:
        *planes, scales = coded
        return self.linear.combine(weights, tuple(planes), scales)
