"""From a conversation to the tokens the model reads, within the length that it may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.engine.values import Message
from app.models.plain_text import chat_tokens, text_tokens

NEARLY_FULL = 0.85  # of the context: from there on a chat is told that it will be full


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is given.

    Attributes:
        tokens: Up to where the answer goes on.
        said: How many of the last tokens are the part of the answer that is there already.
        n_dropped: Messages left out, the system's not counted.
    """

    tokens: list[int]
    said: int = 0
    n_dropped: int = 0


class TooLongError(Exception):
    """The conversation has no room for an answer. `used` tokens of `limit`."""

    def __init__(self, used: int, limit: int) -> None:
        super().__init__(f"{used} of {limit} tokens")
        self.used, self.limit = used, limit


def room_for_answer(limit: int, max_tokens: int) -> int:
    """Tokens that an answer should find free before anything older than it is kept."""
    return min(max_tokens, limit // 4)


def make_prompt(
    tokenizer: Any,
    messages: Sequence[Message],
    limit: int,
    *,
    said: Sequence[int] | None = None,
    drop: bool = False,
    n_dropped: int = 0,
    room: int = 1,
) -> Prompt:
    """The tokens of a conversation, the oldest turns left out where that is allowed and needed.

    Args:
        messages: The conversation; a last message of the assistant's is an answer that goes on.
        limit: The most tokens that conversation and answer may have together.
        said: The tokens of that last message, where they are known: text does not say how it was divided.
        drop: Whether turns may be left out.
        n_dropped: How many messages were left out the last time. As long as that is enough it stays so, since with
            every other beginning the whole conversation must be computed again. Where it isn't, half of the limit is
            made free at once, for the same reason.
        room: Tokens that the answer should have.

    Raises:
        TooLongError: There is no room for one more token, and nothing (more) may be left out.
    """
    system = [message for message in messages if message.role == "system"]
    turns = [message for message in messages if message.role != "system"]
    goes_on = bool(turns) and turns[-1].role == "assistant"
    answered = turns.pop() if goes_on else None
    if answered is not None and said is None:
        said = text_tokens(tokenizer, answered.content)
    behind = list(said or ())

    def made(first: int) -> Prompt:
        kept = [*system, *turns[first:]]
        asked = chat_tokens(
            tokenizer,
            [{"role": message.role, "content": message.content} for message in kept],
            add_generation_prompt=True,
        )
        return Prompt([*asked, *behind], len(behind), first)

    whole = made(0)
    if not drop:
        if len(whole.tokens) >= limit:
            raise TooLongError(len(whole.tokens), limit)
        return whole
    if len(whole.tokens) + room <= limit:
        return whole
    # A conversation begins with a question: only that, and all up to it, can be left out.
    cuts = [i for i, message in enumerate(turns) if i and message.role == "user"]
    if n_dropped in cuts:
        before = made(n_dropped)
        if len(before.tokens) + room <= limit:
            return before
    shortest = whole
    for cut in cuts:
        shortest = made(cut)
        if len(shortest.tokens) <= limit // 2:
            return shortest
    if len(shortest.tokens) >= limit:
        raise TooLongError(len(shortest.tokens), limit)
    return shortest
