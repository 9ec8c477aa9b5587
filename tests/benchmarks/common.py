"""What the benchmarks share: the machine's name, the model, where results go."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from app.models import find_default_model
from app.models.loading import LoadedModel, load_model

RESULTS = Path(__file__).parents[2] / "build" / "bench"

MODEL = "SmolLM2-135M-Instruct"


def load() -> LoadedModel:
    """The default model, as the app loads it."""
    folder = find_default_model()
    if folder is None:
        raise SystemExit("The default model is not here yet; run `make run` or `make test` once.")
    return load_model(folder, lambda stage, fraction: None, lambda: False)


def text() -> str:
    """English that ships with Python: the language reference's topics, as `help()` shows them."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def keys_and_values(loaded: LoadedModel, n_tokens: int = 1024) -> list[tuple[mx.array, mx.array]]:
    """What the model makes of n_tokens of text: keys and values of each layer, (n_kv_heads, n_tokens, d)."""
    tokens = mx.array(loaded.tokenizer.encode(text()[: n_tokens * 8])[:n_tokens])
    caches = make_prompt_cache(loaded.model)
    for start in range(0, n_tokens, 256):
        loaded.model(tokens[None, start : start + 256], cache=caches)
        mx.eval([cache.state for cache in caches])
    return [(cache.keys[0, :, :n_tokens], cache.values[0, :, :n_tokens]) for cache in caches]


def machine() -> str:
    """Processor, cores, system and versions, in one line."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), processor)
    device = str(mx.default_device().type).rpartition(".")[2].upper()
    return (
        f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, MLX {version('mlx')} on "
        f"{device}, mlx-lm {version('mlx-lm')}, Python {platform.python_version()}"
    )


def write(name: str, results: dict[str, Any]) -> None:
    """Keep one benchmark's results for the table."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine(), **results}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def read(name: str) -> dict[str, Any] | None:
    """One benchmark's results, if it has run."""
    file = RESULTS / f"{name}.json"
    found: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    return found


def seconds(act: Callable[[], object]) -> float:
    """How long act takes, once."""
    start = perf_counter()
    act()
    return perf_counter() - start


def median(numbers: Sequence[float]) -> float:
    return statistics.median(numbers)
