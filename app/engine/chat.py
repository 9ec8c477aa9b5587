"""One chat as the scheduler sees it: the tokens that its caches hold, and the answer in progress."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from app.engine.books import Holding, Need
from app.engine.values import AnswerStats, CacheChoice, ChatState, Message, Sampling
from app.engine.writing import Writer


@dataclass(eq=False)
class Answer:
    """An answer in progress.

    Attributes:
        tokens: The conversation and the answer so far. The last one goes through the model next.
        n_prompt: How many of them were there before the answer.
        sampling: With a seed.
        arrival: Answers that came earlier are served first where memory is short.
        limit: The most tokens there may be.
        reused: How many of the prompt's tokens the caches held when it began; None until that is known.
        said: Of the prompt, tokens that are this answer's own beginning.
        expected: Tokens of it that are being computed and not known yet: 1 in the middle of a decode step.
        n_generated: Tokens that were handed out.
        text: What was said, from before it was continued on.
        floor: What must be free for it to go on, where it had to give everything back.
        n_inside: Tokens handed out that are part of the prompt since turns were left out.
        was_refused: The pool refused what had been asked for before.
        first_at: When the first token was handed out, time.monotonic(); 0 before.
    """

    messages: tuple[Message, ...]
    tokens: list[int]
    n_prompt: int
    sampling: Sampling
    writer: Writer
    arrival: int
    limit: int
    drop_oldest: bool = False
    time_alone: bool = False
    reused: int | None = None
    said: int = 0
    expected: int = 0
    n_generated: int = 0
    warned: bool = False
    text: str = ""
    floor: Need | None = None
    n_inside: int = 0
    was_refused: bool = False
    alone_seconds: float = 0.0
    alone_steps: int = 0
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def spoken(self) -> list[int]:
        """The tokens of the answer itself, from before it was continued on."""
        return self.tokens[self.n_prompt - self.said :]

    def hand_out(self, token: int) -> str:
        """Count a token that is part of the text; returns the text."""
        self.last_at = time.monotonic()
        self.first_at = self.first_at or self.last_at
        self.n_generated += 1
        return self.writer.add(token)

    def stats(self, holding: Holding) -> AnswerStats:
        """What it cost so far."""
        seconds = self.last_at - self.first_at
        return AnswerStats(
            prompt_tokens=self.n_prompt - self.n_inside,
            reused_tokens=self.reused or 0,
            tokens=self.n_generated,
            tokens_per_s=(self.n_generated - 1) / seconds if seconds > 0 else 0.0,
            own_tokens_per_s=self.alone_steps / self.alone_seconds if self.alone_seconds else 0.0,
            blocks_held=holding.blocks,
            memory_bytes=holding.memory_bytes,
            uncompressed_bytes=holding.uncompressed_bytes,
        )


@dataclass(eq=False)
class Chat:
    """The runner makes its caches with the first prompt; they keep their tokens between turns.

    Attributes:
        has_caches: The runner has caches for it, or will have once it has done what was ordered.
        held: The tokens whose keys and values they hold.
        used_at: When it last answered, time.monotonic(): the caches of chats used longest ago are dropped first.
        spoken: The last answer's text and tokens, for when it is continued.
        n_dropped: Messages that its last prompt left out.
    """

    chat_id: int
    choice: CacheChoice
    has_caches: bool = False
    held: list[int] = field(default_factory=list)
    answer: Answer | None = None
    waiting: bool = False
    used_at: float = 0.0
    spoken: tuple[str, list[int]] = ("", [])
    n_dropped: int = 0

    def common(self, tokens: list[int]) -> int:
        """How many tokens the caches and `tokens` both begin with, at most all but the last of `tokens`."""
        common = 0
        for mine, wanted in zip(self.held, tokens[:-1], strict=False):
            if mine != wanted:
                break
            common += 1
        return common

    @property
    def left_to_read(self) -> int:
        """Tokens that must go through the model before the answer's next one can be sampled."""
        return 0 if self.answer is None else len(self.answer.tokens) - 1 - len(self.held)

    @property
    def can_decode(self) -> bool:
        """Whether it has a token to put through the model for the next one."""
        answer = self.answer
        if answer is None or self.left_to_read > 0:
            return False
        # What is being computed may be the last one for certain.
        n = answer.n_generated + answer.expected
        return n < answer.sampling.max_tokens and len(answer.tokens) + answer.expected < answer.limit

    @property
    def state(self) -> ChatState:
        if self.answer is None:
            return "idle"
        if self.waiting:
            return "waiting"
        return "prefill" if self.left_to_read > 0 or not self.answer.first_at else "decode"

    @property
    def arrival(self) -> int:
        """When its answer was asked for, counted; 0 without one."""
        return 0 if self.answer is None else self.answer.arrival
