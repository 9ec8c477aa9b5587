"""polar: angles instead of coordinates.

PolarQuant (arXiv 2502.02617), sections 2 and 3: after a random rotation, pairs of coordinates become a radius and an
angle, pairs of radii again, and so on; the angles' distributions are known beforehand and grow narrower from level to
level, so each level has one fixed table and no vector needs a scale or an offset of its own.

What differs from the paper, and why:
- The recursion goes on to one single radius; the paper stops after four levels and keeps d/16 radii in 16 bits, which
  is a bit per coordinate.
- With `bits` = b, the angles of the first level, which are uniform on the circle, get b + 1 bits (8 at b = 8) and all
  others b - 1 (8): b per coordinate. Errors of the first level's angles are the largest part of the whole, and there
  are as many of them as of all others together.
- The radius stored is the one that fits the rotated vector best for the angles chosen.
- Tables are the best ones for the angles of a Gaussian vector (Lloyd's algorithm on their exact density).
- Values are coded by `turboquant_mse`, whose sums are faster; the paper codes them like keys.

Codes of angles are no linear function of the vector, so products are taken on the unpacked direction, one
table look-up per angle.
"""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from veloxquant_mlx.quantizers.base import SCALE_DTYPE, Coded, StaticCodec
from veloxquant_mlx.quantizers.bit_planes import BitPlanes
from veloxquant_mlx.quantizers.rotation import padded, rotation

MOST_JOINED_BITS = 4  # three codes of so many bits index a table of 4,096 entries; larger ones would leave the cache

Floats = npt.NDArray[np.float64]


