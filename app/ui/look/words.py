"""Numbers and facts as short words for people: "12.4 MB", "14.2 tok/s", "3.3× smaller"."""

from __future__ import annotations

import re
from collections.abc import Collection

from app.engine.messages import AnswerStats

_UNITS = ("B", "KB", "MB", "GB", "TB")


def size(n_bytes: float) -> str:
    """Bytes in decimal units, three figures at most: 950 B, 12.4 MB, 1.03 GB."""
    value = float(max(n_bytes, 0))
    unit = 0
    # 999.5 would round to "1000 KB", so it moves on to the next unit already.
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value /= 1000
        unit += 1
    if unit == 0 or value >= 99.95:
        return f"{value:.0f} {_UNITS[unit]}"
    return f"{value:.1f} {_UNITS[unit]}"


def count(n: int, singular: str, plural: str = "") -> str:
    """1 block, 1,024 blocks."""
    return f"{n:,} {singular if n == 1 else plural or singular + 's'}"


def rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.0f} tok/s" if tokens_per_s >= 99.5 else f"{tokens_per_s:.1f} tok/s"


def percent(fraction: float) -> str:
    """0.123 is 12 %; what is not nothing is never shown as 0 %, and what is not all never as 100 %."""
    if 0 < fraction < 0.01:
        return "< 1 %"
    if 0.99 < fraction < 1:
        return "99 %"
    return f"{fraction * 100:.0f} %"


def smaller(ratio: float) -> str:
    """How a size compares with the uncompressed one."""
    if 0.95 < ratio < 1.05:
        return "uncompressed size"
    if ratio <= 0:
        return ""
    return f"{ratio:.1f}× smaller" if ratio > 1 else f"{1 / ratio:.1f}× larger"


def answer_note(stats: AnswerStats) -> str:
    """The quiet line under an answer."""
    parts = [count(stats.tokens, "token")]
    if stats.tokens_per_s > 0:  # one token alone has no rate
        parts.append(rate(stats.tokens_per_s))
    parts.append(f"{size(stats.memory_bytes)} cache")
    if not 0.95 < stats.ratio < 1.05:
        parts.append(smaller(stats.ratio))
    return " · ".join(parts)


def tokens_in(note: str) -> int:
    """How many tokens a note that answer_note() wrote speaks of; 0 where it does not."""
    found = re.search(r"(?:^|: )([\d,]+) tokens? · ", note)
    return int(found.group(1).replace(",", "")) if found else 0


def prompt_tip(n_tokens: int, reused: int) -> str:
    """How much of an answer's prompt had not to be read again."""
    if not n_tokens:
        return ""
    prompt = f"Prompt: {count(n_tokens, 'token')}"
    return f"{prompt}, {reused:,} of them still in memory" if reused else prompt


def split_number(title: str) -> tuple[str, str]:
    """A fork's title as what it has from its parent and its number: "Rainbows", " (2)"."""
    found = re.search(r" \(\d{1,4}\)$", title)
    return (title[: found.start()], found.group()) if found else (title, "")


def fork_title(title: str, taken: Collection[str]) -> str:
    """The title with the next number that is free: "Rainbows (2)", then "Rainbows (3)"."""
    base, _ = split_number(title)
    number = 2
    while f"{base} ({number})" in taken:
        number += 1
    return f"{base} ({number})"


def title_from(question: str, limit: int = 60) -> str:
    """A chat's title: the first line of its first question."""
    line = next((part.strip() for part in question.splitlines() if part.strip()), "New chat")
    return elided(" ".join(line.split()), limit)


def elided(text: str, limit: int) -> str:
    """The text, or as much of it as fits into `limit` characters with an ellipsis behind."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
