"""Store: what is written is there after a restart, and a file that can't be used is named and left alone."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.store import Store, StoredChat, StoredMessage, StoreError
from app.store import store as store_module


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "chats.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = Store(path)
    yield opened
    opened.close()


def contents(store: Store, chat_id: int) -> list[tuple[int, str, str, str]]:
    return [(m.position, m.role, m.content, m.note) for m in store.messages(chat_id)]


# ---------------------------------------------------------------- chats and messages
def test_a_new_chat_is_empty_and_first_in_the_list(store: Store) -> None:
    first = store.add_chat("One", "fp16", 4, 4)
    second = store.add_chat("Two", "turboquant_mse", 4, 2)
    assert store.chats() == [second, first]
    assert (second.method, second.key_bits, second.value_bits) == ("turboquant_mse", 4, 2)
    assert second.created_at == second.updated_at > 1.6e9
    assert store.messages(second.id) == []


def test_messages_keep_their_order_and_their_notes(store: Store) -> None:
    chat = store.add_chat("One", "fp16", 4, 4)
    assert store.add_message(chat.id, "user", "Hi ✨") == StoredMessage(chat.id, 0, "user", "Hi ✨", "")
    store.add_message(chat.id, "assistant", "Hel", note="stopped")
    assert contents(store, chat.id) == [(0, "user", "Hi ✨", ""), (1, "assistant", "Hel", "stopped")]


def test_an_answer_that_grows_replaces_the_last_message(store: Store) -> None:
    chat = store.add_chat("One", "fp16", 4, 4)
    store.add_message(chat.id, "user", "Hi")
    store.add_message(chat.id, "assistant", "")
    store.replace_last_message(chat.id, "Hello", "stopped")
    store.replace_last_message(chat.id, "Hello there")
    assert contents(store, chat.id) == [(0, "user", "Hi", ""), (1, "assistant", "Hello there", "")]


def test_regenerating_drops_the_messages_from_a_position_on(store: Store) -> None:
    chat, other = store.add_chat("One", "fp16", 4, 4), store.add_chat("Two", "fp16", 4, 4)
    for i in range(4):
        store.add_message(chat.id, "user", str(i))
        store.add_message(other.id, "user", str(i))
    store.truncate_messages(chat.id, 2)
    store.add_message(chat.id, "user", "new")
    assert [m.content for m in store.messages(chat.id)] == ["0", "1", "new"]
    assert len(store.messages(other.id)) == 4
    store.truncate_messages(chat.id, 99)
    assert len(store.messages(chat.id)) == 3
    store.truncate_messages(chat.id, 0)
    assert store.messages(chat.id) == []


def test_a_chat_that_was_just_used_moves_to_the_top(store: Store) -> None:
    first, second = store.add_chat("One", "fp16", 4, 4), store.add_chat("Two", "fp16", 4, 4)
    store.add_message(first.id, "user", "Hi")
    assert [chat.id for chat in store.chats()] == [first.id, second.id]
    store.rename_chat(second.id, "Second")
    assert [chat.title for chat in store.chats()] == ["Second", "One"]
    assert store.chats()[0].updated_at > second.updated_at
    store.set_method(first.id, "turboquant_mse", 3, 2)
    changed = store.chats()[0]
    assert (changed.title, changed.method, changed.key_bits, changed.value_bits) == ("One", "turboquant_mse", 3, 2)


def test_a_deleted_chat_takes_its_messages_along_and_its_id_stays_unused(store: Store, path: Path) -> None:
    chat = store.add_chat("One", "fp16", 4, 4)
    store.add_message(chat.id, "user", "secret")
    store.delete_chat(chat.id)
    store.delete_chat(chat.id)
    assert (store.chats(), store.messages(chat.id)) == ([], [])
    assert store.add_chat("Two", "fp16", 4, 4).id != chat.id
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM messages").fetchone() == (0,)
    db.close()


def test_a_chat_that_is_not_there_is_named_and_nothing_is_written(store: Store) -> None:
    chat = store.add_chat("One", "fp16", 4, 4)
    for call in (
        lambda: store.add_message(77, "user", "Hi"),
        lambda: store.rename_chat(77, "x"),
        lambda: store.set_method(77, "fp16", 4, 4),
        lambda: store.truncate_messages(77, 0),
        lambda: store.set_settings(77, {}),
        lambda: store.fork_chat(77, 1, "x"),
        lambda: store.replace_last_message(77, "x"),
    ):
        with pytest.raises(StoreError, match="no chat 77"):
            call()
    with pytest.raises(StoreError, match="no message to replace"):
        store.replace_last_message(chat.id, "x")
    with pytest.raises(StoreError, match="at least 0"):
        store.truncate_messages(chat.id, -1)
    with pytest.raises(StoreError, match="at least 0"):
        store.fork_chat(chat.id, -1, "x")
    assert store.chats() == [chat]


def test_a_fork_is_a_chat_of_its_own_with_the_first_messages(store: Store) -> None:
    chat = store.add_chat("One", "turboquant_mse", 4, 2)
    store.set_settings(chat.id, {"drop_oldest": True})
    for i in range(4):
        store.add_message(chat.id, "user", str(i), note=f"note {i}")
    fork = store.fork_chat(chat.id, 2, "One (2)")
    assert (fork.title, fork.method, fork.key_bits, fork.value_bits) == ("One (2)", "turboquant_mse", 4, 2)
    assert fork.settings == {"drop_oldest": True}
    assert store.chats()[0] == fork
    assert contents(store, fork.id) == [(0, "user", "0", "note 0"), (1, "user", "1", "note 1")]
    store.add_message(fork.id, "user", "only here")
    store.set_settings(fork.id, {})
    store.delete_chat(fork.id)
    assert [m.content for m in store.messages(chat.id)] == ["0", "1", "2", "3"]
    assert store.chats()[0].settings == {"drop_oldest": True}
    assert store.messages(store.fork_chat(chat.id, 0, "Empty").id) == []


def test_a_fork_that_fails_half_way_leaves_nothing(store: Store, path: Path) -> None:
    chat = store.add_chat("One", "fp16", 4, 4)
    store.add_message(chat.id, "user", "Hi")
    with sqlite3.connect(path) as db:
        db.execute("CREATE TRIGGER full BEFORE INSERT ON messages BEGIN SELECT raise(ABORT, 'no more disk'); END")
    db.close()
    with pytest.raises(StoreError, match="no more disk"):
        store.fork_chat(chat.id, 1, "One (2)")
    assert [c.title for c in store.chats()] == ["One"]


# ---------------------------------------------------------------- settings
def test_a_chat_keeps_its_own_settings(store: Store, path: Path) -> None:
    chat, other = store.add_chat("One", "fp16", 4, 4), store.add_chat("Two", "fp16", 4, 4)
    assert chat.settings == {}
    store.set_settings(chat.id, {"context_limit": 400, "sampling": {"stop": ["✨"]}})
    with pytest.raises(TypeError):
        store.set_settings(chat.id, {"sampling": object()})
    again = Store(path)
    assert {c.id: c.settings for c in again.chats()} == {
        chat.id: {"context_limit": 400, "sampling": {"stop": ["✨"]}},
        other.id: {},
    }
    again.close()


@pytest.mark.parametrize("written", ["", "{", "[1]", "null"])
def test_settings_that_cannot_be_read_do_not_take_the_chat_away(store: Store, path: Path, written: str) -> None:
    chat = store.add_chat("One", "fp16", 4, 4)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE chats SET settings = ?", (written,))
    db.close()
    assert store.chats() == [chat]


def test_settings_hold_any_json_value(store: Store) -> None:
    assert store.setting("theme", "system") == "system"
    for value in ("dark", 3, 0.5, None, [1, {"a": True}]):
        store.set_setting("theme", value)
        assert store.setting("theme", "system") == value
    with pytest.raises(TypeError):
        store.set_setting("theme", object())
    assert store.setting("theme") == [1, {"a": True}]


# ---------------------------------------------------------------- the file
def test_everything_is_there_after_a_restart(path: Path) -> None:
    store = Store(path)
    chat = store.add_chat("One", "turboquant_mse", 4, 2)
    store.add_message(chat.id, "user", "Hi")
    store.set_setting("window", [10, 20])
    before = (store.chats(), store.messages(chat.id))
    store.close()
    store.close()
    with pytest.raises(StoreError, match=r"chats\.db"):
        store.chats()
    with pytest.raises(StoreError, match=r"chats\.db"):
        store.add_chat("x", "fp16", 4, 4)
    again = Store(path)
    assert (again.chats(), again.messages(chat.id)) == before
    assert again.setting("window") == [10, 20]
    again.close()


def test_a_store_in_memory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(":memory:")
    store.add_chat("One", "fp16", 4, 4)
    assert len(store.chats()) == 1
    store.close()
    assert list(tmp_path.iterdir()) == []


def refused(path: Path) -> str:
    """The error of opening the file, after making sure that opening changed no byte of it."""
    before = path.read_bytes()
    with pytest.raises(StoreError) as error:
        Store(path)
    assert path.read_bytes() == before
    assert str(path) in str(error.value)
    return str(error.value)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    path.write_bytes(b"Dear diary, " * 500)
    assert "Restore it from a backup" in refused(path)


def test_a_database_with_damaged_pages_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    store = Store(path)
    chat = store.add_chat("One", "fp16", 4, 4)
    for i in range(200):
        store.add_message(chat.id, "user", f"message {i} " * 40)
    store.close()
    data = bytearray(path.read_bytes())
    data[4096 * 4 : 4096 * 12] = b"\xa5" * (4096 * 8)
    path.write_bytes(data)
    assert "Restore it from a backup" in refused(path)


def test_a_truncated_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    store = Store(path)
    chat = store.add_chat("One", "fp16", 4, 4)
    for i in range(200):
        store.add_message(chat.id, "user", f"message {i} " * 40)
    store.close()
    path.write_bytes(path.read_bytes()[: 4096 * 5 + 100])
    assert "Restore it from a backup" in refused(path)


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE photos (id INTEGER)")
    db.commit()
    db.close()
    assert "another program" in refused(path)


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    Store(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = DELETE")
    db.execute("PRAGMA user_version = 99")
    db.close()
    message = refused(path)
    assert "newer version" in message
    assert "Update the app" in message


def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "chats.db"):
        with pytest.raises(StoreError, match=str(tmp_path)):
            Store(path)


def test_an_older_file_is_brought_to_this_version(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Store(path)
    chat = old.add_chat("One", "fp16", 4, 4)
    old.close()

    def add_pinned(db: sqlite3.Connection) -> None:
        db.execute("ALTER TABLE chats ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0")

    def fail(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE half_done (x)")
        raise OSError("no more disk")

    monkeypatch.setattr(store_module, "MIGRATIONS", [*store_module.MIGRATIONS, fail])
    with pytest.raises(OSError, match="no more disk"):
        Store(path)
    monkeypatch.setattr(store_module, "MIGRATIONS", [*store_module.MIGRATIONS[:-1], add_pinned])
    new = Store(path)
    assert new.chats() == [chat]
    new.close()
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (len(store_module.MIGRATIONS),)
    assert db.execute("SELECT pinned FROM chats").fetchall() == [(0,)]
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half_done'").fetchone() == (0,)
    db.close()


def test_a_file_of_the_first_version_keeps_its_chats(path: Path) -> None:
    """As the first version wrote it, statement by statement."""
    path.parent.mkdir()
    db = sqlite3.connect(path, isolation_level=None)
    store_module._create(db)
    db.execute("PRAGMA user_version = 1")
    db.execute("INSERT INTO chats VALUES (3, 'One', 'turboquant_mse', 4, 2, 1.5, 2.5)")
    db.execute("INSERT INTO messages VALUES (3, 0, 'user', 'Hi ✨', ''), (3, 1, 'assistant', 'Hello', 'done: 1 token')")
    db.execute("INSERT INTO settings VALUES ('theme', '\"dark\"')")
    db.close()
    store = Store(path)
    assert store.chats() == [StoredChat(3, "One", "turboquant_mse", 4, 2, 1.5, 2.5, {})]
    assert contents(store, 3) == [(0, "user", "Hi ✨", ""), (1, "assistant", "Hello", "done: 1 token")]
    assert store.setting("theme") == "dark"
    store.set_settings(3, {"drop_oldest": True})
    store.close()
    again = Store(path)
    assert again.chats()[0].settings == {"drop_oldest": True}
    again.close()


def test_a_process_killed_while_writing_leaves_a_readable_file(path: Path) -> None:
    code = (
        "import sys\n"
        "from app.store import Store\n"
        "store = Store(sys.argv[1])\n"
        "chat = store.add_chat('One', 'fp16', 4, 4)\n"
        "for i in range(10**9):\n"
        "    store.add_message(chat.id, 'user', 'x' * 3000)\n"
        "    store.replace_last_message(chat.id, 'y' * 3000, 'done')\n"
        "    if i == 50: print('going', flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "going\n"
    writer.kill()
    writer.wait()
    writer.stdout.close()
    store = Store(path)
    (chat,) = store.chats()
    messages = store.messages(chat.id)
    assert [m.position for m in messages] == list(range(len(messages)))
    assert len(messages) > 50
    assert all((m.content[0], m.note) == ("y", "done") for m in messages[:-1])
    store.add_message(chat.id, "user", "on we go")
    store.close()


def test_threads_that_write_at_once_lose_nothing(store: Store) -> None:
    chat = store.add_chat("One", "fp16", 4, 4)
    threads = [
        threading.Thread(target=lambda: [store.add_message(chat.id, "user", "x") for _ in range(50)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [m.position for m in store.messages(chat.id)] == list(range(200))


def test_two_windows_on_one_file_see_each_others_chats(store: Store, path: Path) -> None:
    other = Store(path)
    chat = other.add_chat("From the other", "fp16", 4, 4)
    assert store.chats() == [chat]
    store.add_message(chat.id, "user", "Hi")
    assert len(other.messages(chat.id)) == 1
    other.close()
