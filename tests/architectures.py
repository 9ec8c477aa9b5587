"""Tiny random models of mlx-lm's architectures, in memory or as a folder."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path

WINDOW = 16  # tokens of the sliding windows

_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 200,
    "max_position_embeddings": 2048,
}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
    "mamba_expand": 1,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
_EACH: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "qwen3": {"head_dim": 32, "rope_theta": 1e4, "tie_word_embeddings": True},
    "phi3": {
        "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "longrope", "long_factor": [1.0 + i for i in range(8)], "short_factor": [1.0] * 8},
    },
    "gemma3_text": {
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
    },
    "gpt_oss": {
        "head_dim": 32,
        "sliding_window": WINDOW,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64},
    },
    "granitemoehybrid": {
        **_MAMBA,
        "layer_types": ["mamba", "attention", "mamba", "attention"],
        "position_embedding_type": "rope",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.25,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
    },
    "lfm2": {
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_multiple_of": 1,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
    },
    "falcon_h1": {**_MAMBA, "head_dim": 16, "mamba_d_ssm": 64, "rope_theta": 1e4, "tie_word_embeddings": False},
    # It counts its positions in NumPy, from a cache's one offset.
    "gpt_bigcode": {
        "n_embd": 64,
        "n_layer": 4,
        "n_inner": 128,
        "n_head": 4,
        "n_positions": 2048,
        "tie_word_embeddings": False,
        "layer_norm_epsilon": 1e-5,
    },
}


def config(architecture: str, **changes: Any) -> dict[str, Any]:
    return {"model_type": architecture, **_COMMON, **_EACH[architecture], **changes}


def random_model(architecture: str, **changes: Any) -> Any:
    """The same weights every time, in float32 and large enough for attention to be anything but even."""
    module = import_module(f"mlx_lm.models.{architecture}")
    model = module.Model(module.ModelArgs.from_dict(config(architecture, **changes)))
    n = 0

    def weight(path: str, old: mx.array) -> mx.array:
        nonlocal n
        n += 1
        new = mx.random.normal(old.shape, key=mx.random.key(n))
        if path.endswith("sinks"):
            return new
        if path.endswith(".bias"):
            return 0.2 * new
        return new * (old[0].size ** -0.5) if old.ndim > 1 else old  # what else is flat are norms and an SSM's rates

    model.update(tree_map_with_path(weight, model.parameters()))
    mx.eval(model.parameters())
    return model


def write_model(architecture: str, folder: Path, words: Path) -> Path:
    """A model folder with the tokenizer, the chat template and the vocabulary of the model in `words`."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(words / name, folder / name)
    theirs = json.loads((words / "config.json").read_text(encoding="utf-8"))
    ours = {key: theirs[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")}
    (folder / "config.json").write_text(json.dumps(config(architecture, **ours)), encoding="utf-8")
    model = random_model(architecture, **ours)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    return folder
