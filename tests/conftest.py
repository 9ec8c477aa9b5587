"""What all tests share: Qt without a screen, OpenBLAS before MLX, the default model and a tiny one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")  # before anything imports Qt
os.environ["HF_HUB_OFFLINE"] = "1"  # a test that looked a model up on a hub would pass or fail by the weather

from veloxquant_mlx.core.cpu import prepare_cpu

prepare_cpu()


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The converted default model's folder. Read-only: copy what a test wants to change."""
    from app.models import ModelFileError, default_model_folder, find_default_model

    try:
        folder = find_default_model()
    except ModelFileError as error:
        pytest.fail(f"{error} Run `make test`, or `.venv/bin/python -m app.models`, to fetch the model again.")
    if folder is None:
        pytest.fail(
            f"The default model is not in {default_model_folder()}. Run `make test`, which sets everything up, or "
            f"`.venv/bin/python -m app.models`."
        )
    return folder


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, where models are looked for and made instead of the user's own."""
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("VELOXQUANT_MODELS_DIR", str(folder))
    return folder


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory, default_model_dir: Path) -> Path:
    """A model folder that loads and runs in no time: a random llama (2 layers, 4 heads, 2 KV heads of 16 dimensions).

    Its vocabulary, tokenizer and chat template are the default model's. The weights are the same in every run.
    """
    import mlx.core as mx

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(default_model_dir / name, folder / name)
    default = json.loads((default_model_dir / "config.json").read_text(encoding="utf-8"))
    hidden, heads, kv_heads, head_dim, inner, vocab = 64, 4, 2, 16, 128, default["vocab_size"]
    config = {
        **{
            key: default[key] for key in ("model_type", "architectures", "rms_norm_eps", "bos_token_id", "eos_token_id")
        },
        "hidden_size": hidden,
        "num_hidden_layers": 2,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shapes = {"model.embed_tokens": (vocab, hidden)}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.self_attn.q_proj": (heads * head_dim, hidden),
            f"{prefix}.self_attn.k_proj": (kv_heads * head_dim, hidden),
            f"{prefix}.self_attn.v_proj": (kv_heads * head_dim, hidden),
            f"{prefix}.self_attn.o_proj": (hidden, heads * head_dim),
            f"{prefix}.mlp.gate_proj": (inner, hidden),
            f"{prefix}.mlp.up_proj": (inner, hidden),
            f"{prefix}.mlp.down_proj": (hidden, inner),
        }
    keys = mx.random.split(mx.random.key(0), len(shapes))
    weights = {
        f"{name}.weight": mx.random.normal(shape, key=key) / shape[1] ** 0.5
        for (name, shape), key in zip(shapes.items(), keys, strict=True)
    }
    norms = [
        "model.norm",
        *(f"model.layers.{i}.{n}" for i in range(2) for n in ("input_layernorm", "post_attention_layernorm")),
    ]
    weights |= {f"{name}.weight": mx.ones((hidden,)) for name in norms}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder
