"""AllocationStats: what a block pool has done so far (standard library only)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter


@dataclass
class AllocationStats:
    """What a pool has done so far. `pool.stats` is live; `snapshot()` is a copy that belongs together.

    Attributes:
        n_blocks: Blocks in the pool now.
        n_allocations: Blocks handed out, since the start.
        n_frees: Blocks given back, since the start.
        n_reused: Of n_allocations, those that had been used before.
        n_exhausted: Calls of allocate that were refused.
        n_grown: Blocks added after the start.
        n_retired: Blocks taken out for good by shrink.
        peak_blocks_in_use: The most blocks in use at one time.
        n_partly_filled: Blocks in use with some tokens, but not block_size of them, now.
        bytes_in_use: Bytes of all blocks in use, each in its format, now; blocks whose holder didn't say count 0.
        peak_bytes_in_use: The most bytes in use at one time.
        n_shared: Blocks in use that have more than one handle, now. All other counts have each of them once.
    """

    n_blocks: int
    n_allocations: int = 0
    n_frees: int = 0
    n_reused: int = 0
    n_exhausted: int = 0
    n_grown: int = 0
    n_retired: int = 0
    peak_blocks_in_use: int = 0
    n_partly_filled: int = 0
    bytes_in_use: int = 0
    peak_bytes_in_use: int = 0
    n_shared: int = 0

    def __post_init__(self) -> None:
        # The pool these belong to takes this very lock for every change, so a reader never sees half of one.
        self._lock = threading.Lock()

    def blocks_in_use(self) -> int:
        """Blocks held by anybody now."""
        with self._lock:
            return self.n_allocations - self.n_frees

    def fragmentation(self) -> float:
        """Partly filled blocks over all blocks of the pool, 0 to 1; 0.0 for a pool without blocks."""
        with self._lock:
            return self.n_partly_filled / self.n_blocks if self.n_blocks else 0.0

    def snapshot(self) -> AllocationStats:
        """An independent copy of all counts at one moment."""
        with self._lock:
            values = counts(self)
        return AllocationStats(*values)

    def __reduce__(self) -> tuple[type[AllocationStats], tuple[int, ...]]:
        # A lock can't be copied or pickled; the counts can.
        with self._lock:
            return AllocationStats, counts(self)

    def to_prometheus(self, prefix: str = "veloxquant_block_pool") -> str:
        """These counts in the Prometheus text format, ending in a newline, all from one moment."""
        now = self.snapshot()
        rows: list[tuple[str, str, int | str]] = [
            ("blocks_in_use", "gauge", now.blocks_in_use()),
            ("blocks_total", "gauge", now.n_blocks),
            ("blocks_shared", "gauge", now.n_shared),
            ("fragmentation", "gauge", f"{now.fragmentation():.6f}"),
            ("peak_blocks_in_use", "gauge", now.peak_blocks_in_use),
            ("bytes_in_use", "gauge", now.bytes_in_use),
            ("peak_bytes_in_use", "gauge", now.peak_bytes_in_use),
            ("allocations_total", "counter", now.n_allocations),
            ("frees_total", "counter", now.n_frees),
            ("reused_total", "counter", now.n_reused),
            ("exhausted_total", "counter", now.n_exhausted),
            ("grown_total", "counter", now.n_grown),
            ("retired_total", "counter", now.n_retired),
        ]
        return "".join(f"# TYPE {prefix}_{name} {kind}\n{prefix}_{name} {value}\n" for name, kind, value in rows)


# All counts in the order of the fields; the caller holds the lock. An attrgetter: allocate() records them every time.
counts: Callable[[AllocationStats], tuple[int, ...]] = attrgetter(*(field.name for field in fields(AllocationStats)))
