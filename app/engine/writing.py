"""From tokens to the text that is handed out, up to a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_HALF = "\ufffd"  # what a detokenizer writes for the bytes of a character that is not complete


class Writer:
    """The text of one answer.

    It ends before the stop text that begins first, however the text is divided into tokens. It does not end with half
    a character: the rest of it may come when the answer goes on.

    Args:
        detokenizer: A fresh one of mlx-lm's.
        stop: Texts that end the answer. What may be the beginning of one is held back until it is clear.
        said: Tokens of the same answer that were handed out before (an answer that goes on).
    """

    def __init__(self, detokenizer: Any, stop: tuple[str, ...] = (), said: Sequence[int] = ()) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._held_back = ""
        self._known = 0  # characters that come next and were handed out before
        self.stopped = False  # a stop text has come
        if said:
            self._take_up(said)

    def add(self, token: int) -> str:
        """What can be handed out now that `token` has come."""
        self._detokenizer.add_token(token)
        return self._passed(self._detokenizer.last_segment)

    def end(self) -> str:
        """What was still held back when the answer ended."""
        self._detokenizer.finalize()
        return self._passed(self._detokenizer.last_segment.rstrip(_HALF), last=True)

    def _take_up(self, said: Sequence[int]) -> None:
        """Go on behind these tokens, with all of their text handed out."""
        detokenizer = self._detokenizer
        self._read(said)
        text = detokenizer.text
        # A detokenizer keeps a last space to itself, which `end` got out of it. It will come again.
        detokenizer.finalize()
        kept = detokenizer.text[len(text) :].rstrip(_HALF)
        detokenizer.reset()
        self._read(said)
        begun = _longest_overlap(text, self._stop)
        self._held_back = text[len(text) - begun :]
        self._known = begun + len(kept)

    def _read(self, tokens: Sequence[int]) -> None:
        """Put tokens through the detokenizer as if their text was handed out."""
        for token in tokens:
            self._detokenizer.add_token(token)
            # Read after each, as `add` does: mlx-lm's plain one loses half a character that comes behind a new line
            # where it is read behind both only.
            self._detokenizer.last_segment  # noqa: B018  # reading it is what marks it as handed out

    def _passed(self, new: str, *, last: bool = False) -> str:
        """What of the text held back and the new one can be handed out."""
        if self.stopped:
            return ""
        text, self._held_back = self._held_back + new, ""
        found = min((at for at in (text.find(stop) for stop in self._stop) if at >= 0), default=None)
        begun = len(text) - (0 if last else _longest_overlap(text, self._stop))
        if found is not None and found <= begun:
            self.stopped = True
            text = text[:found]
        else:
            text, self._held_back = text[:begun], text[begun:]
        known = min(self._known, len(text))
        self._known -= known
        return text[known:]


def _longest_overlap(text: str, stop: tuple[str, ...]) -> int:
    """How many of the text's last characters are the first of a stop text, and not all of it."""
    return max((_overlap(text, one) for one in stop), default=0)


def _overlap(text: str, stop: str) -> int:
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
