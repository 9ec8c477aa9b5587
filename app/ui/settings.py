"""What the window remembers between runs, as text in the store's settings."""

from __future__ import annotations

from app.engine.messages import METHODS, CacheChoice

# Keys of the store's settings table.
CHOICE = "choice"
MEMORY_PANEL = "memory_panel"
THEME = "theme"
GEOMETRY = "geometry"
LANES = "lanes"


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
