"""Between the engine, the store and the widgets: owns the state, turns events into it, says what changed.

A timer drains the engine's events; text that came since the last drain is one change, not one per token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from PySide6.QtCore import QObject, QTimer, Signal

from app.engine.messages import (
    CacheChoice,
    CloseChat,
    Command,
    FetchDefaultModel,
    ForkChat,
    LoadModel,
    OpenChat,
    Sampling,
    Send,
    SetBudget,
    Stop,
)
from app.ui.look import words
from app.ui.session import settings
from app.ui.session.comparison import MAX_TOKENS, Comparison
from app.ui.session.cost import Cost
from app.ui.session.incoming import Incoming
from app.ui.session.opening import Opening
from app.ui.session.ports import EngineLike, StoreLike
from app.ui.session.saving import Saving
from app.ui.session.settings import ChatSettings, parse_budget, parse_choice, write_budget, write_choice
from app.ui.session.state import (
    N_COLOURS,
    NEW_TITLE,
    Chat,
    Memory,
    Model,
    State,
    Turn,
    conversation_of,
    free_colour,
)

DRAIN_MS = 33
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
        self.saving = Saving(store, self.model_changed.emit)
        self.state = State(
            budget=parse_budget(self.saving.setting(settings.BUDGET)),
            drop_idle=self.saving.setting(settings.DROP_IDLE) == "1",
        )
        self.colours: dict[int, int] = {}  # of closed chats too: the chart still shows their past
        self.comparison = Comparison(self.state, self.submit)
        self.sampling = SAMPLING  # of chats that have none of their own; the comparison is always greedy
        self._engine = engine
        self._restart_engine = restart_engine
        taken: set[int] = set()
        for chat in self.saving.chats():
            chat.colour = self._colour_for(chat.id, taken)
            taken.add(chat.colour)
            self.chats[chat.id] = chat
        self.opening = Opening(self.state, self.saving, self._start_engine, self.submit, self)
        self.opening.model_changed.connect(self.model_changed)
        self._incoming = Incoming(self.state, self.comparison, self.saving, self.opening)
        self._timer = QTimer(self)
        self._timer.setInterval(DRAIN_MS)
        self._timer.timeout.connect(self.drain)

    # ------------------------------------------------------------ what is known
    @property
    def chats(self) -> dict[int, Chat]:
        return self.state.chats

    @property
    def model(self) -> Model:
        return self.state.model

    @property
    def model_folder(self) -> str | None:
        return self.state.model_folder

    @property
    def memory(self) -> Memory:
        return self.state.memory

    @property
    def budget(self) -> int | None:
        return self.state.budget

    @property
    def drop_idle(self) -> bool:
        return self.state.drop_idle

    # ------------------------------------------------------------ engine
    def start(self, model_folder: str | None = None) -> None:
        """Start the worker and let it load the model. Call it once the window is on screen."""
        self._start_engine()
        self.state.model_folder = model_folder
        self.submit(LoadModel(model_folder))

    def _start_engine(self) -> None:
        self._engine.start()
        if saved := self.saving.setting(settings.BUDGET):
            self.submit(SetBudget(parse_budget(saved), self.saving.setting(settings.DROP_IDLE) == "1"))
        self._timer.start()

    def restart_engine(self) -> None:
        """Replace an engine that has stopped by a fresh one; chats are read again when they are next used."""
        if self._restart_engine is None:
            return
        self._engine = self._restart_engine()
        self.state.model, self.state.memory = Model(), Memory()
        self.start(self.model_folder)
        self.model_changed.emit()
        self.memory_changed.emit()

    @property
    def can_restart(self) -> bool:
        return self._restart_engine is not None

    def fetch_default_model(self) -> None:
        self.state.model = Model(stage="Downloading the default model")
        self.submit(FetchDefaultModel())
        self.model_changed.emit()

    def load_model(self, folder: str | None) -> None:
        """Load the model in `folder`, or the default one for None; every chat's cache is made again for it."""
        if self.model.can_change:
            self.opening.load(folder)

    def set_budget(self, max_bytes: int | None, drop_idle: bool) -> None:
        """Let all chats take at most so much memory together (None: as much as there is), now and after a restart."""
        self.remember(settings.BUDGET, write_budget(max_bytes))
        self.remember(settings.DROP_IDLE, "1" if drop_idle else "0")
        self.submit(SetBudget(max_bytes, drop_idle))

    def save_all(self) -> None:
        """Write down what is being answered right now, so that nothing on screen is lost when the app ends."""
        self._timer.stop()
        self.opening.forget_trial()
        for chat in self.chats.values():
            if chat.answering and chat.turns:
                chat.turns[-1].kind = "stopped"
                self.saving.last_turn(chat)

    @property
    def save_error(self) -> str:
        """Why the last change could not be written down, for people."""
        return self.saving.error

    def submit(self, command: Command) -> None:
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
        chat_id = self.saving.add_chat(NEW_TITLE, choice)
        self.chats[chat_id] = Chat(chat_id, choice, self._colour_for(chat_id))
        self.chats_changed.emit()
        return chat_id

    def set_choice(self, chat_id: int, choice: CacheChoice) -> None:
        """Change how a chat's memory is kept, which is possible until its first question."""
        chat = self.chats[chat_id]
        if not chat.turns and not chat.opened:
            chat.choice = choice
            self._save(self.store.set_method, chat_id, choice.method, choice.key_bits, choice.value_bits)
            self.chat_changed.emit(chat_id)

    def set_settings(self, chat_id: int, chosen: ChatSettings) -> None:
        """Change how a chat is answered, from its next answer on."""
        chat = self.chats[chat_id]
        if chosen.context_limit != chat.settings.context_limit:
            chat.context, chat.has_room = None, True
        chat.settings = chosen
        self._save(self.store.set_settings, chat_id, chosen.write())
        self.chat_changed.emit(chat_id)

    def set_drop_oldest(self, chat_id: int, drop_oldest: bool) -> None:
        """Leave the oldest messages out when the context is full, or not. An answer that waited for that goes on."""
        chat = self.chats[chat_id]
        asked, chat.asks_room = chat.asks_room, False
        self.set_settings(chat_id, replace(chat.settings, drop_oldest=drop_oldest))
        if asked and drop_oldest:
            self.continue_answer(chat_id)

    def fork_chat(self, chat_id: int, keep: int) -> int | None:
        """A new chat that begins as this one's first `keep` turns; returns its id. None while one is being written."""
        parent = self.chats[chat_id]
        kept = [replace(turn) for turn in parent.turns[:keep]]
        if any(turn.kind == "pending" for turn in kept):
            return None
        title = words.fork_title(parent.title, {chat.title for chat in self.chats.values()})
        new_id = self.saving.fork_chat(chat_id, keep, title)
        fork = Chat(new_id, parent.choice, self._colour_for(new_id), title=title, turns=kept, settings=parent.settings)
        self.chats[new_id] = fork
        messages = conversation_of(kept)
        if parent.opened and messages:
            self.submit(ForkChat(chat_id, new_id, messages))
            fork.opened = True
        self.chats_changed.emit()
        return new_id

    def send(self, chat_id: int, text: str) -> bool:
        """Add the person's message and let the model answer. False when that is not possible now."""
        chat, text = self.chats[chat_id], text.strip()
        if not text or not self.can_answer(chat_id):
            return False
        if not chat.turns and chat.title == NEW_TITLE:
            chat.title = words.title_from(text)
            self._save(self.store.rename_chat, chat_id, chat.title)
        chat.turns.append(Turn("user", text))
        self._save(self.store.add_message, chat_id, "user", text)
        self._answer(chat)
        return True

    def can_answer(self, chat_id: int) -> bool:
        return self.can_send and not self.chats[chat_id].answering

    def edit_message(self, chat_id: int, index: int, text: str) -> bool:
        """Say something else instead of turn `index`, drop what came after it, and let the model answer."""
        chat, text = self.chats[chat_id], text.strip()
        if not text or not self.can_answer(chat_id) or chat.turns[index].role != "user":
            return False
        if index == 0 and chat.title == words.title_from(chat.turns[0].content):
            chat.title = words.title_from(text)
            self._save(self.store.rename_chat, chat_id, chat.title)
        chat.cut(index + 1)
        self._save(self.store.truncate_messages, chat_id, index + 1)
        chat.turns[index] = Turn("user", text)
        self.saving.last_turn(chat)
        self._answer(chat)
        return True

    def answer_again(self, chat_id: int) -> bool:
        """Drop the last answer (or failure) and ask for another one."""
        chat = self.chats[chat_id]
        if not chat.turns or not self.can_answer(chat_id):
            return False
        if chat.turns[-1].role == "assistant":
            context = chat.context if chat.turns[-1].kind == "failed" else None  # what failed for its length still will
            chat.cut(len(chat.turns) - 1)
            chat.context = context
            self._save(self.store.truncate_messages, chat_id, len(chat.turns))
        self._answer(chat)
        return True

    def continue_answer(self, chat_id: int) -> bool:
        """Let the last answer go on, which was cut off. Where the context is full, the person is asked first how."""
        chat = self.chats[chat_id]
        if not chat.turns or not chat.turns[-1].can_go_on or not self.can_answer(chat_id):
            return False
        turn = chat.turns[-1]
        if turn.kind == "context" and not chat.settings.drop_oldest and not chat.has_room:
            chat.asks_room = True
            self.chat_changed.emit(chat_id)
            return False
        turn.kind, turn.note = "pending", ""
        self.saving.last_turn(chat)
        self._let_answer(chat, turn.cost)
        return True

    def stop(self, chat_id: int) -> None:
        if self.chats[chat_id].answering:
            self.submit(Stop(chat_id))

    def rename_chat(self, chat_id: int, title: str) -> None:
        if title.strip():
            self.chats[chat_id].title = title.strip()
            self._save(self.store.rename_chat, chat_id, title.strip())
            self.chat_changed.emit(chat_id)

    def close_chat(self, chat_id: int) -> None:
        """Delete a chat: its text from the store, its cache from the engine."""
        chat = self.chats.pop(chat_id)
        if chat.opened:
            self.submit(CloseChat(chat_id))
        self._save(self.store.delete_chat, chat_id)
        self.chats_changed.emit()

    def free_memory(self, chat_id: int) -> None:
        """Give a chat's cache back and keep its text, which is read again before the chat's next answer."""
        chat = self.chats[chat_id]
        if chat.opened and not chat.answering:
            self.submit(CloseChat(chat_id))
            chat.opened, chat.memory = False, None
            self.chat_changed.emit(chat_id)
            self.memory_changed.emit()

    @property
    def can_free_idle(self) -> bool:
        return any(chat.can_free for chat in self.chats.values())

    def free_idle(self) -> None:
        """Give back the memory of every chat that is not answering."""
        for chat in list(self.chats.values()):
            if chat.can_free:
                self.free_memory(chat.id)

    def _answer(self, chat: Chat) -> None:
        chat.turns.append(Turn("assistant", "", "pending"))
        self._save(self.store.add_message, chat.id, "assistant", "", chat.turns[-1].stored_note)
        self._let_answer(chat, Cost())

    def _let_answer(self, chat: Chat, before: Cost) -> None:
        """Let the model write on at the last turn, which has cost `before` already."""
        if not chat.opened:
            self.submit(OpenChat(chat.id, chat.choice))
            chat.opened = True
        chat.begin()
        chat.before = before
        chosen = chat.settings
        self.submit(
            Send(
                chat.id,
                conversation_of(chat.turns),
                chosen.sampling or self.sampling,
                context_limit=chosen.context_limit,
                drop_oldest=chosen.drop_oldest,
            )
        )
        self.turns_changed.emit(chat.id)
        self.chat_changed.emit(chat.id)

    def remember(self, key: str, value: str) -> None:
        """Keep a setting for the next start."""
        self.saving.remember(key, value)

    def _save(self, write: Callable[..., object], *values: object) -> None:
        self.saving.write(write, *values)

    def _colour_for(self, chat_id: int, taken: Collection[int] | None = None) -> int:
        """The chat's own colour, the same after every start, unless another chat has it and one is free."""
        taken = {chat.colour for chat in self.chats.values()} if taken is None else taken
        self.colours[chat_id] = free_colour((chat_id - 1) % N_COLOURS, taken)
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

    # ------------------------------------------------------------ events
    def drain(self) -> None:
        """Take everything the engine has said since the last time, then tell the widgets once per thing changed."""
        events = self._engine.events()
        if not events:
            return
        changed = self._incoming.take(events)
        if changed.model:
            self.model_changed.emit()
        if changed.opening:
            self.opening.changed.emit()
        for chat_id in changed.turns:
            self.turns_changed.emit(chat_id)
        for chat_id in changed.texts - changed.turns:
            self.streamed.emit(chat_id)
        for chat_id in changed.chats:
            self.chat_changed.emit(chat_id)
        for lane_id in changed.lanes:
            self.lane_changed.emit(lane_id)
        if changed.memory:
            self.memory_changed.emit()
