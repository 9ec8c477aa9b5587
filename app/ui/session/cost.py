"""What an answer cost over all its parts: it may have been cut off and gone on, also after a restart."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from app.engine.messages import AnswerStats
from app.ui.look import words


@dataclass(frozen=True, slots=True)
class Cost:
    """Kept in the store as the last line of the message's note.

    Attributes:
        tokens: Of all parts of the answer.
        seconds: They took to be written; 0 where that is not known.
        prompt_tokens: Of the prompt of the last part, which is the whole conversation before it.
        reused_tokens: How many of those the cache held already.
    """

    tokens: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    reused_tokens: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def tip(self) -> str:
        return words.prompt_tip(self.prompt_tokens, self.reused_tokens)

    def growing(self, n_tokens: int, rate: float) -> Cost:
        """This, and `n_tokens` more so far."""
        return Cost(*self._with(n_tokens, rate), self.prompt_tokens, self.reused_tokens)

    def ended(self, stats: AnswerStats) -> Cost:
        """This, and one more part."""
        return Cost(*self._with(stats.tokens, stats.tokens_per_s), stats.prompt_tokens, stats.reused_tokens)

    def _with(self, n_tokens: int, rate: float) -> tuple[int, float]:
        # The time of one part alone would be too little for the tokens of all.
        timed = rate > 0 and (self.seconds > 0 or not self.tokens)
        return self.tokens + n_tokens, self.seconds + n_tokens / rate if timed else 0.0

    def add_to(self, note: str) -> str:
        return f"{note}\n{json.dumps(asdict(self))}" if self.tokens else note

    @classmethod
    def take_from(cls, note: str) -> tuple[str, Cost]:
        """The note without its cost, and the cost. The first version wrote none; its words say how many tokens."""
        rest, _, last = note.rpartition("\n")
        if last.startswith("{"):
            try:
                return rest, cls(**json.loads(last))
            except (ValueError, TypeError):
                pass  # a failure's message that happens to end so
        return note, cls(words.tokens_in(note))
