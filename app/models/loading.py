"""Load an mlx-lm model folder for the device at hand. Runs in the thread that will use the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.models.chat_template import ChatTemplate, ChatTemplateError
from app.models.convert import CONVERTER
from app.models.errors import Cancelled, ModelFileError, contained
from app.models.progress import IsCancelled, Progress
from app.models.weights import installed_memory, weights_bytes
from veloxquant_mlx.core.cpu import prepare_cpu

_OWN_CODE = "The model in {} wants to run code of its own, which this app never does. Choose another model."
# What mlx-lm and its models raise over files that are damaged or of another kind.
_BAD_FILES = (
    OSError,
    ValueError,
    RuntimeError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    ImportError,
    MemoryError,
)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, and what is known about it.

    Attributes:
        n_layers: Layers with a plain KV cache, whose keys and values are (n_kv_heads, n_tokens, head_dim).
        bytes_per_token: Their keys and values of one token, uncompressed, in `dtype`.
        together: Whether several chats may share one decode step.
    """

    model: Any
    tokenizer: Any
    name: str
    folder: Path
    context_limit: int
    n_layers: int
    n_kv_heads: int
    head_dim: int
    bytes_per_token: int
    dtype: str
    device: str
    notices: tuple[str, ...]
    together: bool = True


def load_model(folder: Path, progress: Progress, cancelled: IsCancelled) -> LoadedModel:
    """Load weights and tokenizer, on CPU as float32 (quantized and 16-bit products are many times slower there).

    Raises:
        ModelFileError: The folder can't be used; the message says why.
        Cancelled: `cancelled` returned True.
    """

    def step(stage: str, fraction: float | None) -> None:
        if cancelled():
            raise Cancelled
        progress(stage, fraction)

    config = _config(folder)
    step("Starting MLX", 0.0)
    blas = prepare_cpu()
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache, make_prompt_cache
    from mlx_lm.utils import dequantize_model, load_tokenizer
    from mlx_lm.utils import load_model as load_weights

    from veloxquant_mlx.integrations.mlx_lm import attach, can_batch

    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    step("Reading the weights", 0.2)
    memory, needed = installed_memory(), 0
    try:
        needed = weights_bytes(folder, config, dequantized=on_cpu)
        if memory is not None and needed > memory:
            raise ModelFileError(
                f"The weights of the model in {folder} take {_size(needed)} of memory here, and this computer has "
                f"{_size(memory)}. Choose a smaller model."
            )
        with contained():
            model, settings = load_weights(folder, lazy=True, trust_remote_code=False)
        dtype = _compute_type(config, on_cpu=on_cpu)
        if dtype is not None:
            model.set_dtype(getattr(mx, dtype))
        if on_cpu:
            # The scales and biases are float32 by now, so that nothing is rounded here.
            model = dequantize_model(model)
            model.set_dtype(mx.float32)
        parts = [*model.layers, model]  # the last evaluates what is in no layer
        for i, part in enumerate(parts):
            step("Reading the weights", 0.2 + 0.6 * i / len(parts))
            mx.eval(part.parameters())
    except _BAD_FILES as exc:
        raise _error(
            exc,
            _no_room(folder, needed, memory),
            f"The model in {folder} can't be loaded: {_one_line(exc)} Choose another folder, or download it again.",
        ) from exc
    step("Reading the tokenizer", 0.85)
    try:
        # Where nothing is said, transformers asks on the terminal whether a folder's own code may run.
        with contained():
            tokenizer = load_tokenizer(folder, {"trust_remote_code": False}, eos_token_ids=settings.get("eos_token_id"))
            # Some damage shows only when it is used.
            tokenizer.decode(tokenizer.encode("Hello, world! 1 + 1 = 2"))
    except Exception as exc:  # the tokenizers package raises plain Exception
        if "trust_remote_code" in str(exc):
            raise ModelFileError(_OWN_CODE.format(folder)) from exc
        raise _error(
            exc,
            _no_room(folder, needed, memory),
            f"The tokenizer in {folder} can't be read: {_one_line(exc)} Download the model again.",
        ) from exc
    if not tokenizer.has_chat_template:
        raise ModelFileError(
            f"The model in {folder} has no chat template, so it can't hold a conversation. "
            f"Choose an instruct version of it."
        )
    _guard_template(tokenizer, folder)
    step("Warming up", 0.9)
    try:
        caches = make_prompt_cache(model)
        mx.eval(model(mx.array([[0]]), cache=caches))
        attach(model)
    except _BAD_FILES as exc:
        raise _error(
            exc,
            _no_room(folder, needed, memory),
            f"The model in {folder} can't run: {_one_line(exc)} Choose another folder, or download it again.",
        ) from exc
    plain: list[Any] = [cache for cache in caches if type(cache) is KVCache]
    if not plain:
        raise ModelFileError(
            f"The model in {folder} has no attention layer with a plain KV cache; there is nothing to compress."
        )
    notices = []
    if on_cpu and blas not in ("loaded", "not needed"):
        notices.append(
            "OpenBLAS is missing, so the model runs many times slower than it could. "
            "Install it (on Debian and Ubuntu: sudo apt-get install libopenblas0-pthread) and start the app again."
        )
    together = can_batch(model)
    if not together:
        notices.append(
            f"{_name(folder, config)} can't compute the answers of several chats in one step, so chats that answer at "
            f"the same time share its speed."
        )
    step("Ready", 1.0)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=_name(folder, config),
        folder=folder,
        context_limit=_context_limit(config),
        n_layers=len(plain),
        n_kv_heads=plain[0].keys.shape[1],
        head_dim=plain[0].keys.shape[3],
        bytes_per_token=sum(a[:, :, :1].nbytes for cache in plain for a in (cache.keys, cache.values)),
        dtype=str(plain[0].keys.dtype).removeprefix("mlx.core."),
        device="CPU" if on_cpu else "GPU",
        notices=tuple(notices),
        together=together,
    )


