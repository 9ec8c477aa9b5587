"""What has to happen to a list's rows for them to be in another order: as little as possible."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def that_stay(old: Sequence[int], new: Sequence[int]) -> set[int]:
    """The most ids that can stay where they are while the others come, go or move: those in the same order in both.

    They are a longest increasing subsequence of the old rows' new places.
    """
    place = {chat_id: row for row, chat_id in enumerate(new)}
    common = [chat_id for chat_id in old if chat_id in place]
    ends: list[int] = []  # ends[n]: the lowest place at which n + 1 rows in order can end so far
    last: list[int] = []  # and the index in `common` of the row that is there
    before: list[int | None] = []
    for index, chat_id in enumerate(common):
        n = bisect_left(ends, place[chat_id])
        ends[n : n + 1], last[n : n + 1] = [place[chat_id]], [index]
        before.append(last[n - 1] if n else None)
    kept = set()
    at = last[-1] if last else None
    while at is not None:
        kept.add(common[at])
        at = before[at]
    return kept
