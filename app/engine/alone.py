"""How fast one chat is by itself. What chats take together in a batched step can't be told apart."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from app.engine.decode import Decoder
from app.engine.sampling import TokenSampler
from app.engine.sequence import Sequence
from app.engine.step import Alone, Row, Timed
from app.engine.values import Sampling


def time_alone(model: Any, sequence: Sequence, alone: Alone) -> Timed:
    """Let a chat whose answer has ended take a few steps alone, note how long they take, and forget their tokens.

    Its caches must have room for that many tokens. Where a layer can't go back, nothing is done.

    Raises:
        Exception: Whatever the model or MLX raises; the caches can't be used any more.
    """
    chat_id, held = alone.chat_id, sequence.n_held
    if not all(cache.is_trimmable() for cache in sequence.caches):
        return Timed(chat_id)
    mx.eval(sequence.arrays())
    # What it would say next, on its own caches. They may hold its last token already, or not yet.
    sequence.sampler = TokenSampler(Sampling())
    decoder = Decoder(model, {chat_id: sequence}, together=False)
    seconds, n_steps = 0.0, 0
    for i in range(alone.n_steps + 1):
        rows = [Row(chat_id, None if i else alone.token)] if i < alone.n_steps else []
        taken = decoder.advance(rows)
        if (error := taken.failed or taken.lost) is not None:
            raise error
        if taken.alone_seconds:
            seconds, n_steps = seconds + taken.alone_seconds, n_steps + 1
    mx.eval(sequence.arrays())
    if not sequence.rewind(held) or sequence.n_held != held:
        raise RuntimeError("What was said to measure the time could not be forgotten.")
    return Timed(chat_id, seconds, n_steps)
