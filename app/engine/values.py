"""The plain values that commands and events are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from veloxquant_mlx.cache.config import METHODS, KVCacheConfig


@dataclass(frozen=True, slots=True)
class CacheChoice:
    """How one chat's keys and values are stored: a method of `METHODS`, and its bits where it has any."""

    method: str = "turboquant_mse"
    key_bits: int = 4
    value_bits: int = 4

    def __post_init__(self) -> None:
        # Raises QuantizerConfigError for an unknown method or impossible bits, before anything reaches the worker.
        KVCacheConfig(method=self.method, key_bits=self.key_bits, value_bits=self.value_bits)

    @property
    def bits(self) -> float | None:
        """Average bits per stored code, or None where the method stores keys and values as they come."""
        return None if not METHODS[self.method].bits else (self.key_bits + self.value_bits) / 2

    @property
    def label(self) -> str:
        """A short name for people: "fp16", "TurboQuant 4-bit", "TurboQuant K4 V2"."""
        title = METHODS[self.method].title
        if not METHODS[self.method].bits:
            return title
        if self.key_bits == self.value_bits:
            return f"{title} {self.key_bits}-bit"
        return f"{title} K{self.key_bits} V{self.value_bits}"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen, and when an answer ends.

    Attributes:
        temperature: 0 is greedy: always the likeliest token, whatever top_p, top_k and min_p are.
        top_p: The likeliest tokens that together have this probability (nucleus sampling); 1 is all.
        top_k: The k likeliest tokens; 0 is all.
        min_p: Tokens with at least this part of the likeliest token's probability; 0 is all.
        repetition_penalty: What logits of recent tokens are divided by (CTRL, arXiv 1909.05858, section 4.1); 1 is off.
        repetition_window: How many tokens are recent.
        seed: With a seed, an answer's random numbers are the same each time, alone or among others; None is others each
            time.
        max_tokens: The answer ends after so many.
        stop: Texts that end the answer, and are not part of it.

    Raises:
        ValueError: naming what is allowed.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_window: int = 64
    seed: int | None = None
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, (least, most, whole) in SAMPLING_LIMITS.items():
            number: object = getattr(self, name)
            fits = type(number) is int or (type(number) is float and not whole)
            if not fits or not least <= getattr(self, name) <= most:
                kind = "a whole number" if whole else "a number"
                raise ValueError(f"Sampling.{name} must be {kind} from {least:,} to {most:,}, not {number!r}.")
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed < 2**63):
            raise ValueError(f"Sampling.seed must be a whole number of at least 0, or None, not {self.seed!r}.")
        if not isinstance(self.stop, tuple) or not all(isinstance(text, str) and text for text in self.stop):
            raise ValueError(f"Sampling.stop must be a tuple of texts that are not empty, not {self.stop!r}.")


# The least and the most of each number, and whether it must be whole.
SAMPLING_LIMITS: dict[str, tuple[float, float, bool]] = {
    "temperature": (0, 10, False),
    "top_p": (0.01, 1, False),
    "top_k": (0, 1_000_000, True),
    "min_p": (0, 1, False),
    "repetition_penalty": (0.1, 10, False),
    "repetition_window": (1, 4096, True),
    "max_tokens": (1, 1_000_000, True),
}


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model, in plain values.

    Attributes:
        name: The folder's name, for people.
        context_limit: Tokens the model was made for.
        bytes_per_token: What one token's keys and values take uncompressed, over all layers, in the type they are
            computed in here (`dtype`).
        notices: Sentences the window must show, such as a slow fallback that is in use.
    """

    name: str
    folder: str
    n_layers: int
    n_kv_heads: int
    head_dim: int
    context_limit: int
    dtype: str
    device: str
    bytes_per_token: int
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """What one answer cost.

    Attributes:
        prompt_tokens: Tokens of the whole prompt (conversation so far).
        reused_tokens: Prompt tokens the cache already held from earlier turns.
        tokens: Tokens generated.
        tokens_per_s: Generated tokens per second as a person saw them arrive, other chats' turns included.
        own_tokens_per_s: Steps a second of this chat where it was alone in the model; 0 where that was never so. (What
            chats take together in one batched step can't be told apart.)
        memory_bytes: nbytes of every array this chat's caches hold now, capacity included.
        uncompressed_bytes: What the method fp16 would hold for the same number of tokens on this machine.
    """

    prompt_tokens: int
    reused_tokens: int
    tokens: int
    tokens_per_s: float
    own_tokens_per_s: float
    blocks_held: int
    memory_bytes: int
    uncompressed_bytes: int

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that went through the model for this answer."""
        return self.prompt_tokens - self.reused_tokens

    @property
    def ratio(self) -> float:
        """How many times smaller than uncompressed (1.0 for fp16 itself)."""
        return self.uncompressed_bytes / self.memory_bytes if self.memory_bytes else 1.0


# "queued": its turn to read comes; "waiting": for memory, which it has no claim on before chats that asked earlier.
ChatState = Literal["idle", "queued", "prefill", "decode", "waiting"]


@dataclass(frozen=True, slots=True)
class ChatMemory:
    """One chat's share of the memory.

    Attributes:
        tokens: Whose keys and values its caches hold.
        blocks_held: Blocks of the pool, those shared with other chats included.
        memory_bytes: nbytes of every array its caches hold, those shared included.
        uncompressed_bytes: What the method fp16 would hold for as many tokens.
        shared_blocks: Of blocks_held, those that other chats hold too (forks of one conversation).
        shared_bytes: Of memory_bytes, what other chats hold too.
    """

    chat_id: int
    state: ChatState
    tokens: int
    blocks_held: int
    memory_bytes: int
    uncompressed_bytes: int
    shared_blocks: int = 0
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PoolReport:
    """The shared pool.

    Attributes:
        active_bytes: MLX's own counter of everything it holds, weights included.
        bytes_in_use: Bytes of all blocks in use, shared ones once; this is what the budget limits.
        max_bytes: The budget; None is no limit.
        shared_blocks: Blocks in use that more than one chat holds.
        cache_bytes: nbytes of every array that any chat's caches hold, what forks share once.
    """

    block_size: int
    n_blocks: int
    blocks_in_use: int
    fragmentation: float
    allocations: int
    reused: int
    peak_blocks_in_use: int
    active_bytes: int
    bytes_in_use: int = 0
    max_bytes: int | None = None
    shared_blocks: int = 0
    cache_bytes: int = 0
