"""Every architecture, converted and run by mlx-lm, gives what the same GGUF file gives in plain NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from app.models import ModelFileError
from app.models.convert import gguf_to_mlx_folder
from tests.app.models import llama_cpp_logits
from tests.app.models.llama_cpp_logits import llama3_factors
from tests.app.models.reference import Reference
from tests.app.models.tiny_models import HEAD_DIM, HIDDEN, INNER, write_tiny

TOKENS = [int(token) for token in np.random.default_rng(1).integers(0, 260, 40)]
LLAMA3 = "rope_freqs.weight"


def convert(gguf: Path) -> tuple[Path, dict[str, Any]]:
    folder = gguf.with_suffix("")
    gguf_to_mlx_folder(gguf, folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return folder, config


def run(folder: Path, tokens: list[int]) -> npt.NDArray[np.float32]:
    """Logits of the converted model in float32, the last ten tokens one by one through a cache."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    cache = make_prompt_cache(model)
    parts = [tokens[:-10], *([token] for token in tokens[-10:])]
    return np.concatenate([np.array(model(mx.array([part]), cache=cache)[0]) for part in parts])


def agree(gguf: Path, folder: Path) -> None:
    expected = Reference(gguf).logits(TOKENS)
    found = run(folder, TOKENS)
    assert np.abs(found - expected).max() < 1e-4 * expected.std()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_a_converted_model_computes_what_the_file_says(tmp_path: Path, architecture: str, tied: bool) -> None:
    gguf = write_tiny(tmp_path / "tiny.gguf", architecture, tied=tied)
    folder, config = convert(gguf)
    agree(gguf, folder)
    assert config["tie_word_embeddings"] is tied
    assert config["torch_dtype"] == ("float16" if architecture == "llama" else "bfloat16")
    assert config["name"] == "Tiny model"
    assert "quantization" not in config


@pytest.mark.parametrize("name", llama_cpp_logits.VARIANTS)
def test_a_converted_model_computes_what_llama_cpp_computes(tmp_path: Path, name: str) -> None:
    gguf = llama_cpp_logits.write_variant(tmp_path / "tiny.gguf", name)
    folder, _ = convert(gguf)
    with np.load(llama_cpp_logits.KEPT) as kept:
        expected = kept[name]
    found = run(folder, llama_cpp_logits.TOKENS)[-len(expected) :]
    # llama.cpp's own rounding (float16 tables, float16 weights here) makes 0.4 %; another model would be 100 % off.
    assert (np.sqrt(((found - expected) ** 2).mean(axis=-1)) < 0.01 * expected.std(axis=-1)).all()


def test_bfloat16_weights_keep_their_values(tmp_path: Path) -> None:
    import gguf

    path = write_tiny(tmp_path / "tiny.gguf", "qwen3", weights=gguf.GGMLQuantizationType.BF16)
    folder, _ = convert(path)
    agree(path, folder)


