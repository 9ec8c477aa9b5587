"""Blocks and bytes in plain numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """Blocks of each stream, and what they take together."""

    n_k: int = 0
    n_v: int = 0
    n_bytes: int = 0

    def __add__(self, other: Need) -> Need:
        return Need(self.n_k + other.n_k, self.n_v + other.n_v, self.n_bytes + other.n_bytes)

    @property
    def n_blocks(self) -> int:
        return self.n_k + self.n_v
