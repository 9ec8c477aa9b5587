"""Writing chats down and reading them again. What can't be written is told, and takes no running chat down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from app.engine.messages import CacheChoice
from app.store.store import StoreError
from app.ui.session.ports import StoreLike
from app.ui.session.settings import ChatSettings, parse_choice
from app.ui.session.state import Chat, Turn

SAVE_EVERY_S = 2.0
_UNSAVED = 1_000_000_000  # ids of chats that could not be written down start here, beyond any in the store


class Saving:
    """The store, as the controller uses it."""

    def __init__(self, store: StoreLike, failed: Callable[[], None]) -> None:
        self.error = ""  # why the last change could not be written down, for people
        self._store = store
        self._failed = failed
        self._saved_at: dict[int, float] = {}
        self._unsaved = count(_UNSAVED)

    def chats(self) -> Iterator[Chat]:
        """What was written down before; each chat's turns are read when they are first needed."""
        for stored in self._store.chats():
            choice = parse_choice(f"{stored.method}/{stored.key_bits}/{stored.value_bits}")
            kept, turns = ChatSettings.parse(stored.settings), partial(self._turns, stored.id)
            yield Chat(stored.id, choice, colour=0, title=stored.title, turns=turns, settings=kept)

    def _turns(self, chat_id: int) -> list[Turn]:
        return [Turn.from_store(m.role, m.content, m.note) for m in self._store.messages(chat_id)]

    def write(self, write: Callable[..., object], *values: object) -> None:
        """Call a method of the store."""
        try:
            write(*values)
        except StoreError as error:
            self._tell(error)

    def setting(self, key: str) -> str:
        """What was kept under a name; "" where nothing was."""
        return str(self._store.setting(key, ""))

    def remember(self, key: str, value: str) -> None:
        """Keep a setting for the next start."""
        self.write(self._store.set_setting, key, value)

    def add_chat(self, title: str, choice: CacheChoice) -> int:
        """Write a new chat down. Returns its id, which it has even if that failed."""
        try:
            return self._store.add_chat(title, choice.method, choice.key_bits, choice.value_bits).id
        except StoreError as error:
            return self._without_file(error)

    def fork_chat(self, chat_id: int, keep: int, title: str) -> int:
        """Write a chat down again, up to a message. Returns the new one's id, which it has even if that failed."""
        try:
            return self._store.fork_chat(chat_id, keep, title).id
        except StoreError as error:
            return self._without_file(error)

    def last_turn(self, chat: Chat) -> None:
        self._saved_at[chat.id] = time.monotonic()
        turn = chat.turns[-1]
        self.write(self._store.replace_last_message, chat.id, turn.content, turn.stored_note)

    def last_turn_now_and_then(self, chat: Chat) -> None:
        """For an answer that grows: often enough that little is lost."""
        if time.monotonic() - self._saved_at.get(chat.id, 0.0) > SAVE_EVERY_S:
            self.last_turn(chat)

    def _without_file(self, error: StoreError) -> int:
        self._tell(error)
        return next(self._unsaved)

    def _tell(self, error: StoreError) -> None:
        if str(error) != self.error:
            self.error = str(error)
            self._failed()
