"""Where the files of resources/ are, in a checkout and in a packaged app, and how they are read."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SamplePrompt:
    title: str
    prompt: str


def resource(*parts: str) -> Path:
    """The path of a file below resources/."""
    bundle = getattr(sys, "_MEIPASS", None)  # set by PyInstaller's boot loader
    root = Path(bundle) if bundle else Path(__file__).resolve().parents[2]
    return root.joinpath("resources", *parts)


@lru_cache(maxsize=1)
def sample_prompts() -> tuple[SamplePrompt, ...]:
    rows = json.loads(resource("prompts.json").read_text(encoding="utf-8"))
    return tuple(SamplePrompt(row["title"], row["prompt"]) for row in rows)
