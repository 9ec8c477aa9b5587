"""What weights will take, and what is said where it is too much; and a folder's own code, which never runs."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from app.models import loading
from app.models.chat_template import ChatTemplateError
from app.models.errors import ModelFileError
from app.models.loading import LoadedModel, load_model
from app.models.weights import installed_memory, weights_bytes

GB = 1_000_000_000


@pytest.fixture
def copy(tiny_model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def load(folder: Path) -> LoadedModel:
    return load_model(folder, lambda stage, fraction: None, lambda: False)


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def held(loaded: LoadedModel) -> int:
    """Bytes of the arrays a loaded model has."""
    arrays: Any = tree_flatten(loaded.model.parameters())
    n_bytes: int = sum(array.nbytes for _, array in arrays)
    return n_bytes


def in_the_file(folder: Path) -> int:
    weights: Any = mx.load(str(folder / "model.safetensors"))
    n_bytes: int = sum(array.nbytes for array in weights.values())
    return n_bytes


def quantize(folder: Path, bits: int, dtype: mx.Dtype = mx.float16) -> None:
    """All matrices with so many bits, the first layer's q_proj with 8, and its k_proj not at all."""
    weights: Any = mx.load(str(folder / "model.safetensors"))
    layer = "model.layers.0.self_attn"
    quantization: dict[str, Any] = {"group_size": 32, "bits": bits, f"{layer}.k_proj": False}
    quantization[f"{layer}.q_proj"] = {"group_size": 32, "bits": 8}
    made = {}
    for name, array in weights.items():
        path = name.removesuffix(".weight")
        if array.ndim != 2 or path == f"{layer}.k_proj":
            made[name] = array.astype(dtype)
            continue
        n_bits = 8 if path == f"{layer}.q_proj" else bits
        packed, scales, biases = mx.quantize(array.astype(dtype), group_size=32, bits=n_bits)
        made |= {f"{path}.weight": packed, f"{path}.scales": scales, f"{path}.biases": biases}
    mx.save_safetensors(str(folder / "model.safetensors"), made, metadata={"format": "mlx"})
    edit_json(folder / "config.json", quantization=quantization)


# ---------------------------------------------------------------- what weights take
def test_the_default_models_weights_take_what_is_said(default_model_dir: Path) -> None:
    config = config_of(default_model_dir)
    assert weights_bytes(default_model_dir, config, dequantized=True) == held(load(default_model_dir))
    assert weights_bytes(default_model_dir, config, dequantized=False) == in_the_file(default_model_dir)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_packed_weights_are_counted_as_what_they_become(copy: Path, bits: int) -> None:
    """3, 5 and 6 bits don't divide a word; and some layers have bits of their own, or none."""
    quantize(copy, bits)
    assert weights_bytes(copy, config_of(copy), dequantized=True) == held(load(copy))
    assert weights_bytes(copy, config_of(copy), dequantized=False) == in_the_file(copy)


def test_weights_of_16_bits_take_twice_as_much_on_a_cpu_and_in_several_files(copy: Path) -> None:
    weights: Any = mx.load(str(copy / "model.safetensors"))
    half = {name: array.astype(mx.bfloat16) for name, array in weights.items()}
    (copy / "model.safetensors").unlink()
    for i in (0, 1):
        part = dict(list(half.items())[i::2])
        mx.save_safetensors(str(copy / f"model-0000{i + 1}-of-00002.safetensors"), part, metadata={"format": "mlx"})
    assert weights_bytes(copy, config_of(copy), dequantized=True) == held(load(copy))
    assert weights_bytes(copy, config_of(copy), dequantized=False) * 2 == held(load(copy))


def test_this_computers_memory_is_what_the_system_says() -> None:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        pytest.skip("a system without /proc")
    total = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemTotal:"))
    assert installed_memory() == int(total.split()[1]) * 1024


# ---------------------------------------------------------------- more than there is
def header(path: Path, tensors: dict[str, object], n_data: int = 0) -> None:
    """A file that says it has these tensors; its data is a hole."""
    text = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with path.open("ab") as file:
        file.truncate(8 + len(text) + n_data)


