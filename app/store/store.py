"""Store: chats, their messages and the settings in one SQLite file.

Every write is one transaction, so a process that is killed at any moment leaves a file that opens: with the write or
without it. A file that isn't ours, is damaged, or comes from a newer version is never changed; opening it raises
`StoreError`.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

APPLICATION_ID = 0x56585143  # "VXQC", in the file's header: what tells our files from others


class StoreError(Exception):
    """The file can't be used, or what was asked for isn't in it; the message says what to do."""


@dataclass(frozen=True, slots=True)
class StoredChat:
    """One chat.

    Attributes:
        id: Never used again for another chat.
        title: What the list of chats shows.
        method: The cache method.
        key_bits: Bits per key coordinate.
        value_bits: Bits per value coordinate.
        created_at: Seconds since 1970 (UTC).
        updated_at: The same, of the last change of the chat or its messages.
        settings: What was chosen for this chat alone, as JSON values; empty for nothing.
    """

    id: int
    title: str
    method: str
    key_bits: int
    value_bits: int
    created_at: float
    updated_at: float
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of a chat.

    Attributes:
        chat_id: The chat it belongs to.
        position: 0, 1, 2, ... within the chat, without gaps.
        role: "user" or "assistant" (or "system").
        content: The text.
        note: What the app says below it ("stopped", an error); empty for nothing.
    """

    chat_id: int
    position: int
    role: str
    content: str
    note: str


def _create(db: sqlite3.Connection) -> None:
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    # AUTOINCREMENT: the id of a deleted chat is never given to another.
    db.execute(
        "CREATE TABLE chats (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, method TEXT NOT NULL, "
        "key_bits INTEGER NOT NULL, value_bits INTEGER NOT NULL, created_at REAL NOT NULL, updated_at REAL NOT NULL)"
    )
    db.execute(
        "CREATE TABLE messages (chat_id INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE, "
        "position INTEGER NOT NULL, role TEXT NOT NULL, content TEXT NOT NULL, note TEXT NOT NULL, "
        "PRIMARY KEY (chat_id, position)) WITHOUT ROWID"
    )
    db.execute("CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")


