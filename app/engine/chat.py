"""One chat as the worker sees it: its caches, the tokens they hold, and the answer in progress."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from app.engine.books import Need
from app.engine.sampling import TokenSampler
from app.engine.values import AnswerStats, CacheChoice, ChatMemory, ChatState, Message, Sampling
from app.engine.writing import Writer
from veloxquant_mlx.cache.config import KVCacheConfig
from veloxquant_mlx.integrations.mlx_lm import LayerCache, build_caches, fork_caches, pooled_layers, rewind
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator


@dataclass(eq=False)
class Answer:
    """An answer in progress.

    Attributes:
        tokens: The conversation and the answer so far. The last one goes through the model next.
        n_prompt: How many of them were there before the answer.
        reused: How many of those the caches held when it began.
        arrival: Answers that came earlier are served first where memory is short.
        limit: The most tokens there may be.
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
    reused: int
    sampler: TokenSampler
    writer: Writer
    arrival: int
    limit: int
    max_tokens: int
    drop_oldest: bool = False
    time_alone: bool = False
    said: int = 0  # of the prompt, tokens that are this answer's own beginning
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

    def probe(self, n_steps: int) -> Answer:
        """An answer that goes on from here by n_steps tokens, which nobody reads: to see how long they take."""
        sampler = TokenSampler(Sampling())
        sampler.begin(self.tokens)
        limit, writer = len(self.tokens) + n_steps + 1, self.writer
        return Answer((), list(self.tokens), len(self.tokens), 0, sampler, writer, 0, limit, max_tokens=n_steps)

    def hand_out(self, token: int) -> str:
        """Count a token that is part of the text; returns the text."""
        self.last_at = time.monotonic()
        self.first_at = self.first_at or self.last_at
        self.n_generated += 1
        return self.writer.add(token)


@dataclass(eq=False)
class Chat:
    """Caches are made with the first prompt, one per layer, and keep their tokens between turns.

    Attributes:
        held: The tokens whose keys and values the caches hold.
        used_at: When it last answered, time.monotonic(): the caches of chats used longest ago are dropped first.
        spoken: The last answer's text and tokens, for when it is continued.
        n_dropped: Messages that its last prompt left out.
    """

    chat_id: int
    choice: CacheChoice
    caches: list[Any] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    answer: Answer | None = None
    waiting: bool = False
    used_at: float = 0.0
    spoken: tuple[str, list[int]] = ("", [])
    n_dropped: int = 0

    # ------------------------------------------------------------------ the caches
    def prepare(self, model: Any, pool: BlockPoolAllocator, tokens: list[int]) -> int:
        """Make the caches hold a beginning of `tokens`, at most all but the last one. Returns its length."""
        if not self.caches:
            config = KVCacheConfig(
                method=self.choice.method, key_bits=self.choice.key_bits, value_bits=self.choice.value_bits
            )
            self.caches = build_caches(model, config, pool, self.chat_id)
        kept = rewind(self.caches, _common(self.held, tokens))
        if not kept and self.held:
            self.release()
            return self.prepare(model, pool, tokens)
        del self.held[kept:]
        return kept

    def fork(self, chat_id: int, tokens: list[int]) -> Chat:
        """A chat with the same method that begins with what both `tokens` and this chat's caches begin with.

        Raises:
            BlockPoolExhaustedError: There is no room for what they can't share.
            RuntimeError: MLX had no memory for it. In both cases nothing was taken.
        """
        twin = Chat(chat_id, self.choice)
        common = _common(self.held, [*tokens, -1])
        if self.caches and common:
            twin.caches = fork_caches(self.caches, chat_id, common)
        if twin.caches:
            # Pieces that were cut for this are new arrays, in both; until they are computed, the old ones stay.
            try:
                mx.eval(self.arrays(), twin.arrays())
            except RuntimeError:
                twin.release()
                raise
            twin.held = self.held[: pooled_layers(twin.caches)[0].offset]
        return twin

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

    def layers(self) -> list[LayerCache]:
        return pooled_layers(self.caches)

    # ------------------------------------------------------------------ what it does
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
        return n < answer.max_tokens and len(answer.tokens) + answer.expected < answer.limit

    @property
    def state(self) -> ChatState:
        if self.answer is None:
            return "idle"
        if self.waiting:
            return "waiting"
        return "prefill" if self.left_to_read > 0 or not self.answer.first_at else "decode"

    # ------------------------------------------------------------------ what it costs
    @property
    def blocks_held(self) -> int:
        return sum(c.pooled.n_blocks_held() for c in self.layers() if c.pooled is not None)

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

    def pieces(self) -> Iterable[Any]:
        """What its caches may hold together with others' caches."""
        return (piece for layer in self.layers() if layer.inner is not None for piece in layer.inner.pieces)

    def memory(self, queued: bool, shared_bytes: int) -> ChatMemory:
        layers = self.layers() if shared_bytes else []
        return ChatMemory(
            chat_id=self.chat_id,
            state="queued" if queued and not self.waiting else self.state,
            tokens=len(self.held),
            blocks_held=self.blocks_held,
            memory_bytes=self.memory_bytes,
            uncompressed_bytes=self.uncompressed_bytes,
            shared_blocks=sum(layer.pooled.shared_blocks() for layer in layers if layer.pooled is not None),
            shared_bytes=shared_bytes,
        )

    def stats(self) -> AnswerStats:
        """What the answer in progress cost so far."""
        answer = self.answer
        assert answer is not None
        seconds = answer.last_at - answer.first_at
        return AnswerStats(
            prompt_tokens=answer.n_prompt - answer.n_inside,
            reused_tokens=answer.reused,
            tokens=answer.n_generated,
            tokens_per_s=(answer.n_generated - 1) / seconds if seconds > 0 else 0.0,
            own_tokens_per_s=answer.alone_steps / answer.alone_seconds if answer.alone_seconds else 0.0,
            blocks_held=self.blocks_held,
            memory_bytes=self.memory_bytes,
            uncompressed_bytes=self.uncompressed_bytes,
        )


def _common(held: list[int], tokens: list[int]) -> int:
    """How many tokens both begin with, at most all but the last of `tokens`."""
    common = 0
    for mine, wanted in zip(held, tokens[:-1], strict=False):
        if mine != wanted:
            break
        common += 1
    return common


def _arrays_in(state: Any) -> list[mx.array]:
    if isinstance(state, mx.array):
        return [state]
    if isinstance(state, (list, tuple)):
        return [array for part in state for array in _arrays_in(part)]
    return []
