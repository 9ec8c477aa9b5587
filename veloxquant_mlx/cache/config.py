"""KVCacheConfig and the table of methods: what can be asked for, as plain data (no MLX needed to read it)."""

from __future__ import annotations

from dataclasses import InitVar, dataclass

from veloxquant_mlx.core.exceptions import QuantizerConfigError

ANY_BITS = (1, 2, 3, 4, 5, 6, 7, 8)


@dataclass(frozen=True, slots=True)
class Method:
    """One row of `METHODS`.

    Attributes:
        title: A short name for people.
        summary: One sentence on what it does to keys and values.
        bits: The bits per key coordinate it can use; empty where it stores arrays as they come.
        value_bits: The same for values.
        plain: Everything is coded at once and as it is: no sink, no window, no centring.
    """

    title: str
    summary: str
    bits: tuple[int, ...]
    value_bits: tuple[int, ...]
    plain: bool = False


METHODS: dict[str, Method] = {
    "fp16": Method("fp16", "Keys and values as the model makes them, uncompressed.", (), ()),
    "turboquant_mse": Method(
        "TurboQuant",
        "A random rotation, then one small integer per coordinate; the first and the latest tokens stay exact.",
        ANY_BITS,
        ANY_BITS,
    ),
    "turboquant_prod": Method(
        "TurboQuant prod",
        "As TurboQuant with one bit less, and one bit for the rest of each key, so that scores are right on average.",
        ANY_BITS[1:],
        ANY_BITS,
    ),
    "spectral": Method(
        "Spectral",
        "Measures the directions that a chat's own keys and values lie in, and gives the strong ones more bits.",
        ANY_BITS,
        ANY_BITS,
    ),
    "polar": Method(
        "Polar",
        "A random rotation, then angles instead of coordinates for keys; values as in TurboQuant.",
        ANY_BITS[1:],
        ANY_BITS,
    ),
    "qjl": Method(
        "QJL",
        "Only the signs of random projections of each key, and its length; values as in TurboQuant.",
        ANY_BITS,
        ANY_BITS,
    ),
    "affine": Method(
        "MLX affine",
        "What mlx-lm's quantized cache does: every token coded in groups of 64, none kept exact.",
        (2, 3, 4, 5, 6, 8),
        (2, 3, 4, 5, 6, 8),
        plain=True,
    ),
}


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """What `KVCacheFactory.create` builds a cache from.

    Attributes:
        method: A key of `METHODS`.
        head_dim: Coordinates of a key (d).
        n_kv_heads: Key/value heads one cache serves.
        value_head_dim: Coordinates of a value; None where it is head_dim.
        key_bits: Bits per key coordinate; None is 4.
        value_bits: Bits per value coordinate; None is key_bits.
        sink: First tokens kept exact: they draw most attention and quantize worst (StreamingLLM, arXiv 2309.17453).
        window: Most recent tokens always kept exact.
        seal_step: Tokens coded at once when they leave the window.
        seed: Fixes the random rotation.
        bit_width_inlier: Another name for key_bits (the public library's).

    `affine` has no use for sink, window and seal_step, and `fp16` for bits either.

    Raises:
        QuantizerConfigError: (a ValueError) naming what is allowed.
    """

    method: str = "turboquant_mse"
    head_dim: int = 128
    n_kv_heads: int = 1
    value_head_dim: int | None = None
    key_bits: int | None = None
    value_bits: int | None = None
    sink: int = 16
    window: int = 64
    seal_step: int = 32
    seed: int = 42
    bit_width_inlier: InitVar[int | None] = None

    def __post_init__(self, bit_width_inlier: int | None) -> None:
        if self.method not in METHODS:
            raise QuantizerConfigError(
                f"There is no cache method {self.method!r} in this version; choose one of: {', '.join(METHODS)}."
            )
        if bit_width_inlier is not None:
            if self.key_bits not in (None, bit_width_inlier):
                raise QuantizerConfigError(
                    f"key_bits={self.key_bits} and bit_width_inlier={bit_width_inlier} are two names for one setting "
                    f"and disagree; give one of them."
                )
            object.__setattr__(self, "key_bits", bit_width_inlier)
        if self.key_bits is None:
            object.__setattr__(self, "key_bits", 4)
        if self.value_bits is None:
            object.__setattr__(self, "value_bits", self.key_bits)
        if self.value_head_dim is None:
            object.__setattr__(self, "value_head_dim", self.head_dim)
        method = METHODS[self.method]
        for name, allowed in (("key_bits", method.bits), ("value_bits", method.value_bits)):
            bits = getattr(self, name)
            if allowed and (type(bits) is not int or bits not in allowed):
                raise QuantizerConfigError(
                    f"{self.method} can't store {name}={bits!r}; choose one of: {', '.join(map(str, allowed))}."
                )
        for name, least in _LEAST.items():
            number = getattr(self, name)
            if type(number) is not int or number < least:
                raise QuantizerConfigError(
                    f"KVCacheConfig.{name} must be a whole number of at least {least}, not {number!r}."
                )


_LEAST = {"head_dim": 1, "value_head_dim": 1, "n_kv_heads": 1, "sink": 0, "window": 0, "seal_step": 1}
