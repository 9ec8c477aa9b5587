"""spectral: the data's own axes, and bits where its energy is.

After SpectralQuant: keys of one head live near a few directions. Their eigenbasis is measured on the tokens that are
there when the first ones are coded, and the bits are given out by reverse water-filling (Cover and Thomas, Elements of
Information Theory, section 10.3.3), so that strong coordinates get many, weak ones few or none, and the average is
what was asked for.

What was chosen here:
- Bits are whole numbers, given to runs of 8 coordinates one by one where they lower the squared error most, with the
  true errors of the uniform quantizer instead of the formula's 2^(-2b). All heads of a layer share the run's bits.
- A few dozen tokens don't show the true spectrum: their smallest eigenvalues come out too small, their largest too
  large. So the energy along each axis is measured by halves: on the axes of every other token, in the rest.
- Every vector has a scale of its own, since norms change along a text and calibration saw its beginning only. It is the
  least-squares one with every coordinate in units of its own spread, so that one huge channel doesn't set it alone.
- A basis has to earn its keep. One measured on the first half of the tokens is tried on the second; if that loses about
  as much as `turboquant_mse` does there, the data has no axes worth storing, and its codes are used instead.
- Values are coded the same way, in their own basis.
- The basis is stored in bfloat16. Encoding makes up for that, so nothing is lost but memory saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from veloxquant_mlx.quantizers.base import SCALE_DTYPE, Codec, Coded
from veloxquant_mlx.quantizers.bit_planes import BitPlanes
from veloxquant_mlx.quantizers.shared import shared
from veloxquant_mlx.quantizers.turboquant_mse import STEPS, TurboQuantMSE

Floats = npt.NDArray[np.float64]

RUN = 8  # coordinates that share their number of bits, so that every plane fills whole bytes
MOST_BITS = 8

WORTH = 0.95  # a basis must lose no more than this part of what a random rotation does

# Squared error of the uniform quantizer for a unit Gaussian at 0 to 8 bits.
ERRORS = (1.0, 0.3634, 0.1188, 0.03744, 0.01154, 0.003495, 0.001041, 0.0003035, 0.0000873)


class Spectral:
    """What `spectral` is before it has seen data: it can only be fitted."""

    own_arrays: tuple[mx.array, ...] = ()

    def __init__(self, d: int, bits: int, seed: int) -> None:
        self.d = d
        self.bits = bits
        self.d_code = -(-d // RUN) * RUN
        self._seed = seed

    @property
    def bytes_per_token(self) -> int:
        return self.d_code * self.bits // 8 + SCALE_DTYPE.size

    def fitted(self, x: mx.array) -> Codec:
        """A codec in the eigenbasis of x, (n_kv_heads, n_tokens, d), which should have no mean left.

        It is that of turboquant_mse where an eigenbasis doesn't help, or there are too few tokens to tell.
        """
        plain = shared(TurboQuantMSE, self.d, self.bits, self._seed)
        n = x.shape[1] // 2
        if n < 4:
            return plain
        first, second = x[:, :n], x[:, n:]
        helps = _loss(self._in_basis_of(first), second) < WORTH * _loss(plain, second)
        return self._in_basis_of(x) if helps else plain

    def _in_basis_of(self, x: mx.array) -> FittedSpectral:
        data = np.array(x.astype(mx.float32)).astype(np.float64)
        # What the basis of one half finds in the other is the energy that later tokens will have along such axes.
        halves = data[:, 0::2], data[:, 1::2]
        energy = (_energy(halves[1], _axes(halves[0])) + _energy(halves[0], _axes(halves[1]))) / 2  # (n_kv_heads, d)
        energy = -np.sort(-energy, axis=1)
        energy, axes = (np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, self.d_code - self.d)]) for a in (energy, _axes(data)))
        # Heads count alike, however long their vectors are.
        shares = (energy / (energy.sum(axis=1, keepdims=True) + 1e-30)).mean(axis=0)
        spread = np.sqrt(np.maximum(energy, 1e-12 * energy[:, :1] + 1e-30))
        return FittedSpectral(self.d, self.bytes_per_token, axes, spread, water_fill(shares, self.bits))

    def encode(self, x: mx.array) -> Coded:
        raise _unfitted()

    def decode(self, coded: Coded) -> mx.array:
        raise _unfitted()

    def scores(self, q: mx.array, coded: Coded) -> mx.array:
        raise _unfitted()

    def combine(self, weights: mx.array, coded: Coded) -> mx.array:
        raise _unfitted()


def _axes(x: Floats) -> Floats:
    """Eigenvectors of the covariance of x (n_kv_heads, n_tokens, d), strongest first, (n_kv_heads, d, d)."""
    vectors: Floats = np.linalg.eigh(x.swapaxes(1, 2) @ x)[1][:, :, ::-1]
    return vectors


def _energy(x: Floats, axes: Floats) -> Floats:
    """Mean square of x along each axis, (n_kv_heads, d)."""
    found: Floats = ((x @ axes) ** 2).mean(axis=1)
    return found


def _loss(codec: Codec, x: mx.array) -> float:
    """Squared error of coding x, each head by its own size."""
    errors = ((codec.decode(codec.encode(x)) - x) ** 2).sum(axis=(1, 2))
    return float((errors / mx.maximum((x**2).sum(axis=(1, 2)), 1e-30)).sum())


def _unfitted() -> ValueError:
    return ValueError("spectral has no basis before it has seen data: use fitted(x) first.")


@dataclass
class _Run:
    """Neighbouring coordinates with the same bits."""

    first: int
    end: int
    planes: BitPlanes


class FittedSpectral:
    """Codes in one eigenbasis per head.

    Coded arrays: the planes of every run of coordinates with equal bits, then scales (n_kv_heads, n_tokens).

    Args:
        d: Coordinates of a vector.
        bytes_per_token: Of its codes and scale.
        basis: Columns are directions, strongest first, (n_kv_heads, d, d_code).
        spread: Standard deviation along each, (n_kv_heads, d_code).
        bits: Of each, never rising, (d_code,).
    """

    def __init__(self, d: int, bytes_per_token: int, basis: Floats, spread: Floats, bits: list[int]) -> None:
        self.d = d
        self.bytes_per_token = bytes_per_token
        kept = sum(b > 0 for b in bits)  # the others are left at their mean
        edges = [i for i in range(kept + 1) if i in (0, kept) or bits[i] != bits[i - 1]]
        self._runs = [_Run(first, end, BitPlanes(bits[first], end - first)) for first, end in pairwise(edges)]
        self._basis = mx.array(basis[:, :, :kept].astype(np.float32)).astype(SCALE_DTYPE)  # (n_kv_heads, d, kept)
        # In units of one code: (n_kv_heads, 1, kept)
        steps = np.array([STEPS[b] for b in bits[:kept]])
        units = spread[:, None, :kept] * steps
        self._units = mx.array(units.astype(np.float32))
        self._centres = mx.array(np.array([(2**b - 1) / 2 for b in bits[:kept]], np.float32))
        self._most = mx.array(np.array([2**b - 1 for b in bits[:kept]], np.float32))
        self._steps = mx.array(steps.astype(np.float32))
        mx.eval(self._basis, self._units)

    @property
    def own_arrays(self) -> tuple[mx.array, ...]:
        return (self._basis, self._units)

    def fitted(self, x: mx.array) -> FittedSpectral:
        return self

    def encode(self, x: mx.array) -> Coded:
        x, basis = x.astype(mx.float32), self._basis.astype(mx.float32)
        y = x @ basis  # (n_kv_heads, n_tokens, kept)
        # In bfloat16 the axes are at right angles to three digits only; what that leaves is coded too.
        y = (y + (x - y @ basis.swapaxes(-1, -2)) @ basis) / self._units
        # In units of the spread each coordinate counts alike, and a vector like those of the calibration has scale 1.
        weights = self._steps**2
        scale = mx.sqrt((weights * y**2).mean(axis=-1, keepdims=True))
        for _ in range(2):
            codes = mx.clip(mx.floor(y / mx.maximum(scale, 1e-30) + self._centres + 0.5), 0, self._most)
            z = codes - self._centres
            scale = (weights * z * y).sum(axis=-1, keepdims=True) / (weights * z * z).sum(axis=-1, keepdims=True)
        planes = [p for run in self._runs for p in run.planes.pack(codes[..., run.first : run.end])]
        return (*planes, scale[..., 0].astype(SCALE_DTYPE))

    def decode(self, coded: Coded) -> mx.array:
        codes = [run.planes.codes(planes) for run, planes in self._parts(coded)]
        z = mx.concatenate(codes, axis=-1).astype(mx.float32) - self._centres
        scaled = z * self._units * coded[-1][..., None].astype(mx.float32)
        x: mx.array = scaled @ self._basis.astype(mx.float32).swapaxes(-1, -2)
        return x

    def scores(self, q: mx.array, coded: Coded) -> mx.array:
        y = (q.astype(mx.float32) @ self._basis.astype(mx.float32)) * self._units  # (n_kv_heads, m, kept)
        total = -(y * self._centres).sum(axis=-1, keepdims=True)
        for run, planes in self._parts(coded):
            part = run.planes.fold(y[..., run.first : run.end], halved=run.planes.halved(planes[0].shape[1]))
            total = total + run.planes.dots(part, planes)
        scores: mx.array = total * mx.expand_dims(coded[-1].astype(mx.float32), 1)
        return scores

    def combine(self, weights: mx.array, coded: Coded) -> mx.array:
        scaled = weights.astype(mx.float32) * mx.expand_dims(coded[-1].astype(mx.float32), 1)
        back = self._basis.astype(mx.float32) * self._units  # (n_kv_heads, d, kept)
        out = (scaled.sum(axis=-1, keepdims=True) * -self._centres) @ back.swapaxes(-1, -2)
        for run, planes in self._parts(coded):
            part = run.planes.fold(back[..., run.first : run.end], halved=run.planes.halved(planes[0].shape[1]))
            out = out + run.planes.sums(scaled, planes) @ part.swapaxes(-1, -2)
        return out

    def _parts(self, coded: Coded) -> list[tuple[_Run, tuple[mx.array, ...]]]:
        parts, at = [], 0
        for run in self._runs:
            n = len(run.planes.widths)
            parts.append((run, coded[at : at + n]))
            at += n
        return parts


def water_fill(shares: Floats, bits: int) -> list[int]:
    """Bits of each coordinate for an average of `bits`, given where they lower the squared error most.

    Args:
        shares: Of the energy, never rising, (d_code,); d_code is a multiple of RUN.
        bits: The average, 1 to 8.
    """
    energy = shares.reshape(-1, RUN).sum(axis=1)
    given = np.zeros(len(energy), int)
    errors = np.array([*ERRORS, ERRORS[-1]])  # no gain beyond MOST_BITS
    for _ in range(bits * len(energy)):
        gains = np.where(given < MOST_BITS, energy * (errors[given] - errors[given + 1]) + 1e-300, -1.0)
        given[np.argmax(gains)] += 1
    given = -np.sort(-given)
    return [int(b) for b in np.repeat(given, RUN)]
