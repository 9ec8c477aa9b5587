"""How long work on a model tells what it does and learns that it should end."""

from __future__ import annotations

from collections.abc import Callable

# (what is being done, for people; how much of everything is done, 0 to 1, or None where that can't be known)
Progress = Callable[[str, float | None], None]
IsCancelled = Callable[[], bool]