def test_a_model_that_is_larger_than_memory_is_refused_before_its_weights_are_read(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 6 * GB // 2
    tensor = {"dtype": "F16", "shape": [n // 1_000, 1_000], "data_offsets": [0, 2 * n]}
    header(copy / "model.safetensors", {"__metadata__": {"format": "mlx"}, "lm_head.weight": tensor}, n_data=2 * n)
    monkeypatch.setattr(loading, "installed_memory", lambda: 8 * GB)
    read: list[str] = []
    monkeypatch.setattr(mx, "load", read.append)
    with pytest.raises(ModelFileError) as refused:
        load(copy)
    assert str(copy) in str(refused.value)
    assert "12.0 GB" in str(refused.value)  # 6 GB on the disk
    assert "8.0 GB" in str(refused.value)
    assert "smaller model" in str(refused.value)
    assert not read


def test_a_model_that_just_fits_is_loaded_and_one_byte_less_is_too_little(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = held(load(copy))
    monkeypatch.setattr(loading, "installed_memory", lambda: needed)
    assert held(load(copy)) == needed
    monkeypatch.setattr(loading, "installed_memory", lambda: None)  # a system that doesn't tell
    assert held(load(copy)) == needed
    monkeypatch.setattr(loading, "installed_memory", lambda: needed - 1)
    with pytest.raises(ModelFileError, match="smaller model"):
        load(copy)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[malloc] Unable to allocate 4294967296 bytes."),
        RuntimeError("[metal::malloc] Attempting to allocate 1 bytes which is greater than the maximum"),
        RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory (00000008)"),
        MemoryError(),
        MemoryError("std::bad_alloc"),
    ],
)
@pytest.mark.parametrize("where", ["mlx.core.eval", "mlx_lm.utils.load_model", "mlx_lm.utils.load_tokenizer"])
def test_running_out_of_memory_while_loading_says_so_in_words(
    copy: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, where: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(where, fail)
    monkeypatch.setattr(loading, "installed_memory", lambda: 8 * GB)
    with pytest.raises(ModelFileError) as refused:
        load(copy)
    assert "not enough memory" in str(refused.value)
    assert "12.9 MB" in str(refused.value)  # the tiny model's weights
    assert "8.0 GB" in str(refused.value)
    assert "Close other programs" in str(refused.value)


def test_another_runtime_error_is_not_taken_for_it(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("[matmul] Last dimension of first input does not match.")

    monkeypatch.setattr("mlx.core.eval", fail)
    with pytest.raises(ModelFileError, match=r"can't be loaded: \[matmul\]"):
        load(copy)


# ---------------------------------------------------------------- damaged headers
GOOD = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        b"\xff" * 100,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2**40) + b"{}",
        struct.pack("<Q", 10) + b"x" * 50,
        struct.pack("<Q", 4) + b"\xff\xfe{}" + b"x" * 50,
        struct.pack("<Q", 100_000) + b"[" * 100_000,
        struct.pack("<Q", 3) + b"[1]",
        struct.pack("<Q", 4) + b"null",
        *(
            struct.pack("<Q", len(text)) + text + bytes(16)
            for text in (
                json.dumps({"a": changed}).encode()
                for changed in (
                    1,
                    None,
                    {"dtype": "F32"},
                    GOOD | {"shape": [-4]},
                    GOOD | {"shape": "x"},
                    GOOD | {"shape": [1.5]},
                    GOOD | {"shape": [2**70]},
                    GOOD | {"data_offsets": [0]},
                    GOOD | {"data_offsets": [16, 0]},
                    GOOD | {"data_offsets": [0, 10**12]},
                    GOOD | {"data_offsets": ["a", "b"]},
                )
            )
        ),
    ],
)
def test_a_file_that_is_no_safetensors_file_cant_be_loaded(copy: Path, content: bytes) -> None:
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"can't be loaded: model\.safetensors .* download it again\.$"):
        load(copy)


def test_a_header_longer_than_the_format_allows_is_not_read(copy: Path) -> None:
    with (copy / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 200_000_000))
        file.truncate(300_000_000)  # a hole
    with pytest.raises(ModelFileError, match=r"can't be loaded: model\.safetensors is no safetensors file"):
        load(copy)


@pytest.mark.parametrize("quantization", ["x", {"bits": "x"}, {"bits": 0}, {"bits": 64}, {"group_size": 32}, [], 4])
def test_a_config_with_an_impossible_quantization_is_a_message(copy: Path, quantization: object) -> None:
    quantize(copy, 4)
    edit_json(copy / "config.json", quantization=quantization)
    with pytest.raises(ModelFileError, match="can't be loaded"):
        load(copy)


# ---------------------------------------------------------------- a folder's own code
@pytest.fixture
def evil(copy: Path) -> Path:
    for name in ("modeling_evil.py", "tokenization_evil.py", "configuration_evil.py"):
        (copy / name).write_text(f"open({str(copy / 'ran')!r}, 'w')\nclass Model: pass\nclass Evil: pass\n")
    return copy


