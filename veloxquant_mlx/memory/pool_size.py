"""PoolSize: how many blocks and bytes a pool may use, and how many are free (standard library only)."""

from __future__ import annotations

from typing import NoReturn

from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError
from veloxquant_mlx.memory.blocks import PoolConfig, whole
from veloxquant_mlx.memory.free_blocks import FreeBlocks
from veloxquant_mlx.memory.pool_stats import AllocationStats


class PoolSize:
    """What a block pool knows before anybody holds a block of it: its streams of free blocks, and its limits."""

    def __init__(self, config: PoolConfig | None = None) -> None:
        self.config = config or PoolConfig()
        self.stats = AllocationStats(n_blocks=self.config.n_blocks)
        self._lock = self.stats._lock
        self._block_size = self.config.block_size
        self._max_bytes = self.config.max_bytes
        n = self.config.n_blocks
        self._next_id = n
        names = ("k", "v") if self.config.separate_kv else ("kv",)
        self._streams = {name: FreeBlocks(name) for name in names}
        self._only = None if self.config.separate_kv else self._streams["kv"]
        if self._only:
            self._only.add(0, n)
        else:
            self._streams["k"].add(0, n - n // 2)
            self._streams["v"].add(n - n // 2, n // 2)

    # ------------------------------------------------------------------ blocks
    def n_free(self, stream: str = "k") -> int:
        """Free blocks of a stream, growth not counted."""
        with self._lock:
            return self._stream(stream).n_free

    def can_allocate(self, n_k: int, n_v: int, n_bytes: int = 0) -> bool:
        """Whether n_k blocks for keys and n_v for values, n_bytes in all, could be taken now, growth included."""
        whole("n_k", n_k, 0)
        whole("n_v", n_v, 0)
        with self._lock:
            if not self._bytes_fit(n_bytes):
                return False
            if self._only:
                short = max(0, n_k + n_v - self._only.n_free)
            else:
                short = max(0, n_k - self._streams["k"].n_free) + max(0, n_v - self._streams["v"].n_free)
            return short == 0 or (self.config.grow_on_exhaustion and self._fits(short))

    def require(self, n_k: int, n_v: int, n_bytes: int = 0) -> None:
        """Make sure that can_allocate holds, without taking anything.

        Raises:
            BlockPoolExhaustedError: They could not.
        """
        if not self.can_allocate(n_k, n_v, n_bytes):
            with self._lock:
                if not self._bytes_fit(n_bytes):
                    self._refuse_bytes(n_bytes)
                self._refuse(n_k + n_v, "/".join(self._streams))

    def grow(self, stream: str, n: int) -> None:
        """Add n blocks to a stream.

        Raises:
            ValueError: for an unknown stream or n below 1.
            BlockPoolExhaustedError: The pool would be larger than max_blocks; nothing was added.
        """
        whole("n", n, 1)
        with self._lock:
            target = self._stream(stream)
            if not self._fits(n):
                raise BlockPoolExhaustedError(
                    f"{n} more blocks would make {self.stats.n_blocks + n}, and this pool may have at most "
                    f"{self.config.max_blocks}; add fewer, or build the pool with a larger max_blocks."
                )
            self._add(target, n)

    def shrink(self, stream: str, target_free: int) -> int:
        """Take free blocks out of a stream for good, until target_free are left; blocks in use are never touched.

        Returns:
            How many blocks were retired. Their ids are not used again.

        Raises:
            ValueError: for an unknown stream or target_free below 0.
        """
        whole("target_free", target_free, 0)
        with self._lock:
            source = self._stream(stream)
            n = max(0, source.n_free - target_free)
            source.retire(n)
            self.stats.n_blocks -= n
            self.stats.n_retired += n
            return n

    # ------------------------------------------------------------------ bytes
    @property
    def bytes_in_use(self) -> int:
        """Bytes of all blocks in use, each as its format has it; blocks whose holder didn't say count 0."""
        with self._lock:
            return self.stats.bytes_in_use

    @property
    def max_bytes(self) -> int | None:
        """The most bytes that blocks in use may have together; None is no limit. `limit_bytes` changes it."""
        with self._lock:
            return self._max_bytes

    def limit_bytes(self, max_bytes: int | None) -> None:
        """Set max_bytes. Where more is in use already, nothing is taken away, and nothing more is given out.

        Raises:
            ValueError: max_bytes is below 1 and not None.
        """
        if max_bytes is not None:
            whole("max_bytes", max_bytes, 1)
        with self._lock:
            self._max_bytes = max_bytes

    def free_bytes(self) -> int | None:
        """What max_bytes leaves for more blocks, at least 0; None without a limit."""
        with self._lock:
            return None if self._max_bytes is None else max(0, self._max_bytes - self.stats.bytes_in_use)

    # ------------------------------------------------------------------ inside the lock
    def _stream(self, name: str) -> FreeBlocks:
        stream = self._only or self._streams.get(name)
        if stream is None:
            raise ValueError(f'This pool has the streams "k" and "v", and no stream {name!r}.')
        return stream

    def _fits(self, n: int) -> bool:
        limit = self.config.max_blocks
        return limit is None or self.stats.n_blocks + n <= limit

    def _bytes_fit(self, n_bytes: int) -> bool:
        # Nothing always fits, also where a lowered limit is below what is in use.
        return self._max_bytes is None or not n_bytes or self.stats.bytes_in_use + n_bytes <= self._max_bytes

    def _refuse_bytes(self, n_bytes: int) -> NoReturn:
        self.stats.n_exhausted += 1
        raise BlockPoolExhaustedError(
            f"{n_bytes:,} bytes were asked for, and of the {self._max_bytes:,} that this pool may use, "
            f"{self.stats.bytes_in_use:,} are in use. Free what other owners hold, ask for fewer tokens, or raise "
            f"max_bytes with limit_bytes()."
        )

    def _add(self, stream: FreeBlocks, n: int) -> None:
        stream.add(self._next_id, n)
        self._next_id += n
        self.stats.n_blocks += n
        self.stats.n_grown += n

    def _grow_or_refuse(self, stream: FreeBlocks, n: int) -> None:
        short = n - stream.n_free
        if self.config.grow_on_exhaustion:
            # Growth that falls short of the request still counts, and stays (the public library's meaning).
            limit = self.config.max_blocks
            self._add(stream, short if limit is None else min(short, limit - self.stats.n_blocks))
            if n <= stream.n_free:
                return
        self._refuse(n, stream.name)

    def _refuse(self, n: int, name: str) -> NoReturn:
        self.stats.n_exhausted += 1
        free = ", ".join(f"{s.n_free} free in {s.name!r}" for s in self._streams.values())
        larger = "max_blocks" if self.config.grow_on_exhaustion else "n_blocks (or grow_on_exhaustion=True)"
        raise BlockPoolExhaustedError(
            f"{n} blocks of {self._block_size} tokens were asked for in stream {name!r}, and the pool of "
            f"{self.stats.n_blocks} blocks has {free}. Free what other owners hold, ask for fewer tokens, or build "
            f"the pool with a larger {larger}."
        )
