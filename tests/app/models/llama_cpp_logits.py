"""What llama.cpp computes for the tiny models, kept in llama_cpp_logits.npz.

To make that file again, install llama-cpp-python 0.3.36 (it compiles llama.cpp, which takes some minutes) and run
`python -m tests.app.models.llama_cpp_logits`.
"""

from __future__ import annotations

import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.app.models.tiny_models import HEAD_DIM, write_tiny

KEPT = Path(__file__).with_suffix(".npz")
TOKENS = [int(token) for token in np.random.default_rng(1).integers(3, 250, 100)]
N_KEPT = 2  # rows, of the last tokens
_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, untied": {"tied": False},
    "llama, SentencePiece": {"bpe": False},
    "llama, linear": {"values": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}},
    "llama, yarn": {"values": _YARN},
    "qwen2": {"architecture": "qwen2"},
    "qwen2, yarn": {"architecture": "qwen2", "values": _YARN},
    "qwen3": {"architecture": "qwen3"},
    "qwen3, yarn": {"architecture": "qwen3", "values": _YARN},
    "gemma3": {"architecture": "gemma3"},
    "gemma3, linear": {
        "architecture": "gemma3",
        "values": {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    },
}


def llama3_factors(head_dim: int, base: float, factor: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """As llama.cpp's converter writes them for Llama 3.1: one after the other, by its wavelength."""
    found = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * base ** (i / head_dim)
        if wavelength < 8192 / 4:
            found.append(1.0)
        elif wavelength > 8192:
            found.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


VARIANTS["llama 3.1"] = {
    "extra": {"rope_freqs.weight": llama3_factors(HEAD_DIM["llama"], 500000.0, 32.0)},
    "values": {"rope.freq_base": 500000.0},
}


def write_variant(path: Path, name: str) -> Path:
    """Write a tiny model whose weights are float32, since llama.cpp rounds what it multiplies with any others."""
    return write_tiny(path, **{"weights": gguf.GGMLQuantizationType.F32, "seed": 3, **VARIANTS[name]})


def main() -> None:
    llama = import_module("llama_cpp").Llama
    kept = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in VARIANTS:
            path = write_variant(Path(folder, "tiny.gguf"), name)
            # Cached keys and values in float32, too.
            model = llama(str(path), n_ctx=256, logits_all=True, verbose=False, type_k=0, type_v=0)
            model.eval(TOKENS)
            kept[name] = np.array(model.scores[len(TOKENS) - N_KEPT : len(TOKENS)], np.float32)
    np.savez_compressed(KEPT, allow_pickle=False, **kept)


if __name__ == "__main__":
    main()
