"""Chats that wait for memory: what they say, what can be done about it, and how they go on."""

from __future__ import annotations

import time

import pytest

from app.engine.messages import (
    CacheChoice,
    CacheDropped,
    ChatFailed,
    ChatResumed,
    ChatWaiting,
    CloseChat,
    ModelReady,
    OpenChat,
    PromptProgress,
    Stop,
)
from app.ui.memory.budget_dialog import BudgetDialog
from app.ui.session.controller import Controller
from app.ui.shell.main_window import MainWindow
from app.ui.sidebar.chat_list import second_line
from tests.app.ui.conftest import INFO, ScriptedEngine, ended, report, say, text
from tests.app.ui.memory.test_free_memory import answered
from tests.app.ui.session.test_controller import asked
from tests.app.ui.shell.test_window import press, visible_words, write

MESSAGE = "Its next part takes 8.0 MB, and 2.0 MB of the budget are free."


def waiting(chat_id: int) -> ChatWaiting:
    return ChatWaiting(chat_id, 8_000_000, 2_000_000, MESSAGE)


def test_a_chat_waits_and_goes_on_as_events_tell(controller: Controller) -> None:
    chat_id = asked(controller)
    chat = controller.chats[chat_id]
    say(controller, PromptProgress(chat_id, 9, 20, 0), waiting(chat_id))
    assert (chat.phase, chat.answering, chat.state_words) == ("waiting", True, "waiting for memory")
    assert second_line(chat) == "fp16 · waiting for memory"
    say(controller, ChatResumed(chat_id))
    assert (chat.phase, chat.state_words) == ("queued", "waiting its turn")
    say(controller, PromptProgress(chat_id, 18, 20, 0))
    assert chat.state_words == "reading 90 %"
    say(controller, text(chat_id, "Light"), waiting(chat_id))
    assert chat.phase == "waiting"
    say(controller, ChatResumed(chat_id), text(chat_id, " bends.", 2), ended(chat_id))
    assert chat.turns[-1].content == "Light bends."
    assert not chat.answering


def test_late_words_about_waiting_do_not_wake_a_chat(controller: Controller) -> None:
    chat_id = asked(controller)
    say(controller, text(chat_id, "Light"), ended(chat_id), waiting(chat_id), ChatResumed(chat_id), waiting(99))
    assert controller.chats[chat_id].phase == "idle"


def test_the_time_it_waited_does_not_count_as_slow_writing(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    chat_id = asked(controller)
    say(controller, text(chat_id, "a", 1))
    now += 10
    say(controller, text(chat_id, "b", 101))
    assert controller.chats[chat_id].rate == 10
    say(controller, waiting(chat_id))
    now += 1000
    say(controller, ChatResumed(chat_id), text(chat_id, "c", 102))
    now += 10
    say(controller, text(chat_id, "d", 152))
    assert controller.chats[chat_id].rate == 5


def test_a_waiting_chat_can_be_stopped(window: MainWindow, engine: ScriptedEngine) -> None:
    say(window.controller, ModelReady(INFO))
    write(window, "Hello")
    say(window.controller, waiting(1))
    window.stop()
    assert engine.commands[-1] == Stop(1)
    say(window.controller, ended(1, "stopped"))
    assert "Waiting for memory" not in visible_words(window.chat_view)


def test_the_answers_place_says_why_and_what_would_help(
    window: MainWindow, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []
    monkeypatch.setattr(BudgetDialog, "exec", lambda _: asked.append(None))
    say(window.controller, ModelReady(INFO))
    idle = answered(window.controller)
    window.show_chat(window.controller.new_chat())
    write(window, "Hello")
    assert "Waiting for its turn" in visible_words(window.chat_view)
    say(window.controller, waiting(2))
    said = visible_words(window.chat_view)
    assert "Waiting for memory" in said
    assert MESSAGE in said
    press(window, "Memory budget…")
    assert len(asked) == 1
    press(window, "Free idle chats")
    assert engine.commands[-1] == CloseChat(idle)
    assert "Free idle chats" not in visible_words(window.chat_view), "none is left"
    assert "Memory budget…" in visible_words(window.chat_view)
    say(window.controller, ChatResumed(2), text(2, "Hi"))
    assert "Waiting" not in visible_words(window.chat_view)


def test_the_offer_to_free_chats_comes_and_goes_with_what_they_hold(window: MainWindow) -> None:
    say(window.controller, ModelReady(INFO))
    other = asked(window.controller)
    window.show_chat(window.controller.new_chat())
    write(window, "Hello")
    say(window.controller, text(other, "Light"), waiting(2), report(1.0, c1=1000))
    assert "Free idle chats" not in visible_words(window.chat_view), "the other one is answering"
    say(window.controller, ended(other), report(2.0, c1=1000))
    assert "Free idle chats" in visible_words(window.chat_view)
    say(window.controller, CacheDropped(other), report(3.0, c1=0))
    # ChatMemory of the report says 60 blocks, whatever the bytes; without any the chat holds nothing.
    say(window.controller, report(4.0))
    assert "Free idle chats" not in visible_words(window.chat_view)


def test_every_idle_chat_is_freed_and_no_other(controller: Controller, engine: ScriptedEngine) -> None:
    first, second, busy = asked(controller), asked(controller), asked(controller)
    never = controller.new_chat()
    say(controller, ended(first), ended(second), text(busy, "x"), report(1.0, c1=10, c2=10, c3=10))
    assert [chat.can_free for chat in controller.chats.values()] == [True, True, False, False]
    controller.free_idle()
    assert engine.told(CloseChat) == [CloseChat(first), CloseChat(second)]
    assert not controller.can_free_idle
    assert controller.chats[busy].opened
    assert not controller.chats[never].opened


def test_a_chat_whose_cache_was_dropped_is_still_open(controller: Controller, engine: ScriptedEngine) -> None:
    chat_id = answered(controller)
    say(controller, CacheDropped(chat_id), report(2.0))
    assert controller.chats[chat_id].opened
    assert controller.chats[chat_id].memory is None
    controller.send(chat_id, "And at night?")
    assert len(engine.told(OpenChat)) == 1


def test_a_lane_waits_too(window: MainWindow, engine: ScriptedEngine) -> None:
    say(window.controller, ModelReady(INFO))
    idle = answered(window.controller)
    window.show_compare()
    window.controller.start_comparison("Why?", [CacheChoice("fp16"), CacheChoice()])
    say(window.controller, text(-1, "So."), waiting(-2))
    said = visible_words(window.compare_view)
    assert "Waiting for memory" in said
    assert MESSAGE in said
    assert window.controller.comparison.running
    press(window.compare_view, "Free idle chats")
    assert engine.commands[-1] == CloseChat(idle)
    say(window.controller, ChatResumed(-2), text(-2, "So."), ended(-1), ended(-2))
    assert "Waiting" not in visible_words(window.compare_view)
    window.controller.start_comparison("How?", [CacheChoice("fp16"), CacheChoice()])
    say(window.controller, waiting(-3), ChatFailed(-3, "No."))
    assert "Waiting for memory" not in visible_words(window.compare_view)
