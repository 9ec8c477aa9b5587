"""How fast one chat is by itself. What chats take together in a batched step can't be told apart."""

from __future__ import annotations

import mlx.core as mx

from app.engine.chat import Chat
from app.engine.decode import Decoder
from veloxquant_mlx.integrations.mlx_lm import rewind

ALONE_STEPS = 6  # the first two only fill the pipeline


def time_alone(model: object, chat: Chat) -> None:
    """Let a chat whose answer has just ended take a few steps alone, note how long they take, and forget their tokens.

    Its caches must have room for ALONE_STEPS tokens. Where a layer can't go back, nothing is done.
    """
    answer, held = chat.answer, len(chat.held)
    assert answer is not None
    if not all(cache.is_trimmable() for cache in chat.caches):
        return
    mx.eval(chat.arrays())
    # What it would say next, on its own caches. They may hold its last token already, or not yet.
    twin = Chat(chat.chat_id, chat.choice, chat.caches, list(chat.held))
    twin.answer = answer.probe(ALONE_STEPS)
    if len(chat.held) == len(answer.tokens):
        twin.answer.tokens.append(answer.tokens[-1])
    alone = Decoder(model, together=False)
    for _ in range(ALONE_STEPS):
        if alone.advance([twin]).failed:
            chat.release()
            return
    alone.advance([])
    mx.eval(chat.arrays())
    answer.alone_seconds, answer.alone_steps = twin.answer.alone_seconds, twin.answer.alone_steps
    if rewind(chat.caches, held) != held:
        chat.release()
