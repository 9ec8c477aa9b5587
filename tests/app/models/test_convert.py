"""Converting a GGUF file: what comes out runs in mlx-lm, and what can't be converted is refused by name."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from app.models import ModelFileError
from app.models.convert import gguf_to_mlx_folder
from tests.app.models.conftest import gguf_metadata, write_gguf


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


def test_a_quantization_mlx_cannot_read_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "k.gguf", quantized_type=12)
    with pytest.raises(ModelFileError, match=r"Q4_K, which can't be converted; use a file with F32, F16, Q4_0"):
        gguf_to_mlx_folder(path, tmp_path / "model")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "mamba", "is a mamba model"),
        ("tokenizer.ggml.pre", "llama-bpe", "its tokenizer is gpt2/llama-bpe"),
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
