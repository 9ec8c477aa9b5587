"""FreeBlocks: the free block ids of one stream (standard library only)."""

from __future__ import annotations

from collections import deque


class FreeBlocks:
    """The free blocks of one stream: ids never used (runs of numbers) and ids given back (last in, first out)."""

    __slots__ = ("fresh", "n_fresh", "name", "returned")

    def __init__(self, name: str) -> None:
        self.name = name
        self.returned: list[int] = []
        self.fresh: deque[list[int]] = deque()  # [first, end) of each run, lowest ids first
        self.n_fresh = 0

    @property
    def n_free(self) -> int:
        return len(self.returned) + self.n_fresh

    def add(self, first: int, n: int) -> None:
        if n:
            self.fresh.append([first, first + n])
            self.n_fresh += n

    def take(self, n: int) -> list[int]:
        """Take n ids, those given back first; the caller knows that there are as many."""
        returned = self.returned
        n_old = min(n, len(returned))
        ids: list[int] = []
        if n_old:
            ids = returned[-n_old:]
            ids.reverse()
            del returned[-n_old:]
        missing = n - n_old
        self.n_fresh -= missing
        while missing:
            run = self.fresh[0]
            first, end = run
            run[0] = min(end, first + missing)
            ids.extend(range(first, run[0]))
            missing -= run[0] - first
            if run[0] == end:
                self.fresh.popleft()
        return ids

    def take_one(self) -> int:
        """The id that take(1) would give, in half the time: decoding takes single blocks over and over."""
        if self.returned:
            return self.returned.pop()
        run = self.fresh[0]
        block_id = run[0]
        run[0] = block_id + 1
        self.n_fresh -= 1
        if run[0] == run[1]:
            self.fresh.popleft()
        return block_id

    def retire(self, n: int) -> None:
        """Forget n free ids: those never used first, then those longest unused."""
        n_fresh = min(n, self.n_fresh)
        self.n_fresh -= n_fresh
        del self.returned[: n - n_fresh]
        while n_fresh:
            run = self.fresh[-1]
            first, end = run
            run[1] = max(first, end - n_fresh)
            n_fresh -= end - run[1]
            if run[1] == first:
                self.fresh.pop()
