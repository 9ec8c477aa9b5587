"""Converting a GGUF file: what comes out runs in mlx-lm, and what can't be converted is refused by name."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from app.models import Cancelled, ModelFileError, gguf_weights
from app.models.convert import converted_size, gguf_to_mlx_folder, plan_conversion
from app.models.gguf_file import read_gguf
from tests.app.models.conftest import gguf_metadata, write_gguf
from tests.app.models.tiny_models import write_tiny

OUTPUT = "blk.0.attn_output.weight"


def test_the_default_model_knows_the_capital_of_france(default_model_dir: Path) -> None:
    import mlx.core as mx
    from mlx_lm import generate
    from mlx_lm.utils import dequantize_model, load

    model, tokenizer, *_ = load(str(default_model_dir))
    if mx.default_device() == mx.Device(mx.cpu):
        # Sixteen-bit and quantized products are many times slower on CPU.
        model = dequantize_model(model)
        model.set_dtype(mx.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True
    )
    assert "Paris" in generate(model, tokenizer, prompt, max_tokens=16)


@pytest.mark.parametrize(
    "text",
    [
        "Plain English, 2026.",
        "Grüße aus Zürich — ça va?",
        "世界 こんにちは",
        "🙂👩‍👩‍👧",
        "def f(x):\n\treturn  x**2  # ½",
        " ",
    ],
)
def test_the_default_tokenizer_gives_back_every_text(default_model_dir: Path, text: str) -> None:
    from mlx_lm.tokenizer_utils import load

    tokenizer = load(default_model_dir)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_default_tokenizer_knows_its_chat_template_and_end_of_turn(default_model_dir: Path) -> None:
    from mlx_lm.tokenizer_utils import load

    tokenizer = load(default_model_dir)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1234"}], add_generation_prompt=True, tokenize=False
    )
    assert prompt.endswith("<|im_start|>user\n1234<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.eos_token_ids == {2}
    # Digits are single tokens in this vocabulary, and the markers are one token each.
    assert len(tokenizer.encode("<|im_start|>1234<|im_end|>", add_special_tokens=False)) == 6


def test_a_converted_tiny_model_runs(tiny_gguf: Path, tmp_path: Path) -> None:
    import mlx.core as mx
    from mlx_lm.utils import load

    folder = tmp_path / "model"
    gguf_to_mlx_folder(tiny_gguf, folder)
    model, tokenizer, *_ = load(str(folder))
    tokens = tokenizer.encode("hehe 1", add_special_tokens=False)
    logits = model(mx.array([tokens]))
    assert logits.shape == (1, len(tokens), 260)
    assert json.loads((folder / "config.json").read_text())["quantization"] == {"group_size": 32, "bits": 4}


def test_weights_keep_their_values(tiny_gguf: Path, tmp_path: Path) -> None:
    import mlx.core as mx

    gguf_to_mlx_folder(tiny_gguf, tmp_path / "model")
    weights: Any = mx.load(str(tmp_path / "model" / "model.safetensors"))
    layer = "model.layers.0.mlp.down_proj"
    packed, scales, biases = (weights[f"{layer}.{part}"] for part in ("weight", "scales", "biases"))
    values: Any = mx.dequantize(packed, scales, biases, group_size=32, bits=4)
    # Q4_1 keeps 16 bytes: the low halves are values 0 to 15, the high halves 16 to 31; each is 0.5 * code - 1.
    expected = [0.5 * code - 1 for code in [*range(16), *([0] * 16)]]
    assert values[0, :32].tolist() == expected


@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 0.999])
def test_a_file_cut_off_anywhere_is_refused_by_name(tiny_gguf: Path, tmp_path: Path, share: float) -> None:
    data = tiny_gguf.read_bytes()
    tiny_gguf.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelFileError, match=r"tiny\.gguf is (cut off|damaged)"):
        gguf_to_mlx_folder(tiny_gguf, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "picture.gguf"
    path.write_bytes(b"\x89PNG\r\n" + bytes(100))
    with pytest.raises(ModelFileError, match=r"picture\.gguf is not a GGUF model"):
        gguf_to_mlx_folder(path, tmp_path / "model")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"nowhere\.gguf can't be read"):
        gguf_to_mlx_folder(tmp_path / "nowhere.gguf", tmp_path / "model")


def test_absurd_counts_end_at_once(tmp_path: Path) -> None:
    path = tmp_path / "evil.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62))
    with pytest.raises(ModelFileError, match="damaged or cut off"):
        gguf_to_mlx_folder(path, tmp_path / "model")


def test_a_type_of_weights_that_nobody_stores_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "odd.gguf", quantized_type=9)
    with pytest.raises(ModelFileError, match=r"as Q8_1, which can't be converted; use a file with"):
        gguf_to_mlx_folder(path, tmp_path / "model")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "mamba", "is a model of the architecture mamba"),
        ("tokenizer.ggml.pre", "unheard-of", "its tokenizer cuts text as .unheard-of. does"),
        ("tokenizer.chat_template", "{% for", "its chat template doesn't work"),
        ("tokenizer.chat_template", "Hello", "leaves the message out"),
        ("llama.block_count", None, r"has no value for llama\.block_count"),
    ],
)
def test_what_cannot_be_converted_is_said(tmp_path: Path, key: str, value: str | None, message: str) -> None:
    metadata = gguf_metadata()
    if value is None:
        del metadata[key]
    else:
        metadata[key] = value
    path = write_gguf(tmp_path / "odd.gguf", metadata)
    with pytest.raises(ModelFileError, match=message):
        gguf_to_mlx_folder(path, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def load(folder: Path) -> dict[str, Any]:
    import mlx.core as mx

    arrays: dict[str, Any] = {}
    for path in folder.glob("model*.safetensors"):
        loaded: Any = mx.load(str(path))
        arrays |= loaded
    return arrays


def test_every_layer_keeps_its_own_number_of_bits(tmp_path: Path) -> None:
    from mlx_lm.utils import load_model

    types = {"attn_q": "Q4_0", "attn_k": "Q5_1", "attn_v": "Q8_0", "attn_output": "F16", "ffn_down": "MXFP4"}
    matrices = {f"blk.1.{name}.weight": GGMLQuantizationType[kind] for name, kind in types.items()}
    path = write_tiny(tmp_path / "tiny.gguf", weights=GGMLQuantizationType.Q4_1, others=matrices)
    gguf_to_mlx_folder(path, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "model.layers.1.self_attn.k_proj": {"group_size": 32, "bits": 5},
        "model.layers.1.self_attn.v_proj": {"group_size": 32, "bits": 8},
        "model.layers.1.self_attn.o_proj": False,
        "model.layers.1.mlp.down_proj": {"group_size": 32, "bits": 5},
    }
    model, _ = load_model(tmp_path / "model")
    attention = model.layers[1].self_attn
    assert [attention.q_proj.bits, attention.k_proj.bits, attention.v_proj.bits] == [4, 5, 8]
    assert not hasattr(attention.o_proj, "bits")


@pytest.mark.parametrize(("largest", "dtype"), [(60000.0, "float16"), (70000.0, "float32")])
def test_matrices_that_are_not_quantized_are_stored_in_what_holds_them(
    tmp_path: Path, largest: float, dtype: str
) -> None:
    matrix = np.full((64, 128), 0.5, np.float32)
    matrix[-1, -1] = largest
    path = write_tiny(tmp_path / "tiny.gguf", weights=GGMLQuantizationType.F32, extra={OUTPUT: matrix})
    gguf_to_mlx_folder(path, tmp_path / "model")
    stored = load(tmp_path / "model")["model.layers.0.self_attn.o_proj.weight"]
    assert str(stored.dtype) == f"mlx.core.{dtype}"
    np.testing.assert_array_equal(np.array(stored), matrix)


def test_norms_are_float32_where_float16_would_change_them(tmp_path: Path) -> None:
    norms = {"blk.0.attn_norm.weight": np.full(64, 1.5), "blk.0.ffn_norm.weight": np.full(64, 1.1)}
    extra = {name: norm.astype(np.float32) for name, norm in norms.items()}
    path = write_tiny(tmp_path / "tiny.gguf", extra=extra)
    gguf_to_mlx_folder(path, tmp_path / "model")
    stored = load(tmp_path / "model")
    for name, dtype, value in (("input", "float16", 1.5), ("post_attention", "float32", 1.1)):
        norm = stored[f"model.layers.0.{name}_layernorm.weight"]
        assert str(norm.dtype) == f"mlx.core.{dtype}"
        assert norm[0].item() == np.float32(value)


@pytest.mark.parametrize(
    ("weights", "value", "message"),
    [
        ("F16", np.nan, "holds values that are no finite numbers"),
        ("F32", np.inf, "holds values that are no finite numbers"),
        ("Q8_0", 5e6, "are too large, or no numbers at all"),  # a scale of 39,370, but a bias of 5,039,360
    ],
)
def test_weights_that_no_model_can_have_are_refused(tmp_path: Path, weights: str, value: float, message: str) -> None:
    matrix = np.full((64, 128), value, np.float32)
    path = write_tiny(tmp_path / "tiny.gguf", weights=GGMLQuantizationType[weights], extra={OUTPUT: matrix})
    with pytest.raises(ModelFileError, match=f"its tensor {OUTPUT} {message}"):
        gguf_to_mlx_folder(path, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_model_of_several_files_loads_like_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlx_lm.utils import load_model

    path = write_tiny(tmp_path / "tiny.gguf")
    gguf_to_mlx_folder(path, tmp_path / "one")
    monkeypatch.setattr(gguf_weights, "MAX_SHARD", 40_000)
    gguf_to_mlx_folder(path, tmp_path / "many")
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "many").glob("*.safetensors"))
    assert len(files) > 2
    assert files == sorted(set(index["weight_map"].values()))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert all((tmp_path / "many" / name).stat().st_size < 50_000 for name in files)
    one, many = load(tmp_path / "one"), load(tmp_path / "many")
    assert one.keys() == many.keys() == index["weight_map"].keys()
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in many.values())
    assert all(np.array_equal(np.array(one[name]), np.array(many[name])) for name in one)
    load_model(tmp_path / "many")


def test_who_may_read_one_file_of_the_folder_may_read_all(tiny_gguf: Path, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        gguf_to_mlx_folder(tiny_gguf, tmp_path / "model")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()} == {0o644}


def test_progress_goes_from_nothing_to_all(tiny_gguf: Path, tmp_path: Path) -> None:
    seen: list[float] = []
    gguf_to_mlx_folder(tiny_gguf, tmp_path / "model", lambda _, fraction: seen.append(fraction or 0.0))
    assert (seen[0], seen[-1]) == (0.0, 1.0)
    assert seen == sorted(seen)
    assert len(set(seen)) > 10


@pytest.mark.parametrize("after", [0, 1, 7, 18])
def test_cancelling_leaves_nothing(tiny_gguf: Path, tmp_path: Path, after: int) -> None:
    polls = iter(range(10**6))
    with pytest.raises(Cancelled):
        gguf_to_mlx_folder(tiny_gguf, tmp_path / "model", cancelled=lambda: next(polls) >= after)
    assert not (tmp_path / "model").exists()


def test_the_space_foretold_is_about_what_is_taken(tmp_path: Path) -> None:
    for weights in ("F16", "Q8_0", "Q4_0"):
        path = write_tiny(tmp_path / f"{weights}.gguf", weights=GGMLQuantizationType[weights])
        gguf_to_mlx_folder(path, tmp_path / weights)
        taken = sum(file.stat().st_size for file in (tmp_path / weights).iterdir())
        gguf = read_gguf(path)
        foretold = converted_size(gguf, plan_conversion(gguf))
        assert taken <= foretold < taken + 1_300_000


def test_a_name_can_be_given(tiny_gguf: Path, tmp_path: Path) -> None:
    for name, expected in ((None, "tiny"), ("Mine", "Mine")):
        gguf_to_mlx_folder(tiny_gguf, tmp_path / expected, name=name)
        assert json.loads((tmp_path / expected / "config.json").read_text())["name"] == expected
