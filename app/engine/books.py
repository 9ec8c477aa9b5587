"""What the scheduler knows of memory: blocks and bytes in plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.engine.values import CacheChoice


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


@dataclass(frozen=True, slots=True)
class Holding:
    """What one chat's caches hold.

    Attributes:
        blocks: Blocks of the pool, those shared with other chats included.
        memory_bytes: nbytes of every array, those shared included.
        uncompressed_bytes: What the method fp16 would hold for as many tokens.
        shared_blocks: Of `blocks`, those that other chats hold too.
        shared_bytes: Of `memory_bytes`, what other chats hold too.
    """

    blocks: int = 0
    memory_bytes: int = 0
    uncompressed_bytes: int = 0
    shared_blocks: int = 0
    shared_bytes: int = 0


class Books(Protocol):
    """What the runner's caches take and would take. Asked between two steps, never during one."""

    def need(self, chat_id: int, n_tokens: int) -> Need:
        """What n_tokens more take in a chat that holds some, while they are exact, which is the most they ever take."""

    def need_anew(self, choice: CacheChoice, n_tokens: int) -> Need:
        """The same for a chat that holds none."""

    def least(self, choice: CacheChoice, n_tokens: int) -> Need:
        """What n_tokens take at least, if all of them were compressed."""

    def held(self, chat_id: int) -> Need:
        """What a chat has of the pool."""

    def holding(self, chat_id: int) -> Holding:
        """What a chat's caches hold; what is shared is not looked for."""