def _guard_template(tokenizer: Any, folder: Path) -> None:
    """Let the chat template run within limits: it is a program that came with the model, and runs on every message."""
    from transformers import PreTrainedTokenizerBase

    # Some tokenizers write conversations in Python, of mlx-lm or of transformers; a folder's own template is a text,
    # or several by name.
    own = type(tokenizer._tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template
    text = tokenizer.chat_template
    text = text.get("default") if isinstance(text, dict) else text
    if own or tokenizer._chat_template is not None or not isinstance(text, str):
        return
    try:
        template = ChatTemplate(text, tokenizer.special_tokens_map)
    except ChatTemplateError as exc:
        raise ModelFileError(
            f"The model in {folder} can't hold a conversation: its chat template doesn't work ({exc}). "
            f"Choose another model, or download it again."
        ) from exc
    tokenizer._chat_template = template.render


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFileError(
            f"{folder} is no model folder: it has no config.json. Choose a folder that mlx-lm can read."
        ) from None
    except (OSError, ValueError, RecursionError) as exc:
        raise ModelFileError(
            f"{folder / 'config.json'} can't be read: {_one_line(exc)} Download the model again."
        ) from exc
    if not isinstance(config, dict):
        raise ModelFileError(f"{folder / 'config.json'} holds no settings. Download the model again.")
    if "model_file" in config or ("auto_map" in config and not config.get("model_type")):
        raise ModelFileError(_OWN_CODE.format(folder))
    return config


def _compute_type(config: dict[str, Any], *, on_cpu: bool) -> str | None:
    """The type all floats get before the model runs, or None where they stay as they are stored.

    This app's converter stores each tensor in the type that holds it best; run like that, a model would be promoted to
    the widest of them.
    """
    if on_cpu:
        return "float32"
    wanted = config.get("torch_dtype")
    return wanted if config.get("converter") == CONVERTER and wanted in ("float16", "bfloat16") else None


def _error(exc: Exception, no_room: str, otherwise: str) -> ModelFileError:
    """MLX says "[malloc] Unable to allocate 4096 bytes" or "Insufficient Memory" in a RuntimeError."""
    words = str(exc).lower()
    out_of_memory = isinstance(exc, RuntimeError) and ("alloc" in words or "memory" in words)
    return ModelFileError(no_room if out_of_memory or isinstance(exc, MemoryError) else otherwise)


def _no_room(folder: Path, needed: int, memory: int | None) -> str:
    has = "" if memory is None else f", and this computer has {_size(memory)} in all"
    return (
        f"There is not enough memory free to load the model in {folder}: its weights take {_size(needed)}{has}. "
        f"Close other programs, or choose a smaller model."
    )


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.1f} MB"


def _context_limit(config: dict[str, Any]) -> int:
    text = config.get("text_config") or {}
    limit = config.get("max_position_embeddings") or text.get("max_position_embeddings")
    return limit if isinstance(limit, int) and limit > 0 else 4096


def _name(folder: Path, config: dict[str, Any]) -> str:
    name = config.get("name")
    return name if isinstance(name, str) and name else folder.name


def _one_line(exc: BaseException) -> str:
    text = " ".join(str(exc).split()) or type(exc).__name__
    return text if text.endswith(".") else text + "."
