"""Turns a llama-type GGUF file into a folder that mlx_lm.load reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.models.errors import ModelFileError
from app.models.gguf_header import check_gguf
from app.models.gguf_tokenizer import write_tokenizer
from veloxquant_mlx.core.cpu import prepare_cpu

_GROUP_SIZE = 32  # of every quantized GGUF type that is read

# GGUF's names of a tensor's part to mlx-lm's; `blk.N.` and `.weight` / `.scales` / `.biases` are handled around them.
_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_TENSOR = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|scales|biases)")


class Metadata:
    """A GGUF file's key-value pairs, whose absence is an error that names the file."""

    def __init__(self, gguf: Path, pairs: Mapping[str, Any]) -> None:
        self.gguf = gguf
        self._pairs = pairs

    def has(self, key: str) -> bool:
        return key in self._pairs

    def get(self, key: str) -> Any:
        """The value as plain Python: MLX hands numbers out as arrays."""
        try:
            value = self._pairs[key]
        except KeyError:
            raise ModelFileError(f"The file {self.gguf} can't be converted: it has no value for {key}.") from None
        return value if isinstance(value, str | list) else value.tolist()


def gguf_to_mlx_folder(gguf: Path, folder: Path) -> None:
    """Convert `gguf` into config.json, model.safetensors and the tokenizer's files in `folder` (made if missing).

    Weights keep the file's quantization (groups of 32). MLX runs in the calling thread only.

    Raises:
        ModelFileError: the file is damaged, or of an architecture, quantization or tokenizer that can't be converted.
        OSError: `folder` can't be written.
    """
    check_gguf(gguf)
    prepare_cpu()
    import mlx.core as mx

    try:
        loaded: Any = mx.load(str(gguf), format="gguf", return_metadata=True)
    except (RuntimeError, ValueError) as error:
        raise ModelFileError(f"The file {gguf} can't be read: {error}.") from error
    tensors, pairs = loaded
    metadata = Metadata(gguf, pairs)
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelFileError(f"The file {gguf} is a {architecture} model; only llama models can be converted so far.")
    weights = {
        # Norms come as float32; one type for all keeps the model from being promoted to it.
        _mlx_name(gguf, name): tensor.astype(mx.float16) if tensor.dtype == mx.float32 else tensor
        for name, tensor in tensors.items()
        if name != "rope_freqs.weight"  # follows from rope_theta
    }
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(metadata, weights)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    write_tokenizer(metadata, folder)


def _mlx_name(gguf: Path, name: str) -> str:
    match = _TENSOR.fullmatch(name)
    if match is None or match[2] not in _NAMES:
        raise ModelFileError(
            f"The file {gguf} can't be converted: it has a tensor {name}, which llama models don't have."
        )
    layer = "" if match[1] is None else f"model.layers.{match[1]}."
    return f"{layer}{_NAMES[match[2]]}.{match[3]}"


def _config(metadata: Metadata, weights: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": metadata.get("llama.embedding_length"),
        "num_hidden_layers": metadata.get("llama.block_count"),
        "intermediate_size": metadata.get("llama.feed_forward_length"),
        "num_attention_heads": metadata.get("llama.attention.head_count"),
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv"),
        "rms_norm_eps": metadata.get("llama.attention.layer_norm_rms_epsilon"),
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
        "rope_theta": metadata.get("llama.rope.freq_base"),
        # GGUF keeps the rows of q and k in the order of interleaved rotary embeddings.
        "rope_traditional": True,
        "max_position_embeddings": metadata.get("llama.context_length"),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
    }
    bits = _bits(weights)
    if bits:
        # mlx-lm takes one default and, by layer name, what differs from it (False: not quantized).
        commonest = max(set(bits.values()), key=list(bits.values()).count)
        quantization: dict[str, Any] = {"group_size": _GROUP_SIZE, "bits": commonest}
        for name, tensor in weights.items():
            layer, _, part = name.rpartition(".")
            if part != "weight" or tensor.ndim != 2 or bits.get(layer) == commonest:
                continue
            quantization[layer] = {"group_size": _GROUP_SIZE, "bits": bits[layer]} if layer in bits else False
        config["quantization"] = quantization
    return config


def _bits(weights: Mapping[str, Any]) -> dict[str, int]:
    """Bits per weight of every quantized layer: packed uint32 words (rows, words) against scales (rows, groups)."""
    return {
        layer: 32 * weights[f"{layer}.weight"].shape[-1] // (tensor.shape[-1] * _GROUP_SIZE)
        for layer, _, part in (name.rpartition(".") for name in weights)
        if part == "scales"
        for tensor in (weights[f"{layer}.scales"],)
    }
