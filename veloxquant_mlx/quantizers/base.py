"""What every codec can do."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

# The arrays a codec makes of (n_kv_heads, n_tokens, d): each has n_tokens as its axis 1.
Coded = tuple[mx.array, ...]


class Codec(Protocol):
    """Turns vectors into packed arrays and multiplies with them. Knows nothing of tokens' order or of caches.

    Shapes: x is (n_kv_heads, n_tokens, d); q is (n_kv_heads, m, d), where m counts the queries of one key/value head;
    weights are (n_kv_heads, m, n_tokens).
    """

    d: int

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