def test_llama_3_1_keeps_its_scaled_embeddings(tmp_path: Path) -> None:
    factors = llama3_factors(HEAD_DIM["llama"], 500000.0, 32.0)
    gguf = write_tiny(tmp_path / "tiny.gguf", extra={LLAMA3: factors}, values={"rope.freq_base": 500000.0})
    folder, config = convert(gguf)
    assert config["rope_scaling"]["factor"] == 32
    agree(gguf, folder)
    # It would show if they were left out.
    del config["rope_scaling"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(AssertionError):
        agree(gguf, folder)


def test_factors_that_scale_nothing_are_left_out(tmp_path: Path) -> None:
    ones = np.ones(HEAD_DIM["llama"] // 2, np.float32)
    gguf = write_tiny(tmp_path / "tiny.gguf", extra={LLAMA3: ones})
    folder, config = convert(gguf)
    assert "rope_scaling" not in config
    agree(gguf, folder)


def test_gemma_scales_only_its_global_layers(tmp_path: Path) -> None:
    gguf = write_tiny(
        tmp_path / "tiny.gguf", "gemma3", values={"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    )
    folder, config = convert(gguf)
    assert config["rope_scaling"]["factor"] == 8
    agree(gguf, folder)


def test_the_largest_gemma_scales_scores_by_the_size_per_head(tmp_path: Path) -> None:
    from app.models.gguf_architectures import plan_model
    from app.models.gguf_file import read_gguf

    tensors = {}
    for layer in range(7, 62):
        shapes = {"attn_norm": (HIDDEN,), "post_attention_norm": (HIDDEN,), "ffn_norm": (HIDDEN,)}
        shapes |= {"post_ffw_norm": (HIDDEN,), "attn_q_norm": (32,), "attn_k_norm": (32,)}
        matrices = {"attn_q": (128, HIDDEN), "attn_k": (64, HIDDEN), "attn_v": (64, HIDDEN)}
        matrices |= {"attn_output": (HIDDEN, 128), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN)}
        for name, shape in {**shapes, **matrices, "ffn_down": (HIDDEN, INNER)}.items():
            tensors[f"blk.{layer}.{name}.weight"] = np.ones(shape, np.float32)
    path = write_tiny(tmp_path / "27b.gguf", "gemma3", values={"block_count": 62}, extra=tensors)
    assert plan_model(read_gguf(path)).config["query_pre_attn_scalar"] == HIDDEN / 4


def test_biases_of_a_llama_are_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    biases = {
        "blk.0.attn_q.bias": rng.standard_normal(128).astype(np.float32),
        "blk.1.attn_k.bias": rng.standard_normal(64).astype(np.float32),
        "blk.1.ffn_down.bias": rng.standard_normal(HIDDEN).astype(np.float32),
    }
    gguf = write_tiny(tmp_path / "tiny.gguf", extra=biases)
    folder, _ = convert(gguf)
    agree(gguf, folder)


def test_a_head_size_that_is_not_said_follows_from_the_others(tmp_path: Path) -> None:
    values: dict[str, Any] = {"attention.key_length": None, "attention.value_length": None, "rope.dimension_count": 16}
    gguf = write_tiny(tmp_path / "tiny.gguf", "qwen2", values=values)
    folder, config = convert(gguf)
    assert config["head_dim"] == 16
    agree(gguf, folder)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_yarn_is_what_mlx_lm_calls_it(tmp_path: Path, architecture: str) -> None:
    values: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 128,
    }
    gguf = write_tiny(tmp_path / "tiny.gguf", architecture, values=values)
    folder, config = convert(gguf)
    assert config["rope_scaling"] == {
        "rope_type": "yarn",
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    agree(gguf, folder)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("llama", {"values": {"expert_count": 8}}, "it is a mixture of 8 experts"),
        ("gemma3", {"values": {"final_logit_softcapping": 30.0}}, r"sets gemma3\.final_logit_softcapping to 30"),
        ("llama", {"values": {"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}}, "by the method longrope"),
        ("llama", {"values": {"rope.dimension_count": 16}}, r"rope\.dimension_count is not the size of a head, 32"),
        ("qwen2", {"values": {"attention.key_length": 32, "attention.value_length": 32}}, "4 attention heads of 32"),
        ("llama", {"values": {"block_count": 3}}, r"its tensor blk\.2\.attn_q\.weight is missing"),
        (
            "llama",
            {"values": {"block_count": 1}},
            r"it has a tensor blk\.1\.\w+\.weight, which llama models don't have",
        ),
        ("llama", {"values": {"block_count": 10**9}}, "it says that it has 1000000000 layers"),
        (
            "llama",
            {"values": {"feed_forward_length": 128}},
            r"blk\.0\.ffn_gate\.weight is 96 x 64, and should be 128 x 64",
        ),
        ("llama", {"values": {"attention.head_count_kv": 3}}, "4 attention heads can't share 3"),
        ("llama", {"values": {"embedding_length": None}}, r"it has no value for llama\.embedding_length"),
        ("llama", {"values": {"context_length": "long"}}, r"llama\.context_length is not a whole number"),
        (
            "llama",
            {"extra": {"blk.0.ffn_gate_inp.weight": np.ones((2, 64), np.float32)}},
            r"blk\.0\.ffn_gate_inp\.weight",
        ),
        ("llama", {"extra": {LLAMA3: np.linspace(1, 2, 16, dtype=np.float32)}}, "another way than Llama 3.1"),
        ("llama", {"extra": {LLAMA3: np.ones(8, np.float32)}}, "doesn't hold 16 numbers"),
        ("qwen3", {"extra": {LLAMA3: np.ones(16, np.float32)}}, r"a tensor rope_freqs\.weight, which qwen3 models"),
        ("gemma3", {"values": {"attention.sliding_window": None}}, r"no value for gemma3\.attention\.sliding_window"),
    ],
)
def test_what_a_model_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, architecture: str, changes: dict[str, Any], message: str
) -> None:
    gguf = write_tiny(tmp_path / "tiny.gguf", architecture, **changes)
    with pytest.raises(ModelFileError, match=message) as caught:
        convert(gguf)
    assert str(gguf) in str(caught.value)
    assert list(tmp_path.iterdir()) == [gguf]


def test_another_architecture_is_named(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "mamba.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match="architecture mamba; llama, qwen2, qwen3 and gemma3 can be"):
        convert(tmp_path / "mamba.gguf")


def test_a_qwen2_model_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    gguf = write_tiny(tmp_path / "tiny.gguf", "qwen2", bpe=False)
    with pytest.raises(ModelFileError, match=r"only Qwen2's own \(gpt2/qwen2\) works"):
        gguf_to_mlx_folder(gguf, tmp_path / "model")
    assert not (tmp_path / "model").exists()