def _add_settings(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE chats ADD COLUMN settings TEXT NOT NULL DEFAULT '{}'")


# MIGRATIONS[n] takes a file from schema version n to n + 1, in one transaction. Append; never edit one that shipped.
MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [_create, _add_settings]


class Store:
    """The file with everything that outlives the process.

    May be used from several threads; calls wait for each other.

    Args:
        path: The file, made if there is none (its folder too); ":memory:" keeps everything in memory.

    Raises:
        StoreError: The file is damaged, not ours, from a newer version, or can't be opened; it was not changed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._lock = threading.RLock()
        if self.path != ":memory:":
            try:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(f"The folder for the chats file {self.path} can't be made: {error}.") from error
        try:
            # Transactions are begun and ended by _transaction alone.
            self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=10)
        except sqlite3.Error as error:
            raise StoreError(f"The chats file {self.path} can't be opened: {error}.") from error
        try:
            self._open()
        except sqlite3.Error as error:
            self._db.close()
            raise self._unusable(error) from error
        except BaseException:
            self._db.close()
            raise

    # ------------------------------------------------------------------ chats
    def chats(self) -> list[StoredChat]:
        """All chats, the one that changed last first."""
        rows = self._rows(f"SELECT {_CHAT_COLUMNS} FROM chats ORDER BY updated_at DESC, id DESC")
        return [_chat(row) for row in rows]

    def add_chat(self, title: str, method: str, key_bits: int, value_bits: int) -> StoredChat:
        """Add a chat without messages."""
        now = time.time()
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO chats (title, method, key_bits, value_bits, created_at, updated_at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (title, method, key_bits, value_bits, now, now),
            )
        chat_id = cursor.lastrowid
        assert chat_id is not None
        return StoredChat(chat_id, title, method, key_bits, value_bits, now, now)

    def rename_chat(self, chat_id: int, title: str) -> None:
        """Give a chat another title.

        Raises:
            StoreError: There is no such chat.
        """
        with self._transaction() as db:
            self._touch(db, chat_id)
            db.execute("UPDATE chats SET title = ? WHERE id = ?", (title, chat_id))

    def set_method(self, chat_id: int, method: str, key_bits: int, value_bits: int) -> None:
        """Set how a chat's cache is stored.

        Raises:
            StoreError: There is no such chat.
        """
        with self._transaction() as db:
            self._touch(db, chat_id)
            db.execute(
                "UPDATE chats SET method = ?, key_bits = ?, value_bits = ? WHERE id = ?",
                (method, key_bits, value_bits, chat_id),
            )

    def set_settings(self, chat_id: int, settings: dict[str, Any]) -> None:
        """Keep what was chosen for one chat, instead of what was kept before.

        Raises:
            StoreError: There is no such chat.
            TypeError: A value can't be written as JSON; nothing was changed.
        """
        text = json.dumps(settings)
        with self._transaction() as db:
            self._touch(db, chat_id)
            db.execute("UPDATE chats SET settings = ? WHERE id = ?", (text, chat_id))

    def fork_chat(self, chat_id: int, keep: int, title: str) -> StoredChat:
        """Add a chat that is like another one, with its method, its settings and its first `keep` messages.

        Raises:
            StoreError: There is no such chat, or keep is below 0.
        """
        if keep < 0:
            raise StoreError(f"fork_chat() keeps a number of messages of at least 0, not {keep}.")
        now = time.time()
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO chats (title, method, key_bits, value_bits, created_at, updated_at, settings) "
                "SELECT ?, method, key_bits, value_bits, ?, ?, settings FROM chats WHERE id = ?",
                (title, now, now, chat_id),
            )
            if cursor.rowcount == 0:
                raise self._no_chat(chat_id)
            db.execute(
                "INSERT INTO messages SELECT ?, position, role, content, note FROM messages "
                "WHERE chat_id = ? AND position < ?",
                (cursor.lastrowid, chat_id, keep),
            )
            row = db.execute(f"SELECT {_CHAT_COLUMNS} FROM chats WHERE id = ?", (cursor.lastrowid,)).fetchone()
        return _chat(row)

    def delete_chat(self, chat_id: int) -> None:
        """Delete a chat and its messages; one that is gone already is fine."""
        with self._transaction() as db:
            db.execute("DELETE FROM chats WHERE id = ?", (chat_id,))

    # ------------------------------------------------------------------ messages
    def messages(self, chat_id: int) -> list[StoredMessage]:
        """A chat's messages in order; none for a chat that doesn't exist."""
        rows = self._rows(
            "SELECT chat_id, position, role, content, note FROM messages WHERE chat_id = ? ORDER BY position",
            (chat_id,),
        )
        return [StoredMessage(*row) for row in rows]

    def add_message(self, chat_id: int, role: str, content: str, note: str = "") -> StoredMessage:
        """Add a message at the end of a chat.

        Raises:
            StoreError: There is no such chat.
        """
        with self._transaction() as db:
            self._touch(db, chat_id)
            position = self._n_messages(db, chat_id)
            db.execute("INSERT INTO messages VALUES (?, ?, ?, ?, ?)", (chat_id, position, role, content, note))
        return StoredMessage(chat_id, position, role, content, note)

    def replace_last_message(self, chat_id: int, content: str, note: str = "") -> None:
        """Replace text and note of a chat's last message (an answer that has grown).

        Raises:
            StoreError: There is no such chat, or it has no messages.
        """
        with self._transaction() as db:
            self._touch(db, chat_id)
            last = self._n_messages(db, chat_id) - 1
            if last < 0:
                raise StoreError(f"Chat {chat_id} has no message to replace; add one first.")
            db.execute(
                "UPDATE messages SET content = ?, note = ? WHERE chat_id = ? AND position = ?",
                (content, note, chat_id, last),
            )

    def truncate_messages(self, chat_id: int, keep: int) -> None:
        """Keep the first `keep` messages of a chat and drop the rest.

        Raises:
            StoreError: There is no such chat, or keep is below 0.
        """
        if keep < 0:
            raise StoreError(f"truncate_messages() keeps a number of messages of at least 0, not {keep}.")
        with self._transaction() as db:
            self._touch(db, chat_id)
            db.execute("DELETE FROM messages WHERE chat_id = ? AND position >= ?", (chat_id, keep))

    # ------------------------------------------------------------------ settings
    def setting(self, key: str, default: Any = None) -> Any:
        """What was set under key: any JSON value; default where nothing was."""
        rows = self._rows("SELECT value FROM settings WHERE key = ?", (key,))
        return json.loads(rows[0][0]) if rows else default

    def set_setting(self, key: str, value: Any) -> None:
        """Keep a JSON value under key.

        Raises:
            TypeError: The value can't be written as JSON; nothing was changed.
        """
        text = json.dumps(value)
        with self._transaction() as db:
            db.execute(
                "INSERT INTO settings VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (key, text)
            )

    def close(self) -> None:
        """Close the file; a second call is fine, any other call after it raises StoreError."""
        with self._lock:
            self._db.close()

    # ------------------------------------------------------------------ inside
    def _open(self) -> None:
        """Check that the file is ours (reading only), then set it up and bring it to this version."""
        db = self._db
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (n_tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if (application, version, n_tables) != (0, 0, 0) and application != APPLICATION_ID:
            raise StoreError(
                f"{self.path} is a database of another program, and was left as it is. Choose another file for the "
                f"chats, or move this one away."
            )
        if version > len(MIGRATIONS):
            raise StoreError(
                f"The chats file {self.path} was written by a newer version of this app (its format is {version}, this "
                f"version knows up to {len(MIGRATIONS)}), and was left as it is. Update the app or choose another file."
            )
        (health,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if health != "ok":
            raise self._unusable(health)
        db.execute("PRAGMA journal_mode = WAL")  # readers don't wait, and a crash loses at most the last write
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        while version < len(MIGRATIONS):
            with self._transaction() as db:
                # Another process may have been faster; what counts is the version inside the transaction.
                (version,) = db.execute("PRAGMA user_version").fetchone()
                if version < len(MIGRATIONS):
                    MIGRATIONS[version](db)
                    version += 1
                    db.execute(f"PRAGMA user_version = {version}")

    def _unusable(self, why: object) -> StoreError:
        return StoreError(
            f"The chats file {self.path} can't be read ({why}); nothing in it was changed. Restore it from a backup, "
            f"or move it away (and {Path(self.path).name}-wal beside it, if there is one) to start again with an empty "
            f"one."
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of the block or nothing. IMMEDIATE: waits for another process before it reads what it then changes."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._in_transaction():  # SQLite ends it by itself where the disk is full
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise StoreError(f"The chats file {self.path} could not be written: {error}.") from error
                raise

    def _in_transaction(self) -> bool:
        try:
            return self._db.in_transaction
        except sqlite3.ProgrammingError:  # closed
            return False

    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._db.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise StoreError(f"The chats file {self.path} could not be read: {error}.") from error

    def _touch(self, db: sqlite3.Connection, chat_id: int) -> None:
        if db.execute("UPDATE chats SET updated_at = ? WHERE id = ?", (time.time(), chat_id)).rowcount == 0:
            raise self._no_chat(chat_id)

    def _no_chat(self, chat_id: int) -> StoreError:
        return StoreError(f"There is no chat {chat_id} in {self.path}; it may have been deleted.")

    @staticmethod
    def _n_messages(db: sqlite3.Connection, chat_id: int) -> int:
        # Positions have no gaps, so the last one is the count; found by the index, however long the chat.
        (n,) = db.execute(
            "SELECT coalesce(max(position) + 1, 0) FROM messages WHERE chat_id = ?", (chat_id,)
        ).fetchone()
        return int(n)


_CHAT_COLUMNS = "id, title, method, key_bits, value_bits, created_at, updated_at, settings"


def _chat(row: tuple[Any, ...]) -> StoredChat:
    *plain, text = row
    try:
        settings = json.loads(text)
    except ValueError:  # Somebody has written into the file; the chat is worth more than its settings.
        settings = {}
    return StoredChat(*(*plain, settings if isinstance(settings, dict) else {}))
