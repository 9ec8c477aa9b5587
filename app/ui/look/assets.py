"""Where the files of resources/ are, in a checkout and in a packaged app, and how they are read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from app.bundle import files_root


@dataclass(frozen=True, slots=True)
class SamplePrompt:
    title: str
    prompt: str


def resource(*parts: str) -> Path:
    """The path of a file below resources/."""
    return files_root().joinpath("resources", *parts)


@lru_cache(maxsize=1)
def sample_prompts() -> tuple[SamplePrompt, ...]:
    rows = json.loads(resource("prompts.json").read_text(encoding="utf-8"))
    return tuple(SamplePrompt(row["title"], row["prompt"]) for row in rows)