class Polar(StaticCodec):
    """One angle per coordinate but one, and one radius per vector.

    Coded arrays: planes of the first level's angles, planes of all other angles (and one code of padding), radii
    (n_kv_heads, n_tokens).
    """

    def __init__(self, d: int, bits: int, seed: int) -> None:
        self.d = d
        self.d_code = padded(d)
        self.rotation = rotation(d, self.d_code, seed)  # (d, d_code)
        self._back = mx.contiguous(self.rotation.T)
        first_bits, bits = (8, 8) if bits == 8 else (bits + 1, bits - 1)
        self._first = BitPlanes(first_bits, self.d_code // 2)
        self._others = BitPlanes(bits, self.d_code // 2)
        circle = (np.arange(2**first_bits) + 0.5) * (2 * np.pi / 2**first_bits)
        self._circle = _unit(circle)  # (2**first_bits, 2)
        self._levels = [_Level(pairs, n_left, bits) for pairs, n_left in tree(self.d_code)]
        self._steps = down(self._levels, bits)
        mx.eval(self._back, self._circle, [step.units for step in self._steps])

    @property
    def bytes_per_token(self) -> int:
        return self._first.bytes_per_vector + self._others.bytes_per_vector + SCALE_DTYPE.size

    def encode(self, x: mx.array) -> Coded:
        y = x.astype(mx.float32) @ self.rotation  # (n_kv_heads, n_tokens, d_code)
        n_first = 2**self._first.bits
        turns = mx.arctan2(y[..., 1::2], y[..., 0::2]) * (n_first / (2 * np.pi))
        first = mx.floor(turns).astype(mx.int32) & (n_first - 1)  # (n_kv_heads, n_tokens, d_code / 2)
        radii = mx.sqrt(y[..., 0::2] ** 2 + y[..., 1::2] ** 2)
        others = []
        for level in self._levels:
            codes, radii = level.encode(radii)
            others.append(codes)
        others.append(mx.zeros((*first.shape[:2], 1), others[0].dtype))
        planes = (*self._first.pack(first), *self._others.pack(mx.concatenate(others, axis=-1)))
        return (*planes, (y * self._directions(planes)).sum(axis=-1).astype(SCALE_DTYPE))

    def decode(self, coded: Coded) -> mx.array:
        x: mx.array = (self._directions(coded[:-1]) * coded[-1][..., None].astype(mx.float32)) @ self._back
        return x

    def scores(self, q: mx.array, coded: Coded) -> mx.array:
        y = (q.astype(mx.float32) @ self.rotation).swapaxes(-1, -2)
        dots = (self._directions(coded[:-1]) @ y).swapaxes(-1, -2)  # (n_kv_heads, m, n_tokens)
        scores: mx.array = dots * mx.expand_dims(coded[-1].astype(mx.float32), 1)
        return scores

    def combine(self, weights: mx.array, coded: Coded) -> mx.array:
        scaled = weights.astype(mx.float32) * mx.expand_dims(coded[-1].astype(mx.float32), 1)
        sums: mx.array = (scaled @ self._directions(coded[:-1])) @ self._back
        return sums

    def _directions(self, planes: tuple[mx.array, ...]) -> mx.array:
        """The unit vectors that the angles describe, (n_kv_heads, n_tokens, d_code), rotated as they are."""
        n_first = len(self._first.widths)
        others = self._others.codes(planes[n_first:])
        end = others.shape[-1] - 1
        radii = mx.ones((*others.shape[:2], 1))
        for step in self._steps:
            radii = step.decode(others[..., end - step.n_codes : end], radii)
            end -= step.n_codes
        pairs = self._circle[self._first.codes(planes[:n_first])]  # (n_kv_heads, n_tokens, d_code / 2, 2)
        return (radii[..., None] * pairs).reshape(*radii.shape[:2], -1)


class _Level:
    """One level of radii: pairs of them become one, and the last one passes where their number is odd."""

    def __init__(self, pairs: tuple[tuple[int, int], ...], n_left: int, bits: int) -> None:
        self.n_pairs = self.n_codes = len(pairs)
        self.n_left = n_left
        angles = np.stack([best_angles(*pair, bits) for pair in pairs])  # (n_pairs, 2**bits)
        self.uniform = len(set(pairs)) == 1
        if self.uniform:
            angles = angles[:1]
        between = (angles[:, 1:] + angles[:, :-1]) / 2
        # An angle is larger than another if odd / even is larger than its tangent: no angle has to be computed.
        self._slopes = mx.array(np.tan(between).astype(np.float32)[None, None])
        self.units = _unit(angles).reshape(-1, 2)
        self._offsets = mx.arange(angles.shape[0], dtype=mx.uint32) * angles.shape[1]

    def encode(self, radii: mx.array) -> tuple[mx.array, mx.array]:
        """Codes (n_kv_heads, n_tokens, n_pairs) and the radii of the next level."""
        even, odd = radii[..., 0 : 2 * self.n_pairs : 2], radii[..., 1 : 2 * self.n_pairs : 2]
        codes = (odd[..., None] > even[..., None] * self._slopes).sum(axis=-1)
        joined = mx.sqrt(even**2 + odd**2)
        return codes, mx.concatenate([joined, radii[..., 2 * self.n_pairs :]], axis=-1) if self.n_left else joined

    def decode(self, codes: mx.array, radii: mx.array) -> mx.array:
        """The radii before they were joined."""
        pairs = self.units[codes if self._offsets.size == 1 else codes + self._offsets]
        apart = (radii[..., : self.n_pairs, None] * pairs).reshape(*radii.shape[:2], -1)
        return mx.concatenate([apart, radii[..., self.n_pairs :]], axis=-1) if self.n_left else apart


class _TwoLevels:
    """Two levels at once, with one look-up of four radii by three codes, which takes hardly longer than one of two."""

    def __init__(self, upper: _Level, lower: _Level, bits: int) -> None:
        self.n_pairs = upper.n_pairs
        self.n_codes = upper.n_codes + lower.n_codes
        self._bits = bits
        codes = np.arange(2 ** (3 * bits))
        top, left, right = (codes >> (i * bits) & (2**bits - 1) for i in range(3))
        uppers, lowers = np.array(upper.units), np.array(lower.units)
        joined = [uppers[top, 0, None] * lowers[left], uppers[top, 1, None] * lowers[right]]
        self.units = mx.array(np.concatenate(joined, axis=1))  # (2**(3 * bits), 4)

    def decode(self, codes: mx.array, radii: mx.array) -> mx.array:
        """The radii before they were joined twice; the codes are the lower level's, then the upper level's."""
        codes = codes.astype(mx.uint16)
        lower, top = codes[..., : 2 * self.n_pairs], codes[..., 2 * self.n_pairs :]
        index = top | (lower[..., 0::2] << self._bits) | (lower[..., 1::2] << (2 * self._bits))
        return (radii[..., None] * self.units[index]).reshape(*radii.shape[:2], -1)


def down(levels: list[_Level], bits: int) -> list[_Level | _TwoLevels]:
    """The way back from one radius to many: the levels last to first, two at once where that is possible."""
    steps: list[_Level | _TwoLevels] = []
    left = list(levels)
    while left:
        upper = left.pop()
        lower = left[-1] if left else None
        plain = lower is not None and upper.uniform and lower.uniform and not upper.n_left and not lower.n_left
        if plain and lower is not None and lower.n_pairs == 2 * upper.n_pairs and bits <= MOST_JOINED_BITS:
            left.pop()
            steps.append(_TwoLevels(upper, lower, bits))
        else:
            steps.append(upper)
    return steps


def tree(d: int) -> list[tuple[tuple[tuple[int, int], ...], int]]:
    """For every level above the first, the dimensions under each pair of radii, and the number of radii left over."""
    sizes, levels = [2] * (d // 2), []
    while len(sizes) > 1:
        pairs = tuple(zip(sizes[0::2], sizes[1::2], strict=False))
        left = sizes[2 * len(pairs) :]
        levels.append((pairs, len(left)))
        sizes = [a + b for a, b in pairs] + left
    return levels


@lru_cache(maxsize=256)
def best_angles(k1: int, k2: int, bits: int) -> Floats:
    """The 2**bits angles with the least squared error for atan2(r2, r1), r the norms of k1 and k2 Gaussian numbers.

    Their density is proportional to cos^(k1 - 1) sin^(k2 - 1) (PolarQuant, Lemma 2, for k1 = k2).
    """
    angles = (np.arange(8192) + 0.5) * (np.pi / 2 / 8192)
    log_density = (k1 - 1) * np.log(np.cos(angles)) + (k2 - 1) * np.log(np.sin(angles))
    density = np.exp(log_density - log_density.max())
    mass, moment = (np.concatenate([[0.0], np.cumsum(x)]) for x in (density, density * angles))
    # Quantiles to begin with; then each level to the middle of what is nearest to it.
    levels = np.interp((np.arange(2**bits) + 0.5) / 2**bits, mass[1:] / mass[-1], angles)
    for _ in range(200):
        edges = np.concatenate([[0], np.searchsorted(angles, (levels[1:] + levels[:-1]) / 2), [len(angles)]])
        inside = mass[edges[1:]] - mass[edges[:-1]]
        middle = (moment[edges[1:]] - moment[edges[:-1]]) / np.where(inside > 0, inside, 1)
        levels = np.where(inside > 0, middle, levels)
    found: Floats = levels
    return found


def _unit(angles: Floats) -> mx.array:
    return mx.array(np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32))
