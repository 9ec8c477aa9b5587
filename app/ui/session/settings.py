"""What the window remembers between runs: texts in the store's settings, and each chat's own choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from app.engine.messages import METHODS, CacheChoice, Sampling

# Keys of the store's settings table.
CHOICE = "choice"
MEMORY_PANEL = "memory_panel"
THEME = "theme"
GEOMETRY = "geometry"
LANES = "lanes"
BUDGET = "budget"
DROP_IDLE = "drop_idle"
MODEL = "model"  # the folder of the model used last; empty for the default model
TRIED = "model_tried"  # the same folder, while it is being opened at a start
PLACE = "place"  # the folder in which a model was looked for last

NO_BUDGET = "none"


def write_choice(choice: CacheChoice) -> str:
    return f"{choice.method}/{choice.key_bits}/{choice.value_bits}"


def parse_choice(text: str) -> CacheChoice:
    """The choice written in `text`, or the default where it can't be read or this version lacks the method."""
    method, _, bits = text.partition("/")
    key_bits, _, value_bits = bits.partition("/")
    if method not in METHODS:
        return CacheChoice()
    try:
        return CacheChoice(method, int(key_bits), int(value_bits))
    except ValueError:
        return CacheChoice()


def write_budget(max_bytes: int | None) -> str:
    return NO_BUDGET if max_bytes is None else str(max_bytes)


def parse_budget(text: str) -> int | None:
    """The budget written in `text`; None is no limit, also where it can't be read."""
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What was chosen for one chat.

    Attributes:
        sampling: None is the application's own choice.
        drop_oldest: Leave the oldest messages out when the context is full.
        context_limit: Tokens the chat may have; None is as many as the model reads.
    """

    sampling: Sampling | None = None
    drop_oldest: bool = False
    context_limit: int | None = None

    def write(self) -> dict[str, Any]:
        """As JSON values, what was not chosen left out."""
        kept: dict[str, Any] = {}
        if self.sampling is not None:
            kept["sampling"] = asdict(self.sampling)
        if self.drop_oldest:
            kept["drop_oldest"] = True
        if self.context_limit is not None:
            kept["context_limit"] = self.context_limit
        return kept

    @classmethod
    def parse(cls, kept: Mapping[str, Any]) -> ChatSettings:
        """What write() made; what can't be used, by this version at least, is as if it had not been chosen."""
        limit = kept.get("context_limit")
        return cls(
            _parse_sampling(kept.get("sampling")),
            kept.get("drop_oldest") is True,
            limit if type(limit) is int and limit > 0 else None,
        )


def _parse_sampling(kept: object) -> Sampling | None:
    if not isinstance(kept, dict):
        return None
    values: dict[str, Any] = {field.name: kept[field.name] for field in fields(Sampling) if field.name in kept}
    try:
        return Sampling(**values | {"stop": tuple(values.get("stop", ()))})
    except (TypeError, ValueError):
        return None
