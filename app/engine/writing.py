"""From tokens to the text that is handed out, up to a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Writer:
    """The text of one answer.

    Args:
        detokenizer: A fresh one of mlx-lm's.
        stop: Texts that end the answer. What may be the beginning of one is held back until it is clear.
        said: Tokens of the same answer that were handed out before (an answer that goes on).
    """

    def __init__(self, detokenizer: Any, stop: tuple[str, ...] = (), said: Sequence[int] = ()) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._held_back = ""
        self.stopped = False  # a stop text has come
        for token in said:
            detokenizer.add_token(token)
        detokenizer.last_segment  # noqa: B018  # reading it is what marks it as handed out

    def add(self, token: int) -> str:
        """What can be handed out now that `token` has come."""
        self._detokenizer.add_token(token)
        return self._passed(self._detokenizer.last_segment)

    def end(self) -> str:
        """What was still held back when the answer ended."""
        self._detokenizer.finalize()
        rest = self._passed(self._detokenizer.last_segment) + self._held_back
        self._held_back = ""
        return "" if self.stopped else rest

    def _passed(self, text: str) -> str:
        if not self._stop or self.stopped:
            return "" if self.stopped else text
        text = self._held_back + text
        self._held_back = ""
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            return text[: min(found)]
        longest = max((_overlap(text, stop) for stop in self._stop), default=0)
        if longest:
            text, self._held_back = text[:-longest], text[-longest:]
        return text


def _overlap(text: str, stop: str) -> int:
    """How many of the text's last characters are the first of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
