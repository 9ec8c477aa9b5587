"""Everything that crosses the thread boundary: commands to the worker, events from it.

All of it is plain frozen data; no MLX object ever leaves the worker thread and no Qt object ever enters it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from veloxquant_mlx.cache.config import METHODS, KVCacheConfig

__all__ = [
    "METHODS",
    "AnswerEnded",
    "AnswerStats",
    "AnswerText",
    "CacheChoice",
    "ChatClosed",
    "ChatFailed",
    "ChatMemory",
    "ChatOpened",
    "CloseChat",
    "Command",
    "EndReason",
    "EngineStopped",
    "Event",
    "FetchDefaultModel",
    "LoadModel",
    "MemoryReport",
    "Message",
    "ModelFailed",
    "ModelInfo",
    "ModelProgress",
    "ModelReady",
    "OpenChat",
    "PoolReport",
    "PoolResized",
    "PromptProgress",
    "ResizePool",
    "Sampling",
    "Send",
    "Stop",
]


# ---------------------------------------------------------------- shared values
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
    """How the next token is chosen. temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 1024


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
        own_tokens_per_s: Generated tokens per second of this chat's own steps, other chats' turns left out.
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
    def ratio(self) -> float:
        """How many times smaller than uncompressed (1.0 for fp16 itself)."""
        return self.uncompressed_bytes / self.memory_bytes if self.memory_bytes else 1.0


# ---------------------------------------------------------------- commands
@dataclass(frozen=True, slots=True)
class LoadModel:
    """Load the mlx-lm model folder `folder`, or the default model when None. Answered by ModelReady or ModelFailed."""

    folder: str | None = None


@dataclass(frozen=True, slots=True)
class FetchDefaultModel:
    """Download the default model (the person asked for it), then load it."""


@dataclass(frozen=True, slots=True)
class OpenChat:
    """Make a chat. Possible before a model is loaded. Answered by ChatOpened."""

    chat_id: int
    cache: CacheChoice = field(default_factory=CacheChoice)


@dataclass(frozen=True, slots=True)
class Send:
    """Answer `messages`, the whole conversation, whose last message is the user's."""

    chat_id: int
    messages: tuple[Message, ...]
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True)
class Stop:
    """End the chat's answer where it is: AnswerEnded with reason "stopped". Nothing, if it was not answering."""

    chat_id: int


@dataclass(frozen=True, slots=True)
class CloseChat:
    """Forget the chat and give all its blocks back. Answered by ChatClosed."""

    chat_id: int


@dataclass(frozen=True, slots=True)
class ResizePool:
    """Grow or shrink the pool to `n_blocks` (never below what is in use). Answered by PoolResized."""

    n_blocks: int


Command = LoadModel | FetchDefaultModel | OpenChat | Send | Stop | CloseChat | ResizePool


# ---------------------------------------------------------------- events
@dataclass(frozen=True, slots=True)
class ModelProgress:
    """What the worker does to get the model ready; fraction (0 to 1) is None where it can't be known."""

    stage: str
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class ModelReady:
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """No model is loaded. `can_fetch`: downloading the default model would help."""

    message: str
    can_fetch: bool = False


@dataclass(frozen=True, slots=True)
class ChatOpened:
    chat_id: int


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Prompt tokens processed so far; `reused` of them were already in the cache."""

    chat_id: int
    done: int
    total: int
    reused: int


@dataclass(frozen=True, slots=True)
class AnswerText:
    """More text of the answer; `n_tokens` have been generated so far."""

    chat_id: int
    text: str
    n_tokens: int


# "stop": the model ended it; "length": max_tokens; "stopped": the person; "context": the model's context is full.
EndReason = Literal["stop", "length", "stopped", "context"]


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    chat_id: int
    reason: EndReason
    stats: AnswerStats


@dataclass(frozen=True, slots=True)
class ChatFailed:
    """The answer could not go on. The message says what happened and what to do; the chat can be used again."""

    chat_id: int
    message: str


@dataclass(frozen=True, slots=True)
class ChatClosed:
    chat_id: int


@dataclass(frozen=True, slots=True)
class PoolResized:
    """`n_blocks` is the size reached, which is larger than asked for while more is in use."""

    n_blocks: int


@dataclass(frozen=True, slots=True)
class ChatMemory:
    """One chat's share of the memory."""

    chat_id: int
    state: Literal["idle", "queued", "prefill", "decode"]
    tokens: int
    blocks_held: int
    memory_bytes: int
    uncompressed_bytes: int


@dataclass(frozen=True, slots=True)
class PoolReport:
    """The shared pool. `active_bytes` is MLX's own counter of everything it holds, weights included."""

    block_size: int
    n_blocks: int
    blocks_in_use: int
    fragmentation: float
    allocations: int
    reused: int
    peak_blocks_in_use: int
    active_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Sent up to ten times a second while anything changes. `time` is time.monotonic() of the worker."""

    time: float
    chats: tuple[ChatMemory, ...]
    pool: PoolReport


@dataclass(frozen=True, slots=True)
class EngineStopped:
    """The worker thread has ended; `error` is empty when it was asked to."""

    error: str = ""


Event = (
    ModelProgress
    | ModelReady
    | ModelFailed
    | ChatOpened
    | PromptProgress
    | AnswerText
    | AnswerEnded
    | ChatFailed
    | ChatClosed
    | PoolResized
    | MemoryReport
    | EngineStopped
)
