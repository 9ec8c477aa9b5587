"""PoolConfig and Block: how large a pool is, and one lease of one of its blocks (standard library only)."""

from __future__ import annotations

from dataclasses import dataclass


def whole(name: str, number: object, least: int) -> int:
    """`number` if it is an int of at least `least`; ValueError saying so otherwise (a bool is no number)."""
    if type(number) is not int or number < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {number!r}.")
    return number


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """How large a pool is and whether it may grow.

    Attributes:
        block_size: Tokens per block.
        n_blocks: Blocks at the start, over all streams.
        separate_kv: Keys and values each have half of the blocks (an odd one goes to "k"); otherwise one stream "kv".
        grow_on_exhaustion: Add the missing blocks instead of refusing.
        max_blocks: The most blocks the pool may grow to, over all streams; None is no limit.
        max_bytes: The most bytes that blocks in use may have together, to begin with; None is no limit.

    Raises:
        ValueError: naming the field, what it was and what is allowed.
    """

    block_size: int = 16
    n_blocks: int = 1024
    separate_kv: bool = True
    grow_on_exhaustion: bool = False
    max_blocks: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        whole("PoolConfig.block_size", self.block_size, 1)
        whole("PoolConfig.n_blocks", self.n_blocks, 1)
        for name in ("separate_kv", "grow_on_exhaustion"):
            flag = getattr(self, name)
            if type(flag) is not bool:
                raise ValueError(f"PoolConfig.{name} must be True or False, not {flag!r}.")
        if self.max_bytes is not None:
            whole("PoolConfig.max_bytes", self.max_bytes, 1)
        if self.max_blocks is not None and whole("PoolConfig.max_blocks", self.max_blocks, 1) < self.n_blocks:
            raise ValueError(
                f"PoolConfig.max_blocks={self.max_blocks} is smaller than n_blocks={self.n_blocks}, the size the pool "
                f"starts with; raise max_blocks or lower n_blocks."
            )


@dataclass(slots=True, eq=False)
class Block:
    """One owner's handle of one block. Read it freely; only the pool writes it (`mark_used`, `mark_format`, `free`).

    Attributes:
        block_id: Which block; two live handles with one id are of one lease that owners share (`share`).
        stream: "k", "v", or "kv" in a pool with one stream.
        format: What is stored in it ("fp16", "turboquant_mse", ...), for information.
        n_used: Tokens in it, 0 to block_size.
        owner: Who holds it; None once it is freed.
        n_bytes: What its room for block_size tokens takes in this format; 0 where its holder didn't say.
    """

    block_id: int
    stream: str = "kv"
    format: str = "fp16"
    n_used: int = 0
    owner: int | None = None
    n_bytes: int = 0
