"""One chat as the worker sees it: its caches, the tokens they hold, and the answer in progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import mlx.core as mx

from app.engine.messages import AnswerStats, CacheChoice, ChatMemory, EndReason
from veloxquant_mlx.cache.config import KVCacheConfig
from veloxquant_mlx.integrations.mlx_lm import LayerCache, build_caches, pooled_layers
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator


@dataclass
class Answer:
    """An answer in progress.

    Attributes:
        prompt: The whole conversation as tokens.
        reused: How many of them the caches held when it began.
        n_generated: Tokens sampled so far, an end token excluded.
        next_token: The sampled token that has not been through the model yet.
        own_seconds: Time spent in this chat's decode steps.
        first_at: When the first token was handed out, time.monotonic(); 0 before.
    """

    prompt: list[int]
    reused: int
    sampler: Callable[[mx.array], mx.array]
    detokenizer: Any
    max_tokens: int
    n_generated: int = 0
    next_token: int | None = None
    own_seconds: float = 0.0
    own_steps: int = 0
    first_at: float = 0.0
    last_at: float = 0.0


@dataclass
class Chat:
    """Caches are made with the first prompt, one per layer, and keep their tokens between turns."""

    chat_id: int
    choice: CacheChoice
    caches: list[Any] = field(default_factory=list)
    held: list[int] = field(default_factory=list)  # the tokens whose keys and values the caches hold
    answer: Answer | None = None

    # ------------------------------------------------------------------ the caches
    def prepare(self, model: Any, pool: BlockPoolAllocator, prompt: list[int]) -> int:
        """Make the caches hold a prefix of `prompt`, at most all but its last token. Returns its length."""
        if not self.caches:
            config = KVCacheConfig(
                method=self.choice.method, key_bits=self.choice.key_bits, value_bits=self.choice.value_bits
            )
            self.caches = build_caches(model, config, pool, self.chat_id)
        common = 0
        for held, wanted in zip(self.held, prompt[:-1], strict=False):
            if held != wanted:
                break
            common += 1
        surplus = len(self.held) - common
        if surplus and not all(cache.is_trimmable() for cache in self.caches):
            self.release()  # a sliding window or a state can't go back: compute the prompt again
            return self.prepare(model, pool, prompt)
        if surplus:
            for cache in self.caches:
                cache.trim(surplus)
            del self.held[common:]
        return common

    def release(self) -> None:
        """Give every block and array back; the tokens are computed again when they are next needed."""
        for cache in pooled_layers(self.caches):
            cache.release()
        self.caches, self.held = [], []

    def arrays(self) -> list[mx.array]:
        """Everything the caches hold, to be evaluated with the step that made it."""
        found: list[mx.array] = []
        for cache in self.caches:
            found += cache.state if isinstance(cache, LayerCache) else _arrays_in(cache.state)
        return found

    # ------------------------------------------------------------------ what it costs
    @property
    def blocks_held(self) -> int:
        return sum(c.pooled.n_blocks_held() for c in pooled_layers(self.caches) if c.pooled is not None)

    @property
    def memory_bytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches if not cache.empty())

    @property
    def uncompressed_bytes(self) -> int:
        return sum(
            cache.uncompressed_bytes if isinstance(cache, LayerCache) else cache.nbytes
            for cache in self.caches
            if not cache.empty()
        )

    @property
    def state(self) -> Literal["idle", "prefill", "decode"]:
        if self.answer is None:
            return "idle"
        return "prefill" if self.answer.next_token is None else "decode"

    def memory(self, queued: bool) -> ChatMemory:
        return ChatMemory(
            chat_id=self.chat_id,
            state="queued" if queued else self.state,
            tokens=len(self.held),
            blocks_held=self.blocks_held,
            memory_bytes=self.memory_bytes,
            uncompressed_bytes=self.uncompressed_bytes,
        )

    def stats(self) -> AnswerStats:
        """What the answer in progress cost so far."""
        answer = self.answer
        assert answer is not None
        seconds = answer.last_at - answer.first_at
        return AnswerStats(
            prompt_tokens=len(answer.prompt),
            reused_tokens=answer.reused,
            tokens=answer.n_generated,
            tokens_per_s=(answer.n_generated - 1) / seconds if seconds > 0 else 0.0,
            own_tokens_per_s=answer.own_steps / answer.own_seconds if answer.own_seconds else 0.0,
            blocks_held=self.blocks_held,
            memory_bytes=self.memory_bytes,
            uncompressed_bytes=self.uncompressed_bytes,
        )


# ---------------------------------------------------------------------- steps of the model
def prefill_chunk(model: Any, chat: Chat, size: int) -> None:
    """Put up to `size` more prompt tokens, all but the last one of the prompt, through the model."""
    assert chat.answer is not None
    prompt = chat.answer.prompt
    chunk = prompt[len(chat.held) : min(len(chat.held) + size, len(prompt) - 1)]
    model(mx.array(chunk)[None], cache=chat.caches)  # the logits are never asked for, so they are never computed
    mx.eval(chat.arrays())
    chat.held += chunk


def decode_step(model: Any, chat: Chat) -> int:
    """Put the newest token through the model and sample the one after it."""
    answer = chat.answer
    assert answer is not None
    started = time.perf_counter()
    newest = answer.prompt[-1] if answer.next_token is None else answer.next_token
    logits = model(mx.array([[newest]]), cache=chat.caches)[:, -1].astype(mx.float32)  # (1, vocabulary)
    sampled = answer.sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    mx.eval(sampled, chat.arrays())
    token: Any = sampled.item()
    chat.held.append(newest)
    answer.own_seconds += time.perf_counter() - started
    answer.own_steps += 1
    return int(token)


def end_reason(chat: Chat, token: int, end_tokens: set[int], context_limit: int) -> EndReason | None:
    """Why the answer ends with `token` just sampled, or None when it goes on."""
    assert chat.answer is not None
    if token in end_tokens:
        return "stop"
    if chat.answer.n_generated >= chat.answer.max_tokens:
        return "length"
    if len(chat.held) + 1 >= context_limit:
        return "context"
    return None


def _arrays_in(state: Any) -> list[mx.array]:
    if isinstance(state, mx.array):
        return [state]
    if isinstance(state, (list, tuple)):
        return [array for part in state for array in _arrays_in(part)]
    return []
