"""Giving a chat's memory back while its text stays: what is sent, what comes after, and where it is offered."""

from __future__ import annotations

from PySide6.QtGui import QAction

from app.engine.messages import CacheChoice, CloseChat, ModelReady, OpenChat, Send
from app.store.store import Store
from app.ui.memory.memory_panel import HolderRow
from app.ui.session.controller import Controller
from app.ui.shell.main_window import MainWindow
from tests.app.ui.conftest import INFO, ScriptedEngine, ended, report, say, text
from tests.app.ui.session.test_controller import asked


def answered(controller: Controller) -> int:
    chat_id = asked(controller)
    say(controller, text(chat_id, "Light."), ended(chat_id), report(1.0, **{f"c{chat_id}": 1000}))
    return chat_id


def free_item(window: MainWindow, chat_id: int) -> QAction:
    menu = window.sidebar.chats.menu_of(chat_id)
    return next(action for action in menu.actions() if action.text() == "Free its memory")


def test_freed_memory_is_given_back_and_the_text_stays(
    controller: Controller, engine: ScriptedEngine, store: Store
) -> None:
    chat_id = answered(controller)
    assert controller.chats[chat_id].can_free
    controller.free_memory(chat_id)
    assert engine.commands[-1] == CloseChat(chat_id)
    assert controller.chats[chat_id].memory is None
    assert [m.content for m in store.messages(chat_id)] == ["What is a rainbow?", "Light."]
    say(controller, report(2.0, c1=1000))  # on its way before the chat was closed
    assert not controller.chats[chat_id].can_free
    controller.free_memory(chat_id)
    assert len(engine.told(CloseChat)) == 1


def test_the_next_message_reads_the_conversation_again(controller: Controller, engine: ScriptedEngine) -> None:
    chat_id = answered(controller)
    controller.free_memory(chat_id)
    assert controller.send(chat_id, "And at night?")
    opened, sent = engine.commands[-2:]
    assert opened == OpenChat(chat_id, CacheChoice("fp16"))
    assert isinstance(sent, Send)
    assert [m.content for m in sent.messages] == ["What is a rainbow?", "Light.", "And at night?"]


def test_an_answering_chat_keeps_its_memory(controller: Controller, engine: ScriptedEngine) -> None:
    chat_id = asked(controller)
    say(controller, text(chat_id, "Light"), report(1.0, c1=1000))
    assert not controller.chats[chat_id].can_free
    controller.free_memory(chat_id)
    assert not engine.told(CloseChat)


def test_a_chat_whose_memory_was_freed_keeps_its_method(controller: Controller) -> None:
    chat_id = answered(controller)
    controller.free_memory(chat_id)
    controller.set_choice(chat_id, CacheChoice("turboquant_mse", 2, 2))
    assert controller.chats[chat_id].choice == CacheChoice("fp16")


def test_new_chat_does_not_take_a_chat_whose_memory_was_freed(window: MainWindow) -> None:
    say(window.controller, ModelReady(INFO))
    chat_id = answered(window.controller)
    window.controller.free_memory(chat_id)
    window.new_chat()
    assert len(window.controller.chats) == 2


def test_the_menu_of_a_chat_offers_to_free_its_memory_while_it_holds_any(
    window: MainWindow, engine: ScriptedEngine
) -> None:
    say(window.controller, ModelReady(INFO))
    empty, chat_id = window.controller.new_chat(), answered(window.controller)
    assert not free_item(window, empty).isEnabled()
    free = free_item(window, chat_id)
    assert free.isEnabled()
    free.trigger()
    assert engine.commands[-1] == CloseChat(chat_id)
    assert not free_item(window, chat_id).isEnabled()


def test_the_memory_panel_offers_it_beside_a_chat_and_not_beside_a_lane(
    window: MainWindow, engine: ScriptedEngine
) -> None:
    say(window.controller, ModelReady(INFO))
    chat_id = answered(window.controller)
    window.controller.start_comparison("Why?", [CacheChoice("fp16")])
    say(window.controller, ended(-1), report(2.0, c1=1000, l1=1000))
    chat, lane = window.memory_panel.findChildren(HolderRow)
    assert not lane._free.isEnabled()
    chat._free.click()
    assert engine.commands[-1] == CloseChat(chat_id)
    assert not chat._free.isEnabled()
