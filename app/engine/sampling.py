"""The next token of one chat: mlx-lm's processors and filters, and random numbers that belong to this chat alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from app.engine.values import Sampling


class TokenSampler:
    """Samples one answer's tokens.

    The random numbers depend on the seed and on the token's position only, not on which chats share its steps, nor on
    whether it is computed again from some token on.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        # A seed's own bits would not do: seeds 0 and 1 would share keys at neighbouring positions.
        self._key = random.Random(sampling.seed).getrandbits(64)
        penalty = sampling.repetition_penalty
        self._processors = make_logits_processors(
            repetition_penalty=None if penalty == 1 else penalty, repetition_context_size=sampling.repetition_window
        )
        self._recent = mx.array([], dtype=mx.int32)
        self._position = 0

    def begin(self, tokens: Sequence[int], position: int | None = None) -> None:
        """What comes next is the token behind `tokens`.

        Args:
            tokens: The conversation so far; with `position`, only as much of its end as the repetition penalty looks
                at, which may be nothing.
            position: How many tokens the conversation has; None is as many as there are in `tokens`.
        """
        self._position = len(tokens) if position is None else position
        if self._processors:
            self._recent = mx.array(list(tokens[-self._sampling.repetition_window :]), dtype=mx.int32)

    def __call__(self, logits: mx.array) -> mx.array:
        """The next token, (1,) int32, from logits (1, vocabulary) float32. Nothing is computed yet."""
        for processor in self._processors:
            # Processors write into what they are given, which must not be a part of the other chats' logits.
            logits = processor(self._recent, mx.array(logits))
        chosen = mx.argmax(logits, axis=-1) if not self._sampling.temperature else self._random(logits)
        chosen = chosen.astype(mx.int32)
        if self._processors:
            self._recent = mx.concatenate([self._recent, chosen])[-self._sampling.repetition_window :]
        self._position += 1
        return chosen

    def _random(self, logits: mx.array) -> mx.array:
        s = self._sampling
        scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if s.top_p < 1:
            scores = apply_top_p(scores, s.top_p)
        if s.min_p > 0:
            scores = apply_min_p(scores, s.min_p)
        if 0 < s.top_k < logits.shape[-1]:
            scores = apply_top_k(scores, s.top_k)
        key = self._key ^ self._position
        drawn: mx.array = mx.random.categorical(
            scores * (1 / s.temperature), key=mx.array([key >> 32, key & 0xFFFFFFFF], dtype=mx.uint32)
        )
        return drawn
