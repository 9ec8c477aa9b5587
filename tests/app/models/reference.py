"""llama, qwen2, qwen3 and gemma3 in plain NumPy, straight from a GGUF file: what a conversion is measured against.

Shares nothing with the app: the file is read by `gguf.GGUFReader` and decoded by `gguf.dequantize`, and the forward
pass follows llama.cpp's conventions (names, interleaved rotary pairs for llama, halves for the others, gemma's norms
as they are stored). One thing is Gemma's own and not llama.cpp's: the factor of its embeddings is rounded to bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass
class Greedy:
    """Tokens chosen one after the other, and the lead that each had over the next best, in logits."""

    tokens: list[int] = field(default_factory=list)
    leads: list[float] = field(default_factory=list)


class Reference:
    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self._fields = {name: item for name, item in reader.fields.items() if "tokenizer" not in name}
        self._tensors = {
            tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            for tensor in reader.tensors
        }
        self.architecture = str(self._fields["general.architecture"].contents())
        self.layers = int(self._get("block_count"))
        self.heads = int(self._get("attention.head_count"))
        self.kv_heads = int(self._get("attention.head_count_kv", self.heads))
        self.hidden = int(self._get("embedding_length"))
        self.head_dim = int(self._get("attention.key_length", self.hidden // self.heads))
        self._eps = float(self._get("attention.layer_norm_rms_epsilon"))
        self._keys: list[Floats] = []
        self._values: list[Floats] = []
        self.reset()

    def reset(self) -> None:
        """Forget all tokens."""
        empty = np.zeros((0, self.kv_heads, self.head_dim), np.float32)
        self._keys, self._values = [empty] * self.layers, [empty] * self.layers

    def greedy(self, prompt: list[int], n_tokens: int) -> Greedy:
        self.reset()
        found = Greedy()
        logits = self.logits(prompt)[-1]
        for _ in range(n_tokens):
            second, first = np.partition(logits, -2)[-2:]
            found.leads.append(float(first - second))
            found.tokens.append(int(logits.argmax()))
            logits = self.logits(found.tokens[-1:])[-1]
        return found

    def logits(self, tokens: list[int]) -> Floats:
        """(tokens, vocabulary) of the next tokens after all that came before."""
        x: Floats = self._tensors["token_embd.weight"][tokens]  # (tokens, hidden)
        if self.architecture == "gemma3":
            x = x * _bfloat16(self.hidden**0.5)
        for layer in range(self.layers):
            attended = self._attention(layer, self._norm(x, f"blk.{layer}.attn_norm"))
            if self.architecture == "gemma3":
                attended = self._norm(attended, f"blk.{layer}.post_attention_norm")
            x = x + attended
            inner = self._norm(x, f"blk.{layer}.ffn_norm")
            gate = self._linear(inner, f"blk.{layer}.ffn_gate")
            gate = _gelu(gate) if self.architecture == "gemma3" else gate / (1 + np.exp(-gate))
            inner = self._linear(gate * self._linear(inner, f"blk.{layer}.ffn_up"), f"blk.{layer}.ffn_down")
            if self.architecture == "gemma3":
                inner = self._norm(inner, f"blk.{layer}.post_ffw_norm")
            x = x + inner
        output = "output" if "output.weight" in self._tensors else "token_embd"
        return self._linear(self._norm(x, "output_norm"), output)

    def _attention(self, layer: int, x: Floats) -> Floats:
        q, k, v = (
            self._linear(x, f"blk.{layer}.attn_{part}").reshape(len(x), -1, self.head_dim) for part in "qkv"
        )  # (tokens, heads, head_dim)
        if self.architecture in ("qwen3", "gemma3"):
            q, k = self._norm(q, f"blk.{layer}.attn_q_norm"), self._norm(k, f"blk.{layer}.attn_k_norm")
        sliding = self.architecture == "gemma3" and (layer + 1) % 6 != 0
        start = len(self._keys[layer])
        positions = np.arange(start, start + len(x))
        q, k = self._rotate(q, positions, sliding), self._rotate(k, positions, sliding)
        keys = self._keys[layer] = np.concatenate([self._keys[layer], k])
        values = self._values[layer] = np.concatenate([self._values[layer], v])
        keys, values = (np.repeat(a, self.heads // self.kv_heads, axis=1) for a in (keys, values))
        scale = self.head_dim**-0.5
        if self.architecture == "gemma3" and self.layers == 62:
            scale = (self.hidden / self.heads) ** -0.5
        scores = np.einsum("qhd,khd->hqk", q, keys) * np.float32(scale)
        behind = positions[:, None] - np.arange(len(keys))  # (tokens, keys)
        visible = behind >= 0
        if sliding:
            visible &= behind < int(self._get("attention.sliding_window"))
        scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, values).reshape(len(x), -1).astype(np.float32)
        return self._linear(mixed, f"blk.{layer}.attn_output")

    def _rotate(self, x: Floats, positions: npt.NDArray[Any], sliding: bool) -> Floats:
        base, scale = float(self._get("rope.freq_base", 10000.0)), float(self._get("rope.scaling.factor", 1.0))
        if sliding:
            base, scale = 10000.0, 1.0
        frequencies = base ** (-np.arange(0, self.head_dim, 2) / self.head_dim) / scale
        stretch = 1.0
        if self._get("rope.scaling.type") == "yarn":
            frequencies, stretch = self._yarn(base, scale)
        if "rope_freqs.weight" in self._tensors:
            frequencies = frequencies / self._tensors["rope_freqs.weight"]
        angles = (positions[:, None] * frequencies)[:, None, :]  # (tokens, 1, head_dim / 2)
        cos, sin = ((stretch * part(angles)).astype(np.float32) for part in (np.cos, np.sin))
        out = np.empty_like(x)
        half = self.head_dim // 2
        interleaved = self.architecture == "llama"
        one = np.s_[..., 0::2] if interleaved else np.s_[..., :half]
        other = np.s_[..., 1::2] if interleaved else np.s_[..., half:]
        out[one], out[other] = x[one] * cos - x[other] * sin, x[other] * cos + x[one] * sin
        return out

    def _yarn(self, base: float, scale: float) -> tuple[npt.NDArray[np.float64], float]:
        """Frequencies, and the factor of queries and keys, as ggml's rope computes them."""
        original = int(self._get("rope.scaling.original_context_length"))

        def dimension(rotations: float) -> float:
            return float(self.head_dim * np.log(original / (rotations * 2 * np.pi)) / (2 * np.log(base)))

        low, high = max(0.0, np.floor(dimension(32))), min(self.head_dim - 1.0, np.ceil(dimension(1)))
        pairs = np.arange(self.head_dim // 2)
        as_they_were = 1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)
        frequencies = base ** (-2 * pairs / self.head_dim)
        mixed = frequencies * as_they_were + frequencies / scale * (1 - as_they_were)
        return mixed, float(1 + 0.1 * np.log(scale))

    def _linear(self, x: Floats, name: str) -> Floats:
        product: Floats = x @ self._tensors[f"{name}.weight"].T
        return product + self._tensors[f"{name}.bias"] if f"{name}.bias" in self._tensors else product

    def _norm(self, x: Floats, name: str) -> Floats:
        scaled: Floats = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(self._eps))
        return scaled * self._tensors[f"{name}.weight"]

    def _get(self, name: str, default: Any = None) -> Any:
        item = self._fields.get(f"{self.architecture}.{name}")
        return default if item is None else item.contents()


def _gelu(x: Floats) -> Floats:
    value: Floats = 0.5 * x * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x**3)))
    return value


def _bfloat16(value: float) -> np.float32:
    bits = int(np.float32(value).view(np.uint32))
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.uint32(rounded).view(np.float32)
