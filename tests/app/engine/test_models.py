"""Loading models: what is wrong with a folder is said, and the engine stays usable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from app.engine.messages import AnswerEnded, ChatFailed, LoadModel, ModelFailed, ModelProgress, ModelReady
from app.models import default_model, loading, weights
from tests.app.engine.driver import Driver


@pytest.fixture
def copy(tiny_model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refuse(folder: Path, good: Path) -> str:
    """The message for `folder`, after which a good one must still load."""
    driver = Driver()
    failed = driver.load(folder)
    assert isinstance(failed, ModelFailed)
    assert str(folder) in failed.message
    assert isinstance(driver.load(good), ModelReady)
    driver.open(1)
    assert driver.ask(1, "Hello")
    driver.end()
    return failed.message


def test_a_folder_that_is_not_there(tmp_path: Path, tiny_model_dir: Path) -> None:
    assert "config.json" in refuse(tmp_path / "nowhere", tiny_model_dir)


def test_truncated_weights(copy: Path, tiny_model_dir: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    assert "can't be loaded" in refuse(copy, tiny_model_dir)


def test_missing_weights(copy: Path, tiny_model_dir: Path) -> None:
    (copy / "model.safetensors").unlink()
    assert "can't be loaded" in refuse(copy, tiny_model_dir)


def test_an_unknown_architecture(copy: Path, tiny_model_dir: Path) -> None:
    edit_config(copy, model_type="no_such_model")
    assert "no_such_model" in refuse(copy, tiny_model_dir)


def test_weights_of_another_shape(copy: Path, tiny_model_dir: Path) -> None:
    edit_config(copy, hidden_size=128)
    refuse(copy, tiny_model_dir)


def test_a_damaged_config(copy: Path, tiny_model_dir: Path) -> None:
    (copy / "config.json").write_text("{")
    assert "config.json" in refuse(copy, tiny_model_dir)


def test_a_damaged_tokenizer(copy: Path, tiny_model_dir: Path) -> None:
    (copy / "tokenizer.json").write_text("{}")
    assert "tokenizer" in refuse(copy, tiny_model_dir)


def test_a_tokenizer_without_a_chat_template(copy: Path, tiny_model_dir: Path) -> None:
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings.pop("chat_template")
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "chat template" in refuse(copy, tiny_model_dir)


def test_a_model_that_wants_to_run_its_own_code_is_refused_without_running_it(copy: Path, tiny_model_dir: Path) -> None:
    (copy / "evil.py").write_text(f"open({str(copy / 'ran')!r}, 'w')")
    edit_config(copy, model_file="evil.py")
    assert "code" in refuse(copy, tiny_model_dir)
    assert not (copy / "ran").exists()


def test_a_model_that_is_larger_than_memory(copy: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused with both sizes; the next one, which fits, is loaded."""
    real = weights.weights_bytes

    def weights_bytes(folder: Path, config: dict[str, Any], *, dequantized: bool) -> int:
        return real(folder, config, dequantized=dequantized) * (10_000 if folder == copy else 1)

    monkeypatch.setattr(loading, "weights_bytes", weights_bytes)
    monkeypatch.setattr(loading, "installed_memory", lambda: 64_000_000_000)
    message = refuse(copy, tiny_model_dir)
    assert "128.8 GB" in message
    assert "64.0 GB" in message


def test_a_model_that_runs_out_of_memory(copy: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlx_lm.utils

    real = mlx_lm.utils.load_model

    def load_model(folder: Path, **settings: Any) -> Any:
        if folder == copy:
            raise RuntimeError("[malloc] Unable to allocate 4294967296 bytes.")
        return real(folder, **settings)

    monkeypatch.setattr(mlx_lm.utils, "load_model", load_model)
    message = refuse(copy, tiny_model_dir)
    assert "not enough memory" in message
    assert "Close other programs" in message


def test_a_header_that_is_garbage(copy: Path, tiny_model_dir: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"\xff" * 1_000)
    assert "can't be loaded: model.safetensors" in refuse(copy, tiny_model_dir)


def test_a_tokenizer_that_would_run_its_own_code(copy: Path, tiny_model_dir: Path) -> None:
    (copy / "evil.py").write_text(f"open({str(copy / 'ran')!r}, 'w')\nclass Evil: pass\n")
    path = copy / "tokenizer_config.json"
    changes = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert "code of its own" in refuse(copy, tiny_model_dir)
    assert not (copy / "ran").exists()


def test_a_config_nested_without_end(copy: Path, tiny_model_dir: Path) -> None:
    (copy / "config.json").write_text("[" * 200_000)
    assert "config.json" in refuse(copy, tiny_model_dir)


def test_the_default_model_missing_can_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VELOXQUANT_MODELS_DIR", str(tmp_path))
    driver = Driver()
    driver.engine.submit(LoadModel())
    failed = driver.until(lambda e: isinstance(e, ModelFailed))
    assert isinstance(failed, ModelFailed)
    assert failed.can_fetch
    driver.end()


def test_a_packaged_app_without_its_model_offers_no_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VELOXQUANT_MODELS_DIR", str(tmp_path))
    monkeypatch.setattr(default_model, "is_packaged", lambda: True)
    driver = Driver()
    driver.engine.submit(LoadModel())
    failed = driver.until(lambda e: isinstance(e, ModelFailed))
    assert isinstance(failed, ModelFailed)
    assert not failed.can_fetch
    assert "install the app again" in failed.message
    driver.end()


def test_progress_goes_up_to_one(tiny_model_dir: Path) -> None:
    driver = Driver()
    driver.load(tiny_model_dir)
    fractions = [e.fraction for e in driver.log if isinstance(e, ModelProgress) and e.fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    driver.end()


def test_loading_another_model_keeps_the_chats(tiny_model_dir: Path, copy: Path) -> None:
    driver = Driver()
    driver.load(tiny_model_dir)
    driver.open(1, "turboquant_mse")
    first = driver.ask(1, "Hello")
    driver.send(1, "Hello", max_tokens=400)
    driver.load(copy)
    ended = driver.log[-1:] + [e for e in driver.log if isinstance(e, (ChatFailed, AnswerEnded))]
    assert any(isinstance(e, ChatFailed) and "model was changed" in e.message for e in ended)
    assert driver.ask(1, "Hello") == first  # the copy is the same model
    driver.end()


def test_a_model_that_can_not_be_loaded_does_not_keep_the_one_before_in_memory(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    others = mx.get_active_memory()  # of arrays that other tests' fixtures hold
    driver = Driver()
    driver.load(tiny_model_dir)
    weights = driver.memory(lambda report: report.pool.active_bytes > others).pool.active_bytes - others
    assert isinstance(driver.load(tmp_path / "nowhere"), ModelFailed)
    assert driver.memory(lambda report: report.pool.active_bytes < others + weights / 4)
    driver.end()
