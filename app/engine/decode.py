"""One decode step for all chats that are answering, with the next one submitted before its tokens are looked at.

The step for token t + 1 takes token t as an array that is still being computed, so the device finds its next work
waiting while Python reads token t, turns it into text and looks after everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import mlx.core as mx

from app.engine.chat import Answer, Chat
from veloxquant_mlx.integrations.mlx_lm import batch


@dataclass(frozen=True, slots=True)
class Row:
    """One chat's part of a step. Its answer may have ended by the time its token is known; nobody wants it then."""

    chat: Chat
    answer: Answer

    @property
    def is_wanted(self) -> bool:
        return self.chat.answer is self.answer


@dataclass(frozen=True, slots=True)
class Step:
    rows: tuple[Row, ...]
    tokens: mx.array  # (B,) int32, in the order of the rows
    undisturbed: bool  # it followed another step of the same rows, with nothing between


@dataclass(slots=True)
class Taken:
    """What `advance` found: tokens of the step before, and what went wrong in which chats.

    Attributes:
        tokens: A token for each chat that still wants it.
        failed: Chats whose step failed, and how. Their caches can't be used any more.
        undone: Chats whose caches went through the failed step, or through one that rests on it, while their answers
            need nothing of it. Their caches can't be used any more either.
    """

    tokens: list[tuple[Chat, int]] = field(default_factory=list)
    failed: list[tuple[Chat, Exception]] = field(default_factory=list)
    undone: list[Chat] = field(default_factory=list)


class Decoder:
    """The steps of one model.

    Args:
        model: An mlx-lm model.
        together: Whether all chats may share one forward pass (`can_batch`).
    """

    def __init__(self, model: Any, *, together: bool) -> None:
        self._model, self._together = model, together
        self._step: Step | None = None
        self._read_at = 0.0

    @property
    def busy(self) -> bool:
        """Whether a step's tokens are still to be taken."""
        return self._step is not None

    def disturb(self) -> None:
        """The model does something else between two steps, so the time between them says nothing."""
        self._read_at = 0.0

    def advance(self, chats: Sequence[Chat]) -> Taken:
        """Submit a step for `chats`, whose caches have room for it; then take the tokens of the step before."""
        taken = Taken()
        previous, self._step = self._step, None
        if chats:
            rows = tuple(Row(chat, chat.answer) for chat in chats if chat.answer is not None)
            try:
                self._step = self._submit(rows, previous)
            except Exception as exc:  # noqa: BLE001  # whatever the model or MLX raises ends these chats' answers only
                taken.failed += [(row.chat, exc) for row in rows]
        if previous is not None:
            self._take(previous, taken)
        return taken

    def _submit(self, rows: tuple[Row, ...], previous: Step | None) -> Step:
        before = {id(row.answer): i for i, row in enumerate(previous.rows)} if previous is not None else {}
        same = previous is not None and previous.rows == rows
        if same:
            assert previous is not None
            newest = previous.tokens
        else:
            parts = []
            for row in rows:
                at = before.get(id(row.answer)) if row.answer.expected else None
                if at is None:
                    parts.append(mx.array(row.answer.tokens[-1:], dtype=mx.int32))
                else:
                    assert previous is not None
                    parts.append(previous.tokens[at : at + 1])
            newest = mx.concatenate(parts)
        for row in rows:
            if not row.answer.expected:  # it is known, and in the caches from here on
                row.chat.held.append(row.answer.tokens[-1])
            row.answer.expected += 1
        logits = self._forward(newest[:, None], [row.chat for row in rows])  # (B, vocabulary)
        tokens = mx.concatenate([row.answer.sampler(logits[i : i + 1]) for i, row in enumerate(rows)])
        # What the caches hold is computed with it as far as this step reads it, and with the next step otherwise.
        mx.async_eval(tokens)
        return Step(rows, tokens, same)

    def _forward(self, tokens: mx.array, chats: Sequence[Chat]) -> mx.array:
        if len(chats) == 1:
            logits = self._model(tokens, cache=chats[0].caches)
        elif self._together and not any(chat.caches[0].empty() for chat in chats):
            logits = self._model(tokens, cache=batch([chat.caches for chat in chats]))
        else:
            logits = mx.concatenate([self._model(tokens[i : i + 1], cache=chat.caches) for i, chat in enumerate(chats)])
        last: mx.array = logits[:, -1].astype(mx.float32)
        return last

    def _take(self, step: Step, taken: Taken) -> None:
        following = {id(row.answer) for row in self._step.rows} if self._step is not None else set()
        try:
            values: Any = step.tokens.tolist()
        except Exception as exc:  # noqa: BLE001  # MLX ran out of memory, say, while it computed
            taken.failed += [(row.chat, exc) for row in step.rows if row.is_wanted]
            failed = {id(row.chat) for row in step.rows if row.is_wanted}
            rows = (*step.rows, *(self._step.rows if self._step is not None else ()))
            taken.undone += [row.chat for row in rows if id(row.chat) not in failed]
            self._step = None
            return
        now = perf_counter()
        for row, token in zip(step.rows, values, strict=True):
            if not row.is_wanted:
                continue
            row.answer.expected -= 1
            row.answer.tokens.append(token)
            if id(row.answer) in following:
                row.chat.held.append(token)
            if len(step.rows) == 1 and step.undisturbed and self._read_at:
                row.answer.alone_seconds += now - self._read_at
                row.answer.alone_steps += 1
            taken.tokens.append((row.chat, token))
        self._read_at = now
