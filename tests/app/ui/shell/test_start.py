"""A start is quick: it reads no more than it shows, and the window is dressed once, when it is whole."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.store.store import Store, StoredMessage
from app.ui.look.theme import theme
from app.ui.session.controller import Controller
from app.ui.session.state import Chat, Turn
from app.ui.shell.main_window import MainWindow
from tests.app.ui.conftest import ScriptedEngine


@pytest.fixture
def read(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of which chats the messages have been read."""
    for title in ("First", "Second", "New chat"):
        chat = store.add_chat(title, "turboquant_mse", 4, 4)
        store.add_message(chat.id, "user", f"{title}?")
        store.add_message(chat.id, "assistant", "Yes.", "stopped: ")
    found: list[int] = []
    messages = Store.messages

    def note(self: Store, chat_id: int) -> list[StoredMessage]:
        found.append(chat_id)
        return messages(self, chat_id)

    monkeypatch.setattr(Store, "messages", note)
    return found


def test_a_chats_messages_are_read_when_it_is_first_looked_into(
    qapp: QApplication, store: Store, read: list[int]
) -> None:
    controller = Controller(ScriptedEngine(), store)
    assert [chat.title for chat in controller.chats.values()] == ["New chat", "Second", "First"]
    assert read == []
    assert controller.chats[1].turns == [Turn("user", "First?"), Turn("assistant", "Yes.", "stopped")]
    controller.chats[1].turns.append(Turn("user", "More?"))
    assert len(controller.chats[1].turns) == 3, "it is one list from then on"
    assert read == [1]


def test_a_new_chat_reads_none_that_has_a_title(qapp: QApplication, store: Store, read: list[int]) -> None:
    controller = Controller(ScriptedEngine(), store)
    assert [chat_id for chat_id, chat in controller.chats.items() if chat.is_new] == []
    assert read == [3]


def test_a_chat_that_was_never_looked_into_is_forked_and_deleted_whole(
    qapp: QApplication, store: Store, read: list[int]
) -> None:
    controller = Controller(ScriptedEngine(), store)
    made = controller.fork_chat(1, 1)
    assert made is not None
    assert controller.chats[made].turns == [Turn("user", "First?")]
    controller.close_chat(1)
    controller.rename_chat(2, "Another name")
    assert read == [1]
    assert [turn.content for turn in Controller(ScriptedEngine(), store).chats[2].turns] == ["Second?", "Yes."]


def test_a_chat_that_is_made_here_has_a_list_of_its_own(controller: Controller) -> None:
    first, second = (controller.chats[controller.new_chat()] for _ in range(2))
    first.turns.append(Turn("user", "Hello"))
    assert second.turns == []
    assert Chat(9, first.choice, 0).turns == []


def test_the_window_that_is_shown_is_dressed(window: MainWindow, qtbot: QtBot) -> None:
    assert QApplication.instance() is not None
    base, panel = theme().base, window.memory_panel
    assert panel._total.fontMetrics().lineSpacing() > panel._against.fontMetrics().lineSpacing()
    assert panel._total.font().pixelSize() == base + 17