def test_code_for_the_model_is_refused_and_does_not_run(evil: Path) -> None:
    edit_json(evil / "config.json", model_file="modeling_evil.py")
    with pytest.raises(ModelFileError, match="code of its own"):
        load(evil)
    assert not (evil / "ran").exists()


def test_code_for_a_model_of_unknown_type_is_refused_and_does_not_run(evil: Path) -> None:
    edit_json(evil / "config.json", model_type=None, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    with pytest.raises(ModelFileError, match="code of its own"):
        load(evil)
    assert not (evil / "ran").exists()


def test_a_model_that_is_known_without_its_code_is_loaded_without_it(evil: Path) -> None:
    """Many folders carry code for transformers that mlx-lm has no use for."""
    auto_map = {"AutoConfig": "configuration_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"}
    edit_json(evil / "config.json", auto_map=auto_map)
    assert load(evil).n_layers == 2
    assert not (evil / "ran").exists()


def test_code_for_the_tokenizer_is_refused_without_asking_and_does_not_run(
    evil: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers asks on the terminal where it was not told."""
    monkeypatch.setattr("builtins.input", lambda _: "y")
    edit_json(
        evil / "tokenizer_config.json",
        tokenizer_class="Evil",
        auto_map={"AutoTokenizer": ["tokenization_evil.Evil", None]},
    )
    with pytest.raises(ModelFileError, match="code of its own"):
        load(evil)
    assert not (evil / "ran").exists()


def test_trust_is_never_given(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlx_lm.utils

    asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def watched(real: Any) -> Any:
        def watch(folder: Path, *args: Any, **settings: Any) -> Any:
            asked.append((args, settings))
            return real(folder, *args, **settings)

        return watch

    for name in ("load_model", "load_tokenizer"):
        monkeypatch.setattr(mlx_lm.utils, name, watched(getattr(mlx_lm.utils, name)))
    load(copy)
    (_, weights), (tokenizer, _) = asked
    assert weights["trust_remote_code"] is False
    assert tokenizer == ({"trust_remote_code": False},)


def test_an_answer_ends_at_every_token_the_model_ends_turns_with(copy: Path) -> None:
    edit_json(copy / "config.json", eos_token_id=[2, 7])
    assert load(copy).tokenizer.eos_token_ids == {2, 7}


def test_a_chat_template_gives_the_tokens_it_gives_in_transformers(default_model_dir: Path) -> None:
    from transformers import AutoTokenizer

    turns = [{"role": role, "content": f"{role}’s  words\n"} for role in ("system", "user", "assistant", "user")]
    expected = AutoTokenizer.from_pretrained(default_model_dir).apply_chat_template(
        turns, add_generation_prompt=True, return_dict=False
    )
    assert load(default_model_dir).tokenizer.apply_chat_template(turns, add_generation_prompt=True) == expected


def test_a_chat_template_that_never_ends_for_some_messages_is_stopped(copy: Path) -> None:
    forever = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    template = f"{{% if messages[0].content == 'Now' %}}{forever}{{% endif %}}{{{{ messages[0].content }}}}"
    edit_json(copy / "tokenizer_config.json", chat_template=template)
    tokenizer = load(copy).tokenizer
    assert tokenizer.decode(tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}])) == "Hello"
    with pytest.raises(ChatTemplateError, match="far more than a chat template needs"):
        tokenizer.apply_chat_template([{"role": "user", "content": "Now"}])


def test_a_chat_template_that_is_no_program_is_a_message(copy: Path) -> None:
    edit_json(copy / "tokenizer_config.json", chat_template="{% for")
    with pytest.raises(ModelFileError, match="its chat template doesn't work"):
        load(copy)


def test_a_tokenizer_that_panics_is_a_message(copy: Path) -> None:
    path = copy / "tokenizer.json"
    broken = json.loads(path.read_text())
    broken["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    path.write_text(json.dumps(broken))
    with pytest.raises(ModelFileError, match=r"The tokenizer in .* can't be read"):
        load(copy)


def test_a_model_whose_code_ends_the_program_is_a_message(copy: Path) -> None:
    """mlx-lm's olmo does so where the package hf_olmo is missing."""
    edit_json(copy / "config.json", model_type="olmo")
    with pytest.raises(ModelFileError, match="can't be loaded: SystemExit"):
        load(copy)
