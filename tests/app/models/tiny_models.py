"""Tiny random GGUF files of every architecture, written by llama.cpp's own package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.app.models.conftest import byte_alphabet

HIDDEN, HEADS, KV_HEADS, INNER, VOCAB, WINDOW = 64, 4, 2, 96, 260, 8
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
LAYERS = {"llama": 2, "qwen2": 2, "qwen3": 2, "gemma3": 7}  # one of gemma's has no sliding window
HEAD_DIM = {"llama": 32, "qwen2": 16, "qwen3": 32, "gemma3": 32}  # qwen2 can't have another than hidden / heads


def write_tiny(
    path: Path,
    architecture: str = "llama",
    *,
    weights: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F16,
    others: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    tied: bool = True,
    bpe: bool = True,
    extra: Mapping[str, npt.NDArray[Any]] | None = None,
    values: Mapping[str, int | float | str | None] | None = None,
    seed: int = 0,
) -> Path:
    """Write a model that runs.

    Args:
        weights: What the matrices are stored as.
        others: What those matrices are stored as instead.
        bpe: Whether the tokenizer is byte-level; otherwise it is of SentencePiece's kind.
        extra: More tensors, or others in place of the usual ones.
        values: Key-value pairs under the architecture's name, to add or (None) to leave out.
    """
    tensors = {**_tensors(architecture, tied=tied, rng=np.random.default_rng(seed)), **(extra or {})}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Tiny model")
    writer.add_license("0BSD")
    for name, value in {**_values(architecture), **(values or {})}.items():
        key = f"{architecture}.{name}"
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    _add_tokenizer(writer, bpe=bpe, pre="qwen2" if architecture == "qwen2" else "smollm")
    for name, array in tensors.items():
        if array.ndim == 2:
            kind = (others or {}).get(name, weights)
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _values(architecture: str) -> dict[str, int | float | str | None]:
    values: dict[str, int | float | str | None] = {
        "embedding_length": HIDDEN,
        "block_count": LAYERS[architecture],
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM[architecture],
        "attention.value_length": HEAD_DIM[architecture],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 50000.0,
        "context_length": 512,
    }
    return values | ({"attention.sliding_window": WINDOW} if architecture == "gemma3" else {})


def _tensors(architecture: str, *, tied: bool, rng: np.random.Generator) -> dict[str, npt.NDArray[np.float32]]:
    head_dim = HEAD_DIM[architecture]
    tensors: dict[str, npt.NDArray[np.float32]] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        tensors[f"{name}.weight"] = (2 * rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    def norm(name: str, length: int) -> None:
        tensors[f"{name}.weight"] = (1 + 0.1 * rng.standard_normal(length)).astype(np.float32)

    matrix("token_embd", VOCAB, HIDDEN)
    if not tied:
        matrix("output", VOCAB, HIDDEN)
    norm("output_norm", HIDDEN)
    for layer in range(LAYERS[architecture]):
        at = f"blk.{layer}"
        norm(f"{at}.attn_norm", HIDDEN)
        norm(f"{at}.ffn_norm", HIDDEN)
        matrix(f"{at}.attn_q", HEADS * head_dim, HIDDEN)
        matrix(f"{at}.attn_k", KV_HEADS * head_dim, HIDDEN)
        matrix(f"{at}.attn_v", KV_HEADS * head_dim, HIDDEN)
        matrix(f"{at}.attn_output", HIDDEN, HEADS * head_dim)
        matrix(f"{at}.ffn_gate", INNER, HIDDEN)
        matrix(f"{at}.ffn_up", INNER, HIDDEN)
        matrix(f"{at}.ffn_down", HIDDEN, INNER)
        if architecture == "qwen2":
            for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                tensors[f"{at}.attn_{part}.bias"] = rng.standard_normal(heads * head_dim).astype(np.float32)
        if architecture in ("qwen3", "gemma3"):
            norm(f"{at}.attn_q_norm", head_dim)
            norm(f"{at}.attn_k_norm", head_dim)
        if architecture == "gemma3":
            norm(f"{at}.post_attention_norm", HIDDEN)
            norm(f"{at}.post_ffw_norm", HIDDEN)
    return tensors


def _add_tokenizer(writer: gguf.GGUFWriter, *, bpe: bool, pre: str) -> None:
    normal, unknown, control, byte = 1, 2, 3, 6
    if bpe:
        tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "he"]
        kinds = [control] * 3 + [normal] * 257
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(["h e"])
    else:
        tokens = ["<unk>", "<|im_start|>", "<|im_end|>", *(f"<0x{i:02X}>" for i in range(256)), "▁"]
        kinds = [unknown, control, control, *[byte] * 256, normal]
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([-float(i) for i in range(len(tokens))])
        writer.add_unk_token_id(0)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
