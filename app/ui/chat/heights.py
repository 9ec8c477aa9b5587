"""How high the parts of a column are, known or estimated, and where each one begins."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate


class Heights:
    """Parts below each other, in whole pixels. Where one begins is added up anew only behind what has changed."""

    def __init__(self, heights: Iterable[int] = ()) -> None:
        self._heights = list(heights)
        self._ends: list[int] = []  # of the parts before the first change
        self._known = 0

    def __len__(self) -> int:
        return len(self._heights)

    def __getitem__(self, index: int) -> int:
        return self._heights[index]

    def set(self, index: int, height: int) -> bool:
        """Returns whether that is a change."""
        if self._heights[index] == height:
            return False
        self._heights[index] = height
        self._known = min(self._known, index)
        return True

    def replace_from(self, index: int, heights: Iterable[int]) -> None:
        """Let these be the parts from `index` on."""
        self._heights[index:] = heights
        self._known = min(self._known, index)

    @property
    def total(self) -> int:
        self._add_up()
        return self._ends[-1] if self._ends else 0

    def y(self, index: int) -> int:
        """Where a part begins; the end of the last one for one too many."""
        self._add_up()
        return self._ends[index - 1] if index else 0

    def at(self, y: int) -> int:
        """The part at a height; the first or the last one beyond the ends."""
        self._add_up()
        return max(0, min(bisect_right(self._ends, y), len(self._heights) - 1))

    def _add_up(self) -> None:
        if self._known == len(self._heights) == len(self._ends):
            return
        before = self._ends[self._known - 1] if self._known else 0
        self._ends[self._known :] = list(accumulate(self._heights[self._known :], initial=before))[1:]
        self._known = len(self._heights)
