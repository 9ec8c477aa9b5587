"""Where one text first differs from another, in words and in characters, and how to say it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Difference:
    """What two texts share from their start.

    Attributes:
        words: Whole words both begin with.
        at: The character in the second text where the first word that is not shared begins; None when nothing differs
            as far as can be told.
        complete: False while more text of either may come, and what there is so far agrees.
    """

    words: int
    at: int | None
    complete: bool


def first_difference(reference: str, text: str, reference_done: bool = True, text_done: bool = True) -> Difference:
    """Compare `text` with `reference` word by word; whitespace between words doesn't count.

    While one of them is still being written its last word may grow, and a missing word says nothing yet.
    """
    ours = list(_WORD.finditer(text))
    theirs = _WORD.findall(reference)
    for index, match in enumerate(ours):
        mine = match.group()
        if index >= len(theirs):
            if not reference_done:
                return Difference(index, None, False)
            return Difference(index, match.start(), True)
        if mine == theirs[index]:
            continue
        mine_may_grow = not text_done and index == len(ours) - 1 and theirs[index].startswith(mine)
        theirs_may_grow = not reference_done and index == len(theirs) - 1 and mine.startswith(theirs[index])
        if mine_may_grow or theirs_may_grow:
            return Difference(index, None, False)
        return Difference(index, match.start(), True)
    if not (reference_done and text_done):
        return Difference(len(ours), None, False)
    if len(ours) < len(theirs):
        return Difference(len(ours), len(text), True)
    return Difference(len(ours), None, True)


def describe(difference: Difference, reference_name: str) -> str:
    """One sentence for the caption under a lane."""
    words = f"{difference.words:,} word" + ("" if difference.words == 1 else "s")
    if difference.at is not None:
        if difference.words == 0:
            return f"Differs from {reference_name} from the first word"
        return f"Same as {reference_name} for {words}, then differs"
    if difference.complete:
        return f"Same answer as {reference_name}"
    return f"Same as {reference_name} so far" if difference.words else ""
