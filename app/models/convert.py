"""Turns a GGUF file into a folder that mlx_lm.load reads. Pure NumPy: it may run beside the thread that owns MLX."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from app.models.gguf_architectures import Plan, plan_model
from app.models.gguf_file import GgufFile, read_gguf
from app.models.gguf_tokenizer import check_tokenizer, end_tokens, write_tokenizer
from app.models.gguf_weights import quantization, weights_size, write_weights
from app.models.progress import IsCancelled, Progress

# In config.json: tells loading.py that floats may be stored in other types than the model is to run in.
CONVERTER = "veloxquant-chat"


def gguf_to_mlx_folder(
    gguf: Path,
    folder: Path,
    progress: Progress = lambda stage, fraction: None,
    cancelled: IsCancelled = lambda: False,
    *,
    chat: bool = True,
    name: str | None = None,
) -> None:
    """Convert `gguf` into config.json, safetensors files and the tokenizer's files in `folder` (made if missing).

    Weights keep the values they have in the file, or come so near that it doesn't matter: see gguf_blocks.

    Args:
        progress: Called with a fraction that goes from 0 to 1.
        cancelled: Polled some twenty times a second.
        chat: Whether the file must have a chat template that works.
        name: What people will see; the file's own name for the model where None.

    Raises:
        ModelFileError: the file is damaged, or of an architecture, type of weights or tokenizer that can't be
            converted.
        Cancelled: `cancelled()` became true.
        OSError: `folder` can't be written.
        In every case a folder that was not there before is not there afterwards.
    """
    file = read_gguf(gguf)
    plan = plan_conversion(file, chat=chat)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        progress("Writing the tokenizer", 0.0)
        write_tokenizer(file, folder, context_length=plan.config["max_position_embeddings"], chat=chat)
        config = _config(file, plan, name)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        write_weights(file, plan, folder, progress, cancelled)
    except BaseException:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    progress("Converting the model", 1.0)


def plan_conversion(gguf: GgufFile, *, chat: bool = True) -> Plan:
    """Everything that can be known of a conversion before the work begins.

    Raises:
        ModelFileError: as `gguf_to_mlx_folder`.
    """
    plan = plan_model(gguf)
    check_tokenizer(gguf, chat=chat)
    return plan


def converted_size(gguf: GgufFile, plan: Plan) -> int:
    """Bytes that the converted folder takes, and a little more; tokenizers as JSON take up to three times the space."""
    header = gguf.size - sum(tensor.n_bytes for tensor in gguf.tensors.values())
    return weights_size(gguf, plan) + 3 * header + 1_000_000


def display_name(gguf: GgufFile) -> str:
    """The model's own name, or the file's."""
    return gguf.words("general.name")[:80] or gguf.path.stem


def _config(gguf: GgufFile, plan: Plan, name: str | None) -> dict[str, Any]:
    config = {"name": name or display_name(gguf), "converter": CONVERTER, **plan.config}
    if gguf.has("tokenizer.ggml.bos_token_id"):
        config["bos_token_id"] = gguf.integer("tokenizer.ggml.bos_token_id")
    ends = end_tokens(gguf)
    if ends:
        config["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    settings = quantization(gguf, plan)
    if settings is not None:
        config["quantization"] = settings
    return config
