"""Between the engine, the store and the widgets: owns the state, turns events into it, says what changed.

A timer drains the engine's events; text that came since the last drain is one change, not one per token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject, QTimer, Signal

from app.engine.messages import (
    AnswerEnded,
    AnswerText,
    CacheChoice,
    ChatClosed,
    ChatFailed,
    ChatOpened,
    CloseChat,
    Command,
    EngineStopped,
    Event,
    FetchDefaultModel,
    LoadModel,
    MemoryReport,
    ModelFailed,
    ModelProgress,
    ModelReady,
    OpenChat,
    PoolResized,
    PromptProgress,
    ResizePool,
    Sampling,
    Send,
    Stop,
)
from app.store.store import StoreError
from app.ui import settings, words
from app.ui.comparison import MAX_TOKENS, Comparison
from app.ui.ports import EngineLike, StoreLike
from app.ui.settings import parse_choice, write_choice
from app.ui.state import N_COLOURS, Chat, Lane, Memory, Model, Running, Turn, conversation_of, free_colour

DRAIN_MS = 33
SAVE_EVERY_S = 2.0
_UNSAVED = 1_000_000_000  # ids of chats that could not be written down start here, beyond any in the store
# The model's authors advise these for chatting (SmolLM2's model card).
SAMPLING = Sampling(temperature=0.2, top_p=0.9, max_tokens=1024)


class Controller(QObject):
    """State and verbs of the application, without a widget."""

    chats_changed = Signal()  # a chat came or went
    chat_changed = Signal(int)  # a chat's title or state
    turns_changed = Signal(int)  # a turn came, went or ended
    streamed = Signal(int)  # the last turn has more text
    model_changed = Signal()
    memory_changed = Signal()
    lanes_changed = Signal()  # the comparison started or was cleared
    lane_changed = Signal(int)

    def __init__(
        self,
        engine: EngineLike,
        store: StoreLike,
        restart_engine: Callable[[], EngineLike] | None = None,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self.store = store
        self.model = Model()
        self.memory = Memory()
        self.save_error = ""  # why the last change could not be written down, for people
        self.chats: dict[int, Chat] = {}
        self.colours: dict[int, int] = {}  # of closed chats too: the chart still shows their past
        self.comparison = Comparison(self._submit)
        self.sampling = SAMPLING  # of chats; the comparison is always greedy
        self._engine = engine
        self._restart_engine = restart_engine
        self.model_folder: str | None = None  # None is the default model
        self._saved_at: dict[int, float] = {}
        self._dirty: dict[str, set[int]] = {}
        for stored in store.chats():
            choice = parse_choice(f"{stored.method}/{stored.key_bits}/{stored.value_bits}")
            chat = Chat(stored.id, choice, self._colour_for(stored.id), title=stored.title)
            chat.turns = [Turn.from_store(m.role, m.content, m.note) for m in store.messages(stored.id)]
            self.chats[chat.id] = chat
        self._timer = QTimer(self)
        self._timer.setInterval(DRAIN_MS)
        self._timer.timeout.connect(self.drain)

    # ------------------------------------------------------------ engine
    def start(self, model_folder: str | None = None) -> None:
        """Start the worker and let it load the model. Call it once the window is on screen."""
        self.model_folder = model_folder
        self._engine.start()
        self._submit(LoadModel(model_folder))
        self._timer.start()

    def restart_engine(self) -> None:
        """Replace an engine that has stopped by a fresh one; chats are read again when they are next used."""
        if self._restart_engine is None:
            return
        self._engine = self._restart_engine()
        self.model = Model()
        self.memory = Memory()
        self.start(self.model_folder)
        self.model_changed.emit()
        self.memory_changed.emit()

    @property
    def can_restart(self) -> bool:
        return self._restart_engine is not None

    def fetch_default_model(self) -> None:
        self.model = Model(stage="Downloading the default model")
        self._submit(FetchDefaultModel())
        self.model_changed.emit()

    def load_model(self, folder: str | None) -> None:
        """Load the model in `folder`, or the default one for None; every chat's cache is made again for it."""
        if not self.model.can_change:
            return
        self.model_folder = folder
        self.model = Model()
        self._submit(LoadModel(folder))
        self.model_changed.emit()

    def resize_pool(self, n_blocks: int) -> None:
        self._submit(ResizePool(n_blocks))

    def save_all(self) -> None:
        """Write down what is being answered right now, so that nothing on screen is lost when the app ends."""
        self._timer.stop()
        for chat in self.chats.values():
            if chat.answering and chat.turns:
                chat.turns[-1].kind = "stopped"
                self._save_last(chat)

    def _submit(self, command: Command) -> None:
        self._engine.submit(command)

    # ------------------------------------------------------------ chats
    @property
    def can_send(self) -> bool:
        return self.model.phase == "ready"

    @property
    def last_choice(self) -> CacheChoice:
        return parse_choice(self.store.setting(settings.CHOICE, ""))

    @last_choice.setter
    def last_choice(self, choice: CacheChoice) -> None:
        self.remember(settings.CHOICE, write_choice(choice))

    def new_chat(self, choice: CacheChoice | None = None) -> int:
        """A new, empty chat; returns its id, which is the store's and the engine's too."""
        choice = choice or self.last_choice
        try:
            chat_id = self.store.add_chat("New chat", choice.method, choice.key_bits, choice.value_bits).id
        except StoreError as error:
            chat_id = _UNSAVED + len(self.colours)
            self._saving_failed(error)
        self.chats[chat_id] = Chat(chat_id, choice, self._colour_for(chat_id), title="New chat")
        self.chats_changed.emit()
        return chat_id

    def set_choice(self, chat_id: int, choice: CacheChoice) -> None:
        """Change how a chat's memory is kept, which is possible until its first question."""
        chat = self.chats[chat_id]
        if not chat.turns and not chat.opened:
            chat.choice = choice
            self._save(self.store.set_method, chat_id, choice.method, choice.key_bits, choice.value_bits)
            self.chat_changed.emit(chat_id)

    def send(self, chat_id: int, text: str) -> bool:
        """Add the person's message and let the model answer. False when that is not possible now."""
        chat, text = self.chats[chat_id], text.strip()
        if not text or chat.answering or not self.can_send:
            return False
        if not chat.turns:
            chat.title = words.title_from(text)
            self._save(self.store.rename_chat, chat_id, chat.title)
        chat.turns.append(Turn("user", text))
        self._save(self.store.add_message, chat_id, "user", text)
        self._answer(chat)
        return True

    def answer_again(self, chat_id: int) -> bool:
        """Drop the last answer (or failure) and ask for another one."""
        chat = self.chats[chat_id]
        if chat.answering or not self.can_send or not chat.turns:
            return False
        if chat.turns[-1].role == "assistant":
            chat.turns.pop()
            self._save(self.store.truncate_messages, chat_id, len(chat.turns))
        self._answer(chat)
        return True

    def stop(self, chat_id: int) -> None:
        if self.chats[chat_id].answering:
            self._submit(Stop(chat_id))

    def rename_chat(self, chat_id: int, title: str) -> None:
        if title.strip():
            self.chats[chat_id].title = title.strip()
            self._save(self.store.rename_chat, chat_id, title.strip())
            self.chat_changed.emit(chat_id)

    def close_chat(self, chat_id: int) -> None:
        """Delete a chat: its text from the store, its cache from the engine."""
        chat = self.chats.pop(chat_id)
        if chat.opened:
            self._submit(CloseChat(chat_id))
        self._save(self.store.delete_chat, chat_id)
        self.chats_changed.emit()

    def free_memory(self, chat_id: int) -> None:
        """Give a chat's cache back and keep its text, which is read again before the chat's next answer."""
        chat = self.chats[chat_id]
        if chat.opened and not chat.answering:
            self._submit(CloseChat(chat_id))
            chat.opened, chat.memory = False, None
            self.chat_changed.emit(chat_id)
            self.memory_changed.emit()

    def _answer(self, chat: Chat) -> None:
        if not chat.opened:
            self._submit(OpenChat(chat.id, chat.choice))
            chat.opened = True
        chat.begin()
        conversation = conversation_of(chat.turns)
        chat.turns.append(Turn("assistant", "", "pending"))
        self._save(self.store.add_message, chat.id, "assistant", "", chat.turns[-1].stored_note)
        self._submit(Send(chat.id, conversation, self.sampling))
        self.turns_changed.emit(chat.id)
        self.chat_changed.emit(chat.id)

    def remember(self, key: str, value: str) -> None:
        """Keep a setting for the next start."""
        self._save(self.store.set_setting, key, value)

    def _save(self, write: Callable[..., object], *values: object) -> None:
        """Write to the store. A full disk or the like must not take a running chat down: it is told and goes on."""
        try:
            write(*values)
        except StoreError as error:
            self._saving_failed(error)

    def _saving_failed(self, error: StoreError) -> None:
        if str(error) != self.save_error:
            self.save_error = str(error)
            self.model_changed.emit()

    def _save_last(self, chat: Chat) -> None:
        self._saved_at[chat.id] = time.monotonic()
        self._save(self.store.replace_last_message, chat.id, chat.turns[-1].content, chat.turns[-1].stored_note)

    def _colour_for(self, chat_id: int) -> int:
        """The chat's own colour, the same after every start, unless another chat has it and one is free."""
        self.colours[chat_id] = free_colour((chat_id - 1) % N_COLOURS, [chat.colour for chat in self.chats.values()])
        return self.colours[chat_id]

    # ------------------------------------------------------------ comparison
    def start_comparison(self, prompt: str, choices: Sequence[CacheChoice], max_tokens: int = MAX_TOKENS) -> bool:
        prompt = prompt.strip()
        if not prompt or not choices or not self.can_send:
            return False
        self.comparison.start(prompt, choices, max_tokens)
        for lane in self.comparison.lanes:
            self.colours[lane.id] = lane.colour
        self.lanes_changed.emit()
        return True

    def stop_comparison(self) -> None:
        self.comparison.stop()

    def clear_comparison(self) -> None:
        self.comparison.clear()
        self.lanes_changed.emit()

    def holder(self, chat_id: int) -> Chat | Lane | None:
        """The chat (positive id) or the comparison's lane (negative id)."""
        return self.chats.get(chat_id) if chat_id >= 0 else self.comparison.lane(chat_id)

    # ------------------------------------------------------------ events
    def drain(self) -> None:
        """Take everything the engine has said since the last time, then tell the widgets once per thing changed."""
        events = self._engine.events()
        if not events:
            return
        self._dirty = {name: set() for name in ("chat", "turns", "text", "lane", "model", "memory")}
        for event in events:
            self._apply(event)
        dirty = self._dirty
        if dirty["model"]:
            self.model_changed.emit()
        for chat_id in dirty["turns"]:
            self.turns_changed.emit(chat_id)
        for chat_id in dirty["text"] - dirty["turns"]:
            self.streamed.emit(chat_id)
        for chat_id in dirty["chat"]:
            self.chat_changed.emit(chat_id)
        for lane_id in dirty["lane"]:
            self.lane_changed.emit(lane_id)
        if dirty["memory"]:
            self.memory_changed.emit()

    def _apply(self, event: Event) -> None:
        match event:
            case ModelProgress(stage, fraction):
                if self.model.phase == "loading":
                    self.model.stage, self.model.fraction = stage, fraction
                    self._dirty["model"].add(0)
            case ModelReady(info):
                self.model = Model("ready", info=info)
                self._dirty["model"].add(0)
            case ModelFailed(message, can_fetch):
                self.model = Model("failed", error=message, can_fetch=can_fetch)
                self._dirty["model"].add(0)
            case EngineStopped(error):
                self._engine_stopped(error)
            case MemoryReport():
                self._memory(event)
            case ChatOpened() | ChatClosed() | PoolResized():
                pass  # The next memory report shows it.
            case PromptProgress() | AnswerText() | AnswerEnded() | ChatFailed():
                holder = self.holder(event.chat_id)
                if holder is not None:
                    self._answering(holder, event)

    def _answering(self, holder: Chat | Lane, event: PromptProgress | AnswerText | AnswerEnded | ChatFailed) -> None:
        self._touched(holder)
        now = time.monotonic()
        match event:
            case PromptProgress(_, done, total, _):
                if holder.answering:
                    holder.phase, holder.done, holder.total = "prefill", done, total
            case AnswerText(_, text, n_tokens):
                holder.count(n_tokens, now)
                if isinstance(holder, Lane):
                    holder.text += text
                elif holder.turns:
                    holder.turns[-1].content += text
                    self._dirty["text"].add(holder.id)
                    if now - self._saved_at.get(holder.id, 0.0) > SAVE_EVERY_S:
                        self._save_last(holder)
            case AnswerEnded(_, reason, stats):
                holder.stats = stats
                if isinstance(holder, Lane):
                    self.comparison.ended(holder, event)
                else:
                    kind = "done" if reason == "stop" else reason
                    self._finish(holder, Turn("assistant", "", kind, words.answer_note(stats)))
            case ChatFailed(_, message):
                if isinstance(holder, Lane):
                    self.comparison.failed(holder, message)
                else:
                    self._finish(holder, Turn("assistant", "", "failed", message))

    def _finish(self, chat: Chat, ending: Turn) -> None:
        chat.phase = "idle"
        if chat.turns and chat.turns[-1].kind == "pending":
            chat.turns[-1].kind, chat.turns[-1].note = ending.kind, ending.note
            self._save_last(chat)
        self._dirty["turns"].add(chat.id)

    def _touched(self, holder: Running) -> None:
        self._dirty["chat" if isinstance(holder, Chat) else "lane"].add(holder.id)

    def _memory(self, report: MemoryReport) -> None:
        self.memory.take(report)
        held = {memory.chat_id: memory for memory in report.chats}
        for holder in (*self.chats.values(), *self.comparison.lanes):
            holder.memory = held.get(holder.id)
            if isinstance(holder, Lane):
                self._touched(holder)
        self._dirty["memory"].add(0)

    def _engine_stopped(self, error: str) -> None:
        """Every cache is gone with the worker: what was being answered fails, what was opened must be opened again."""
        self.model = Model("stopped", error=error)
        for holder in (*self.chats.values(), *self.comparison.lanes):
            was_answering, holder.phase, holder.opened, holder.memory = holder.answering, "idle", False, None
            self._touched(holder)
            if was_answering and isinstance(holder, Lane):
                self.comparison.failed(holder, "The engine stopped.")
            elif was_answering and isinstance(holder, Chat):
                self._finish(holder, Turn("assistant", "", "failed", "The engine stopped while answering."))
        self.memory = Memory()
        self._dirty["model"].add(0)
        self._dirty["memory"].add(0)
