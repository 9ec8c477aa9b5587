"""Everything that crosses the thread boundary: commands to the worker, events from it.

All of it is plain frozen data; no MLX object ever leaves the worker thread and no Qt object ever enters it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from app.engine.values import (
    AnswerStats,
    CacheChoice,
    ChatMemory,
    ChatState,
    Message,
    ModelInfo,
    PoolReport,
    Sampling,
)
from veloxquant_mlx.cache.config import METHODS

__all__ = [
    "METHODS",
    "AnswerEnded",
    "AnswerStats",
    "AnswerText",
    "BudgetSet",
    "CacheChoice",
    "CacheDropped",
    "CancelImport",
    "ChatClosed",
    "ChatFailed",
    "ChatForked",
    "ChatMemory",
    "ChatOpened",
    "ChatResumed",
    "ChatState",
    "ChatWaiting",
    "CloseChat",
    "Command",
    "ContextNearlyFull",
    "EndReason",
    "EngineStopped",
    "Event",
    "FetchDefaultModel",
    "ForkChat",
    "ImportCancelled",
    "ImportFailed",
    "ImportModel",
    "ImportProgress",
    "ImportRefused",
    "LoadModel",
    "MemoryReport",
    "Message",
    "ModelFailed",
    "ModelImported",
    "ModelInfo",
    "ModelProgress",
    "ModelReady",
    "OpenChat",
    "PoolReport",
    "PromptProgress",
    "Sampling",
    "Send",
    "SetBudget",
    "Stop",
    "TurnsDropped",
]


# ---------------------------------------------------------------- commands
@dataclass(frozen=True, slots=True)
class LoadModel:
    """Load the mlx-lm model folder `folder`, or the default model when None. Answered by ModelReady or ModelFailed."""

    folder: str | None = None


@dataclass(frozen=True, slots=True)
class FetchDefaultModel:
    """Download the default model (the person asked for it), then load it."""


@dataclass(frozen=True, slots=True)
class ImportModel:
    """Convert the GGUF file `path` into a model folder, once, while chats go on answering. Nothing is loaded.

    Answered by ModelImported, ImportFailed or ImportCancelled; by ImportRefused at once where another import is
    running. Neither this nor CancelImport waits for what the worker is doing.
    """

    path: str


@dataclass(frozen=True, slots=True)
class CancelImport:
    """End the import that is running and remove what it has made. Answered by ImportCancelled, if there is one."""


@dataclass(frozen=True, slots=True)
class OpenChat:
    """Make a chat. Possible before a model is loaded. Answered by ChatOpened."""

    chat_id: int
    cache: CacheChoice = field(default_factory=CacheChoice)


@dataclass(frozen=True, slots=True)
class ForkChat:
    """Make the chat `new_chat_id`, which begins as `messages`, the first part of what was said in `chat_id`.

    It shares what the caches of `chat_id` hold of that, without a copy. Where they hold nothing, or there is no room
    for what can't be shared, it begins without a cache, which its first answer makes. Answered by ChatForked.
    """

    chat_id: int
    new_chat_id: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Answer `messages`, the whole conversation.

    Attributes:
        messages: The last one is the user's; or it is an answer that was cut off, which then goes on.
        context_limit: Tokens of this chat at most, where that is fewer than the model reads.
        drop_oldest: Leave the oldest turns out where the conversation would be longer than that (never the system's
            message); otherwise it is refused, and an answer ends there with the reason "context".
        time_alone: Take a few steps of this chat alone once it has ended, for `AnswerStats.own_tokens_per_s`.
    """

    chat_id: int
    messages: tuple[Message, ...]
    sampling: Sampling = field(default_factory=Sampling)
    context_limit: int | None = None
    drop_oldest: bool = False
    time_alone: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """End the chat's answer where it is: AnswerEnded with reason "stopped". Nothing, if it was not answering."""

    chat_id: int


@dataclass(frozen=True, slots=True)
class CloseChat:
    """Forget the chat and give all its blocks back. Answered by ChatClosed."""

    chat_id: int


@dataclass(frozen=True, slots=True)
class SetBudget:
    """Let the caches of all chats take at most max_bytes together; None is no limit. Answered by BudgetSet.

    Nothing that is in use is taken away by a smaller budget, unless drop_idle allows it. But a chat that answers, and
    by itself holds more than the budget, ends when it needs more.

    Attributes:
        drop_idle: When memory is short, drop the caches of chats that are not answering, the one used least recently
            first. Their texts stay, and are read again when they are next used.
    """

    max_bytes: int | None
    drop_idle: bool = False

    def __post_init__(self) -> None:
        if self.max_bytes is not None and (type(self.max_bytes) is not int or self.max_bytes < 1):
            raise ValueError(f"A budget is a whole number of bytes of at least 1, or None, not {self.max_bytes!r}.")


Command = (
    LoadModel
    | FetchDefaultModel
    | ImportModel
    | CancelImport
    | OpenChat
    | ForkChat
    | Send
    | Stop
    | CloseChat
    | SetBudget
)


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
class ImportProgress:
    """What is done to the GGUF file `path`, some twenty times a second at most; fraction as in ModelProgress."""

    path: str
    stage: str
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class ModelImported:
    """The GGUF file `path` is the model folder `folder` now, which LoadModel takes."""

    path: str
    folder: str


@dataclass(frozen=True, slots=True)
class ImportFailed:
    """The GGUF file `path` can't be used; nothing of it is left, and the model that is loaded stays."""

    path: str
    message: str


@dataclass(frozen=True, slots=True)
class ImportCancelled:
    path: str


@dataclass(frozen=True, slots=True)
class ImportRefused:
    """The import of `path` was not begun; the one that is running goes on."""

    path: str
    message: str


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
class ChatForked:
    """`new_chat_id` is there; it shares what `tokens` tokens take with `chat_id` (0: nothing could be shared)."""

    chat_id: int
    new_chat_id: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ChatWaiting:
    """The chat can't go on until there is memory; it will then do so by itself. `message` says what would help.

    Attributes:
        needed_bytes: What its next step takes.
        free_bytes: What is free of the budget.
    """

    chat_id: int
    needed_bytes: int
    free_bytes: int
    message: str


@dataclass(frozen=True, slots=True)
class ChatResumed:
    """There is memory again for a chat that waited."""

    chat_id: int


@dataclass(frozen=True, slots=True)
class CacheDropped:
    """The chat's cache was dropped to make room for others. Its text is read again when it is next used."""

    chat_id: int


@dataclass(frozen=True, slots=True)
class ContextNearlyFull:
    """The conversation takes `used` of the `limit` tokens that this chat may have; sent before it ends there."""

    chat_id: int
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class TurnsDropped:
    """The model was not given the first `n_messages` of the conversation (a system's message not counted)."""

    chat_id: int
    n_messages: int


@dataclass(frozen=True, slots=True)
class BudgetSet:
    max_bytes: int | None
    drop_idle: bool


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
    | ImportProgress
    | ModelImported
    | ImportFailed
    | ImportCancelled
    | ImportRefused
    | ChatOpened
    | PromptProgress
    | AnswerText
    | AnswerEnded
    | ChatFailed
    | ChatClosed
    | ChatForked
    | ChatWaiting
    | ChatResumed
    | CacheDropped
    | ContextNearlyFull
    | TurnsDropped
    | BudgetSet
    | MemoryReport
    | EngineStopped
)
