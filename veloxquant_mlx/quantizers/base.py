"""What every codec can do."""

from __future__ import annotations

from typing import Protocol, Self

import mlx.core as mx

# The arrays a codec makes of (n_kv_heads, n_tokens, d): each has n_tokens as its axis 1.
Coded = tuple[mx.array, ...]

# Scales and norms, one per vector. bfloat16 for its range: a float16 scale would overflow for vectors longer than
# 65,504, and on CPU, MLX makes float32 of it ten times faster. Its 8 bits cost a relative error of 1.3e-6 in square.
SCALE_DTYPE = mx.bfloat16


class Codec(Protocol):
    """Turns vectors into packed arrays and multiplies with them. Knows nothing of tokens' order or of caches.

    Shapes: x is (n_kv_heads, n_tokens, d); q is (n_kv_heads, m, d), where m counts the queries of one key/value head;
    weights are (n_kv_heads, m, n_tokens).
    """

    d: int

    def fitted(self, x: mx.array) -> Codec:
        """The codec to use for data like x; itself where it suits all data."""

    def encode(self, x: mx.array) -> Coded:
        """The packed arrays for x."""

    def decode(self, coded: Coded) -> mx.array:
        """What encode kept of x, float32, (n_kv_heads, n_tokens, d)."""

    def scores(self, q: mx.array, coded: Coded) -> mx.array:
        """Inner products of q with every coded vector, float32, (n_kv_heads, m, n_tokens), on the packed codes."""

    def combine(self, weights: mx.array, coded: Coded) -> mx.array:
        """Sums of the coded vectors under weights, float32, (n_kv_heads, m, d)."""

    @property
    def bytes_per_token(self) -> int:
        """Packed bytes of one vector of one head."""

    @property
    def own_arrays(self) -> tuple[mx.array, ...]:
        """What it learned from data; shared tables and rotations are nobody's own."""


class StaticCodec:
    """What codecs have in common that learn nothing from data."""

    def fitted(self, x: mx.array) -> Self:
        return self

    @property
    def own_arrays(self) -> tuple[mx.array, ...]:
        return ()


def on_cpu() -> bool:
    """Whether arrays are computed on the CPU by default."""
    return bool(mx.default_device().type == mx.DeviceType.cpu)
