"""What the engine says: each event changes what the window knows, and what changed is noted."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from app.engine.messages import (
    AnswerEnded,
    AnswerText,
    BudgetSet,
    CacheDropped,
    ChatClosed,
    ChatFailed,
    ChatForked,
    ChatOpened,
    ChatResumed,
    ChatWaiting,
    ContextNearlyFull,
    EngineStopped,
    Event,
    ImportCancelled,
    ImportFailed,
    ImportProgress,
    ImportRefused,
    MemoryReport,
    ModelFailed,
    ModelImported,
    ModelProgress,
    ModelReady,
    PromptProgress,
    TurnsDropped,
)
from app.ui.look import words
from app.ui.session.comparison import Comparison
from app.ui.session.opening import Opening
from app.ui.session.saving import Saving
from app.ui.session.state import Chat, ContextUse, Lane, Memory, Model, Running, State, TurnKind, turn_of_message

Answering = PromptProgress | AnswerText | AnswerEnded | ChatFailed | ChatWaiting | ChatResumed


@dataclass
class Changed:
    """What the widgets have to be told; ids of chats and lanes."""

    chats: set[int] = field(default_factory=set)
    turns: set[int] = field(default_factory=set)
    texts: set[int] = field(default_factory=set)
    lanes: set[int] = field(default_factory=set)
    model: bool = False
    opening: bool = False
    memory: bool = False


class Incoming:
    """Applies events to what the window knows."""

    def __init__(self, state: State, comparison: Comparison, saving: Saving, opening: Opening) -> None:
        self._state, self._comparison, self._saving, self._opening = state, comparison, saving, opening
        self._changed = Changed()

    def take(self, events: Iterable[Event]) -> Changed:
        """Let all of them happen, then say what changed."""
        self._changed = Changed()
        for event in events:
            self._apply(event)
        return self._changed

    def _apply(self, event: Event) -> None:
        state = self._state
        match event:
            case ModelProgress(stage, fraction):
                if state.model.phase == "loading":
                    state.model.stage, state.model.fraction = stage, fraction
                    self._changed.model = True
            case ModelReady(info):
                state.model = Model("ready", info=info)
                for chat in state.chats.values():
                    chat.context = None  # another model may read more
                self._changed.chats |= set(state.chats)
                self._changed.model = self._changed.opening = True
                self._opening.model_is_ready()
            case ModelFailed(message, can_fetch):
                state.model = Model("failed", error=message, can_fetch=can_fetch)
                self._changed.model = self._changed.opening = True
                self._opening.model_has_failed()
            case ImportProgress() | ModelImported() | ImportFailed() | ImportCancelled() | ImportRefused():
                self._opening.take(event)
                self._changed.opening = True
            case EngineStopped(error):
                self._engine_stopped(error)
            case MemoryReport():
                self._memory(event)
            case BudgetSet(max_bytes, drop_idle):
                state.budget, state.drop_idle = max_bytes, drop_idle
                self._changed.memory = True
            case ChatOpened() | ChatClosed() | ChatForked() | CacheDropped():
                pass  # The next memory report shows it; a chat whose cache was dropped is still open in the engine.
            case ContextNearlyFull() | TurnsDropped():
                # The comparison's short questions are far from the end of any context.
                if (found := state.chats.get(event.chat_id)) is not None:
                    self._context(found, event)
            case _:
                holder = state.holder(event.chat_id)
                if holder is not None:
                    self._answering(holder, event)

    def _answering(self, holder: Chat | Lane, event: Answering) -> None:
        self._touched(holder)
        match event:
            case PromptProgress(_, done, total, _):
                if holder.answering:
                    holder.phase, holder.done, holder.total = "prefill", done, total
            case ChatWaiting():
                if holder.answering:
                    holder.wait(event.message)
            case ChatResumed():
                if holder.phase == "waiting":
                    holder.phase = "queued"  # until it reads or writes again
            case AnswerText(_, text, n_tokens):
                holder.count(n_tokens, time.monotonic())
                if isinstance(holder, Lane):
                    holder.text += text
                elif holder.turns:
                    self._text(holder, text)
            case AnswerEnded(_, reason, stats):
                holder.stats = stats
                if isinstance(holder, Lane):
                    self._comparison.ended(holder, event)
                else:
                    cost = holder.before.ended(stats)
                    if holder.turns:
                        holder.turns[-1].cost = cost
                    if holder.context is not None:
                        used = stats.prompt_tokens + stats.tokens
                        holder.context = holder.context.now(holder.context.limit if reason == "context" else used)
                    note = words.answer_note(replace(stats, tokens=cost.tokens, tokens_per_s=cost.rate))
                    self._finish(holder, "done" if reason == "stop" else reason, note)
            case ChatFailed(_, message):
                if not holder.answering:
                    holder.opened = False  # it could not be made as a fork; it is opened when it is used
                elif isinstance(holder, Lane):
                    self._comparison.failed(holder, message)
                else:
                    self._finish(holder, "failed", message)

    def _text(self, chat: Chat, text: str) -> None:
        turn = chat.turns[-1]
        turn.content += text
        turn.cost = chat.before.growing(chat.n_tokens, chat.rate)
        self._changed.texts.add(chat.id)
        self._saving.last_turn_now_and_then(chat)
        if chat.dropped != chat.dropped_next:  # it has begun, and has been given more of the conversation than before
            chat.dropped = chat.dropped_next
            self._changed.turns.add(chat.id)

    def _finish(self, chat: Chat, kind: TurnKind, note: str) -> None:
        chat.phase = "idle"
        if chat.turns and chat.turns[-1].kind == "pending":
            chat.turns[-1].kind, chat.turns[-1].note = kind, note
            self._saving.last_turn(chat)
        self._changed.turns.add(chat.id)

    def _context(self, chat: Chat, event: ContextNearlyFull | TurnsDropped) -> None:
        self._touched(chat)
        match event:
            case ContextNearlyFull(_, used, limit):
                chat.context = ContextUse(used, limit)
            case TurnsDropped(_, n_messages):
                chat.dropped = chat.dropped_next = turn_of_message(chat.turns, n_messages)
                chat.context = None  # there is room again; the engine says so when it is nearly full the next time
                self._changed.turns.add(chat.id)

    def _touched(self, holder: Running) -> None:
        (self._changed.chats if isinstance(holder, Chat) else self._changed.lanes).add(holder.id)

    def _memory(self, report: MemoryReport) -> None:
        state = self._state
        state.memory.take(report)
        held = {memory.chat_id: memory for memory in report.chats}
        for holder in state.holders:
            holder.memory = held.get(holder.id)
            if isinstance(holder, Lane):
                self._touched(holder)
        self._changed.memory = True

    def _engine_stopped(self, error: str) -> None:
        """Every cache is gone with the worker: what was being answered fails, what was opened must be opened again."""
        state = self._state
        state.model = Model("stopped", error=error)
        self._opening.engine_has_stopped()
        self._changed.opening = True
        for holder in state.holders:
            was_answering, holder.phase, holder.opened, holder.memory = holder.answering, "idle", False, None
            self._touched(holder)
            if was_answering and isinstance(holder, Lane):
                self._comparison.failed(holder, "The engine stopped.")
            elif was_answering and isinstance(holder, Chat):
                self._finish(holder, "failed", "The engine stopped while answering.")
        state.memory = Memory()
        self._changed.model = self._changed.memory = True
