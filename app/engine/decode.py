"""One decode step for all chats that are answering, with the next one submitted before its tokens are looked at.

The step for token t + 1 takes token t as an array that is still being computed, so the device finds its next work
waiting while Python reads token t, turns it into text and looks after everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import mlx.core as mx

from app.engine.sequence import Sequence
from app.engine.step import Row
from veloxquant_mlx.integrations.mlx_lm import batch


@dataclass(frozen=True, slots=True)
class Submitted:
    """A decode step that the device computes."""

    chat_ids: tuple[int, ...]
    tokens: mx.array  # (B,) int32, in the order of the chats
    undisturbed: bool  # it followed another step of the same answers, with nothing between


@dataclass(slots=True)
class Taken:
    """What `advance` found.

    Attributes:
        tokens: Of the step before, by chat.
        failed: Why the step could not be submitted.
        lost: Why the tokens of the step before could not be computed. The step is given up then, too.
        alone_seconds: Since the tokens before those were there, where both are of one single answer and nothing came
            between; 0 otherwise.
    """

    tokens: tuple[tuple[int, int], ...] = ()
    failed: Exception | None = None
    lost: Exception | None = None
    alone_seconds: float = 0.0


class Decoder:
    """The decode steps of one model.

    Args:
        model: An mlx-lm model.
        sequences: The chats' caches, which have room for what is asked for.
        together: Whether all chats may share one forward pass (`can_batch`).
    """

    def __init__(self, model: Any, sequences: Mapping[int, Sequence], *, together: bool) -> None:
        self._model, self._sequences, self._together = model, sequences, together
        self._step: Submitted | None = None
        self._read_at = 0.0

    def disturb(self) -> None:
        """The model does something else between two steps, so the time between them says nothing."""
        self._read_at = 0.0

    def advance(self, rows: Seq[Row]) -> Taken:
        """Submit a step for `rows`; then take the tokens of the step before."""
        taken = Taken()
        previous, self._step = self._step, None
        if rows:
            try:
                self._step = self._submit(rows, previous)
            except Exception as exc:  # noqa: BLE001  # whatever the model or MLX raises ends these chats' answers only
                taken.failed = exc
        if previous is not None:
            self._take(previous, taken)
        return taken

    def _submit(self, rows: Seq[Row], previous: Submitted | None) -> Submitted:
        chat_ids = tuple(row.chat_id for row in rows)
        same = previous is not None and previous.chat_ids == chat_ids and all(row.token is None for row in rows)
        if same:
            assert previous is not None
            newest = previous.tokens
        else:
            parts = []
            for row in rows:
                if row.token is not None:
                    parts.append(mx.array([row.token], dtype=mx.int32))
                else:
                    assert previous is not None
                    at = previous.chat_ids.index(row.chat_id)
                    parts.append(previous.tokens[at : at + 1])
            newest = mx.concatenate(parts)
        sequences = [self._sequences[chat_id] for chat_id in chat_ids]
        logits = self._forward(newest[:, None], sequences)  # (B, vocabulary)
        chosen = []
        for i, sequence in enumerate(sequences):
            assert sequence.sampler is not None
            chosen.append(sequence.sampler(logits[i : i + 1]))
        tokens = mx.concatenate(chosen)
        # What the caches hold is computed with it as far as this step reads it, and with the next step otherwise.
        mx.async_eval(tokens)
        return Submitted(chat_ids, tokens, same)

    def _forward(self, tokens: mx.array, sequences: Seq[Sequence]) -> mx.array:
        if len(sequences) == 1:
            logits = self._model(tokens, cache=sequences[0].caches)
        elif self._together and not any(sequence.caches[0].empty() for sequence in sequences):
            logits = self._model(tokens, cache=batch([sequence.caches for sequence in sequences]))
        else:
            rows = [self._model(tokens[i : i + 1], cache=sequence.caches) for i, sequence in enumerate(sequences)]
            logits = mx.concatenate(rows)
        last: mx.array = logits[:, -1].astype(mx.float32)
        return last

    def _take(self, step: Submitted, taken: Taken) -> None:
        try:
            values: Any = step.tokens.tolist()
        except Exception as exc:  # noqa: BLE001  # MLX ran out of memory, say, while it computed
            taken.lost = exc
            self._step = None  # what was submitted rests on it
            return
        now = perf_counter()
        if len(step.chat_ids) == 1 and step.undisturbed and self._read_at:
            taken.alone_seconds = now - self._read_at
        taken.tokens = tuple(zip(step.chat_ids, values, strict=True))
        self._read_at = now
