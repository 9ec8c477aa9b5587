"""Rotary embeddings that were stretched for longer texts: what GGUF says of it, as mlx-lm's `rope_scaling`.

GGUF has `<architecture>.rope.scaling.*`, read here as llama.cpp reads it, and for Llama 3.1 and later only a tensor
`rope_freqs.weight` with what every frequency is divided by, from which the settings it was made of are found again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from app.models.gguf_file import GgufFile

_FACTORS = "rope_freqs.weight"
# Llama 3's own; no model of that family was published with others.
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192


def rope_scaling(
    gguf: GgufFile, architecture: str, head_dim: int, base: float, context_length: int
) -> dict[str, Any] | None:
    """mlx-lm's `rope_scaling`, or None where nothing was stretched.

    Raises:
        ModelFileError: a kind of scaling that mlx-lm doesn't have, or factors that its "llama3" doesn't give.
    """
    key = f"{architecture}.rope.scaling"
    factor = gguf.number(f"{key}.factor", 0.0) or gguf.number(f"{architecture}.rope.scale_linear", 0.0) or 1.0
    original = gguf.integer(f"{key}.original_context_length", 0)
    if factor <= 0 or original < 0:
        raise gguf.refused(f"its values for {key} make no sense")
    kind = gguf.text(f"{key}.type", "linear")  # llama.cpp's default
    if kind not in ("none", "linear", "yarn"):
        raise gguf.refused(f"its rotary embeddings are scaled by the method {kind[:60]}, which can't be converted")
    scaled = kind != "none" and factor != 1
    if architecture == "llama" and _FACTORS in gguf.tensors:
        settings = _llama3(gguf, head_dim, base, original or _ORIGINAL)
        if settings is not None and scaled:
            raise gguf.refused(f"its rotary embeddings are scaled twice, by {_FACTORS} and by {key}")
        if settings is not None:
            return settings
    if not scaled:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "type": "linear", "factor": factor}
    neutral = {"attn_factor": 1.0, "yarn_attn_factor": 1.0, "yarn_ext_factor": 1.0, "yarn_log_multiplier": 0.0}
    for name, value in neutral.items():
        if gguf.number(f"{key}.{name}", value) != value:
            raise gguf.refused(f"its value for {key}.{name} is not {value:g}, which can't be converted")
    return {
        "rope_type": "yarn",
        "type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original or context_length,
        "beta_fast": gguf.number(f"{key}.yarn_beta_fast", 32.0),
        "beta_slow": gguf.number(f"{key}.yarn_beta_slow", 1.0),
    }


def llama3_factors(head_dim: int, base: float, factor: float, original: int) -> npt.NDArray[np.float64]:
    """What Llama 3.1's scaling divides frequencies by, (head_dim / 2,): 1 for short waves, `factor` for long ones."""
    wavelengths = 2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    part = np.clip((original / wavelengths - _LOW) / (_HIGH - _LOW), 0, 1)
    factors: npt.NDArray[np.float64] = 1 / ((1 - part) / factor + part)
    return factors


def _llama3(gguf: GgufFile, head_dim: int, base: float, original: int) -> dict[str, Any] | None:
    tensor = gguf.tensors[_FACTORS]
    if tensor.type.name != "F32" or tensor.shape != (head_dim // 2,):
        raise gguf.refused(f"its tensor {_FACTORS} doesn't hold {head_dim // 2} numbers of type F32")
    factors = gguf.read_rows(tensor, 0, 1).reshape(-1).view("<f4").astype(np.float64)
    if np.all(factors == 1):
        return None
    factor = float(factors.max())
    if (
        not np.all(np.isfinite(factors))
        or not factor > 1
        or not np.allclose(factors, llama3_factors(head_dim, base, factor, original), rtol=1e-4, atol=0)
    ):
        raise gguf.refused(
            f"its tensor {_FACTORS} scales rotary embeddings in another way than Llama 3.1, which can't be converted"
        )
    return {
        "rope_type": "llama3",
        "type": "llama3",
        "factor": round(factor, 4),
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": original,
    }
