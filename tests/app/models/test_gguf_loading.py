"""Which type a converted model runs in: its tensors are stored in several."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from app.models.convert import gguf_to_mlx_folder
from app.models.loading import load_model
from tests.app.models.reference import Reference
from tests.app.models.test_gguf_architectures import TOKENS
from tests.app.models.tiny_models import write_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import gguf

    path = write_tiny(tmp_path / "tiny.gguf", "gemma3", weights=gguf.GGMLQuantizationType.Q8_0)
    gguf_to_mlx_folder(path, tmp_path / "tiny")
    return tmp_path / "tiny"


def test_on_cpu_a_converted_model_computes_in_float32_what_the_file_says(folder: Path) -> None:
    import mlx.core as mx

    loaded = load_model(folder, lambda *_: None, lambda: False)
    assert (loaded.device, loaded.dtype, loaded.name) == ("CPU", "float32", "Tiny model")
    expected = Reference(folder.with_suffix(".gguf")).logits(TOKENS)
    found = np.array(loaded.model(mx.array([TOKENS]))[0])
    assert np.abs(found - expected).max() < 1e-4 * expected.std()


@pytest.mark.parametrize(("converter", "expected"), [("veloxquant-chat", "bfloat16"), ("another", "float32")])
def test_on_a_gpu_a_converted_model_runs_in_its_own_type(
    folder: Path, converter: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlx.core as mx

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "converter": converter}), encoding="utf-8")
    # The CPU computes all the same; only what the app believes is changed.
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    loaded = load_model(folder, lambda *_: None, lambda: False)
    # Without the cast, float32 norms make everything float32 that comes after them.
    assert loaded.dtype == expected
    assert loaded.model.layers[0].self_attn.q_proj.bits == 8
