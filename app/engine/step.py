"""One step in plain data: what the scheduler has decided, and what came of it.

A `Step` goes from the scheduler to the runner, a `Done` comes back. Both are numbers and short texts only, so that they
can be sent to another process as they are. A conversation never travels: of its tokens only those of one chunk do, or
the one that a chat goes on from, since whatever came before is in the caches.

What a step names is done in the order of its fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.values import CacheChoice, Sampling


@dataclass(frozen=True, slots=True)
class Open:
    """Make empty caches for a chat that has none."""

    chat_id: int
    choice: CacheChoice


@dataclass(frozen=True, slots=True)
class Rewind:
    """Let a chat's caches forget all but their first `keep` tokens, and more where they can't be cut there."""

    chat_id: int
    keep: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Make caches for `child` that share what those of `parent` hold of their first `keep` tokens."""

    parent: int
    child: int
    keep: int


@dataclass(frozen=True, slots=True)
class Sample:
    """How a chat's tokens are chosen from now on.

    Attributes:
        sampling: With a seed, always: whoever runs the step must draw the same numbers. Without the stop texts, which
            are the scheduler's.
        position: Of the next token that is sampled, in the whole conversation.
        recent: The tokens before it, as many as the repetition penalty looks at.
    """

    chat_id: int
    sampling: Sampling
    position: int
    recent: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one chat's prompt that go through the model at once, behind those that its caches hold."""

    chat_id: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One chat's part of a decode step.

    Attributes:
        token: What goes through the model; None is the token that the decode step before sampled for this chat, which
            the scheduler has not seen yet.
    """

    chat_id: int
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Alone:
    """Let a chat take n_steps steps alone, to see how long they take, and forget their tokens. `token` is the first."""

    chat_id: int
    token: int
    n_steps: int


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done next.

    Attributes:
        releases: Chats whose caches go, with every block and array.
        rows: Who takes part in a decode step, or None where there is none. It is submitted, and then the tokens of the
            decode step before are read; where it is empty, they are only read.
        settles: Chats whose answer has ended: what their caches still have to compute is computed, since no later
            step would ask for it.
    """

    releases: tuple[int, ...] = ()
    opens: tuple[Open, ...] = ()
    rewinds: tuple[Rewind, ...] = ()
    samples: tuple[Sample, ...] = ()
    forks: tuple[Fork, ...] = ()
    chunk: Chunk | None = None
    rows: tuple[Row, ...] | None = None
    settles: tuple[int, ...] = ()
    alone: tuple[Alone, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """What a step asked for in one chat did not work. The chat's caches can't be used any more.

    Attributes:
        what: The error's kind and words.
        exhausted: The pool had no block for it.
    """

    chat_id: int
    what: str
    exhausted: bool = False


@dataclass(frozen=True, slots=True)
class Timed:
    """What came of `Alone`.

    Attributes:
        seconds: For n_steps steps; 0 for 0 where it could not be measured.
        kept: Whether the chat's caches are as before. They are gone otherwise.
    """

    chat_id: int
    seconds: float = 0.0
    n_steps: int = 0
    kept: bool = True


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a step.

    Attributes:
        kept: For each chat that was rewound or forked (the child), how many tokens its caches hold now.
        tokens: The tokens of the decode step before, by chat.
        failed: Chats in which something did not work, each once.
        lost: Why the tokens of the decode step before could not be computed; "" where they could. Then that step's rows
            have failed, and those of this step, which rest on it, are undone.
        seconds: What chunk and rows took.
        alone_seconds: Between the tokens of the decode step before and those of the one before that, where both were of
            the same single chat and nothing came between; 0 otherwise.
        timed: For each of `Step.alone`.
    """

    kept: tuple[tuple[int, int], ...] = ()
    tokens: tuple[tuple[int, int], ...] = ()
    failed: tuple[Failure, ...] = ()
    lost: str = ""
    seconds: float = 0.0
    alone_seconds: float = 0.0
    timed: tuple[Timed, ...] = ()


def in_words(exc: BaseException) -> str:
    """An error's kind and words: an exception itself stays where it was raised."""
    return f"{type(exc).__name__}: {exc}"
