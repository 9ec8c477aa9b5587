"""spectral: the data's own axes, and bits where its energy is.

After SpectralQuant: keys of one head live near a few directions. Their eigenbasis is measured on the tokens that are
there when the first ones are coded, and the bits are given out by reverse water-filling (Cover and Thomas, Elements of
Information Theory, section 10.3.3), so that strong coordinates get many, weak ones few or none, and the average is
what was asked for.

What was chosen here:
- Bits are whole numbers, given to runs of 8 coordinates one by one where they lower the squared error most, with the
  true errors of the uniform quantizer instead of the formula's 2^(-2b). All heads of a layer share the runs' bits, and
  none is more than one below the average or two above.
- Text changes, and a few dozen tokens don't show the true spectrum. So the energy along each axis is measured by halves
  (on the axes of one half, in the other), a quarter of it is taken as spread evenly, and what gets the same number of
  bits is one subspace, coded as `turboquant_mse` codes: rotated at random and with a scale of its own per vector. With
  one scale for all and one step per axis, the basis measured on a text's beginning loses more on its rest than no
  basis at all (SmolLM2-135M, 112 tokens to measure on and 1,920 to code, keys, 4 bits: 1.2 to 1.4 %, against 1.03 % for
  `turboquant_mse` and 0.96 % for this).
- A basis has to earn its keep. One measured on the first half of the tokens is tried on the second; where that loses
  about as much as `turboquant_mse`, the data has no axes worth storing, and its codes are used instead.
- Values are coded the same way, in their own basis.
- The basis is stored in bfloat16. Encoding makes up for that, so nothing is lost but memory saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from veloxquant_mlx.quantizers.base import SCALE_DTYPE, Codec, Coded
from veloxquant_mlx.quantizers.bit_planes import BitPlanes
from veloxquant_mlx.quantizers.rotation import rotation
from veloxquant_mlx.quantizers.shared import shared
from veloxquant_mlx.quantizers.turboquant_mse import STEPS, TurboQuantMSE, uniform_codes

Floats = npt.NDArray[np.floating[Any]]

RUN = 8  # coordinates that share their number of bits, so that every plane fills whole bytes
BELOW, ABOVE = 1, 2  # how far a run's bits may be from the average
EVEN_PART = 0.25  # of the energy, taken as spread over all directions alike
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
        if n < 8:
            return plain
        first, second = x[:, :n], x[:, n:]
        helps = _loss(self._in_basis_of(first), second) < WORTH * _loss(plain, second)
        return self._in_basis_of(x) if helps else plain

    def _in_basis_of(self, x: mx.array) -> FittedSpectral:
        x = x.astype(mx.float32)
        n = x.shape[1] // 2
        one, other = x[:, :n], x[:, n:]
        found = (_energy(other, _axes(one)) + _energy(one, _axes(other))) / 2
        energy = -np.sort(-np.array(found), axis=1)  # (n_kv_heads, d)
        # Heads count alike, however long their vectors are.
        shares = (energy / (energy.sum(axis=1, keepdims=True) + 1e-30)).mean(axis=0)
        shares = (1 - EVEN_PART) * shares + EVEN_PART * shares.mean()
        shares = np.pad(shares, (0, self.d_code - self.d))
        return FittedSpectral(_axes(x), water_fill(shares, self.bits), self._seed)

    def encode(self, x: mx.array) -> Coded:
        raise _unfitted()

    def decode(self, coded: Coded) -> mx.array:
        raise _unfitted()

    def scores(self, q: mx.array, coded: Coded) -> mx.array:
        raise _unfitted()

    def combine(self, weights: mx.array, coded: Coded) -> mx.array:
        raise _unfitted()


def _axes(x: mx.array) -> mx.array:
    """Eigenvectors of the covariance of x (n_kv_heads, n_tokens, d), strongest first, (n_kv_heads, d, d)."""
    # MLX has it on CPU only. NumPy has one too, but with a BLAS of its own, whose threads would fight with MLX's.
    vectors = mx.linalg.eigh(x.swapaxes(1, 2) @ x, stream=mx.cpu)[1]
    return vectors[:, :, ::-1]


def _energy(x: mx.array, axes: mx.array) -> mx.array:
    """Mean square of x along each axis, (n_kv_heads, d)."""
    return ((x @ axes) ** 2).mean(axis=1)


def _loss(codec: Codec, x: mx.array) -> float:
    """Squared error of coding x, each head by its own size."""
    errors = ((codec.decode(codec.encode(x)) - x) ** 2).sum(axis=(1, 2))
    return float((errors / mx.maximum((x**2).sum(axis=(1, 2)), 1e-30)).sum())


def _unfitted() -> ValueError:
    return ValueError("spectral has no basis before it has seen data: use fitted(x) first.")


@dataclass
class _Subspace:
    """The coordinates that get the same number of bits."""

    bits: int
    planes: BitPlanes
    basis: mx.array  # (n_kv_heads, d, n_codes), rotated within itself


class FittedSpectral:
    """Codes in one eigenbasis per head.

    Coded arrays: the planes of every subspace, then their scales (n_kv_heads, n_tokens, n_subspaces).

    Args:
        axes: Columns are directions, strongest first, (n_kv_heads, d, d).
        bits: Of each, never rising, (d_code,); d_code is d or a little more, where the last axes are none.
        seed: Of the rotations.
    """

    def __init__(self, axes: mx.array, bits: list[int], seed: int) -> None:
        self.d = axes.shape[1]
        axes = mx.pad(axes, [(0, 0), (0, 0), (0, len(bits) - self.d)])
        self._subspaces: list[_Subspace] = []
        edges = [i for i in range(len(bits) + 1) if i in (0, len(bits)) or bits[i] != bits[i - 1]]
        for first, end in pairwise(edges):
            if bits[first]:  # the others are left at their mean
                n = end - first
                turned = axes[:, :, first:end] @ rotation(n, n, seed)
                planes = BitPlanes(bits[first], n)
                self._subspaces.append(_Subspace(bits[first], planes, turned.astype(SCALE_DTYPE)))
        mx.eval(self.own_arrays)

    @property
    def own_arrays(self) -> tuple[mx.array, ...]:
        return tuple(space.basis for space in self._subspaces)

    @property
    def bytes_per_token(self) -> int:
        return sum(space.planes.bytes_per_vector + SCALE_DTYPE.size for space in self._subspaces)

    def fitted(self, x: mx.array) -> FittedSpectral:
        return self

    def encode(self, x: mx.array) -> Coded:
        basis = mx.concatenate(list(self.own_arrays), axis=-1).astype(mx.float32)  # (n_kv_heads, d, kept)
        x = x.astype(mx.float32)
        y = x @ basis  # (n_kv_heads, n_tokens, kept)
        # In bfloat16 the axes are at right angles to three digits only; what that leaves is coded too.
        y = y + (x - y @ basis.swapaxes(-1, -2)) @ basis
        planes: list[mx.array] = []
        scales: list[mx.array] = []
        at = 0
        for space in self._subspaces:
            n = space.planes.n_codes
            part = y[..., at : at + n]
            at += n
            scale = mx.linalg.norm(part, axis=-1, keepdims=True) * (STEPS[space.bits] / n**0.5)
            for _ in range(2):
                codes, scale = uniform_codes(part, scale, space.bits)
            planes += space.planes.pack(codes)
            scales.append(scale)
        return (*planes, mx.concatenate(scales, axis=-1).astype(SCALE_DTYPE))

    def decode(self, coded: Coded) -> mx.array:
        total = mx.zeros(1)
        for space, planes, scales in self._parts(coded):
            z = space.planes.codes(planes).astype(mx.float32) - (2**space.bits - 1) / 2
            total = total + (z * scales[..., None]) @ space.basis.astype(mx.float32).swapaxes(-1, -2)
        return total

    def scores(self, q: mx.array, coded: Coded) -> mx.array:
        q = q.astype(mx.float32)
        total = mx.zeros(1)
        for space, planes, scales in self._parts(coded):
            y = q @ space.basis.astype(mx.float32)  # (n_kv_heads, m, n_codes)
            centre = y.sum(axis=-1, keepdims=True) * ((2**space.bits - 1) / 2)
            y = space.planes.fold(y, halved=space.planes.halved(scales.shape[1]))
            total = total + (space.planes.dots(y, planes) - centre) * mx.expand_dims(scales, 1)
        return total

    def combine(self, weights: mx.array, coded: Coded) -> mx.array:
        weights = weights.astype(mx.float32)
        total = mx.zeros(1)
        for space, planes, scales in self._parts(coded):
            basis = space.basis.astype(mx.float32)
            scaled = weights * mx.expand_dims(scales, 1)  # (n_kv_heads, m, n_tokens)
            back = space.planes.fold(basis, halved=space.planes.halved(scales.shape[1])).swapaxes(-1, -2)
            centre = basis.sum(axis=-1, keepdims=True).swapaxes(-1, -2) * ((2**space.bits - 1) / 2)
            sums = space.planes.sums(scaled, planes) @ back
            total = total + sums - scaled.sum(axis=-1, keepdims=True) * centre
        return total

    def _parts(self, coded: Coded) -> list[tuple[_Subspace, tuple[mx.array, ...], mx.array]]:
        """Each subspace with its planes and its scales, (n_kv_heads, n_tokens) float32."""
        scales = coded[-1].astype(mx.float32)
        parts, at = [], 0
        for i, space in enumerate(self._subspaces):
            n = len(space.planes.widths)
            parts.append((space, coded[at : at + n], scales[..., i]))
            at += n
        return parts


def water_fill(shares: Floats, bits: int) -> list[int]:
    """Bits of each coordinate for an average of `bits`, given where they lower the squared error most.

    Args:
        shares: Of the energy, never rising, (d_code,); d_code is a multiple of RUN.
        bits: The average, 1 to 8.
    """
    energy = shares.reshape(-1, RUN).sum(axis=1)
    least, most = max(0, bits - BELOW), min(8, bits + ABOVE)
    given = np.full(len(energy), least)
    errors = np.array([*ERRORS, ERRORS[-1]])
    for _ in range((bits - least) * len(energy)):
        gains = np.where(given < most, energy * (errors[given] - errors[given + 1]) + 1e-300, -1.0)
        given[np.argmax(gains)] += 1
    given = -np.sort(-given)
    return [int(b) for b in np.repeat(given, RUN)]
