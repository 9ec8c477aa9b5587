"""Letting an answer that was cut off go on: the same turn, and a note that covers all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtWidgets import QApplication

from app.engine.messages import (
    AnswerEnded,
    ChatFailed,
    EndReason,
    EngineStopped,
    Message,
    ModelReady,
    OpenChat,
    Send,
    TurnsDropped,
)
from app.store.store import Store
from app.ui.chat.message_view import AssistantMessage
from app.ui.look.small import ElidedLabel
from app.ui.session.controller import Controller
from app.ui.session.cost import Cost
from app.ui.session.state import Turn
from app.ui.shell.main_window import MainWindow
from tests.app.ui.conftest import INFO, ScriptedEngine, ended, say, stats, text
from tests.app.ui.session.test_controller import asked
from tests.app.ui.shell.test_window import press, visible_words, write


def last(controller: Controller, chat_id: int) -> Turn:
    return controller.chats[chat_id].turns[-1]


@pytest.mark.parametrize("reason", ["stopped", "length"])
def test_an_answer_that_was_cut_off_goes_on_in_the_same_turn(
    controller: Controller, engine: ScriptedEngine, store: Store, reason: EndReason
) -> None:
    chat_id = asked(controller)
    say(controller, text(chat_id, "Half an "), ended(chat_id, reason))
    assert controller.continue_answer(chat_id)
    sent = engine.told(Send)[-1]
    assert isinstance(sent, Send)
    assert sent.messages == (Message("user", "What is a rainbow?"), Message("assistant", "Half an "))
    assert controller.chats[chat_id].answering
    say(controller, text(chat_id, "answer."))
    second = replace(stats(6, 2000, 8000), tokens_per_s=28.4, prompt_tokens=412, reused_tokens=380)
    say(controller, AnswerEnded(chat_id, "stop", second))
    turn = last(controller, chat_id)
    assert (turn.content, turn.kind) == ("Half an answer.", "done")
    assert turn.quiet_line == "9 tokens · 21.3 tok/s · 2.0 KB cache · 4.0× smaller"
    assert turn.cost.tip == "Prompt: 412 tokens, 380 of them still in memory"
    assert [m.content for m in store.messages(chat_id)] == ["What is a rainbow?", "Half an answer."]
    assert not controller.continue_answer(chat_id), "it ended by itself"


def test_a_failed_answer_with_some_text_can_go_on_and_one_without_cannot(
    controller: Controller, engine: ScriptedEngine
) -> None:
    chat_id = asked(controller)
    say(controller, ChatFailed(chat_id, "No memory."))
    assert not controller.continue_answer(chat_id)
    controller.answer_again(chat_id)
    say(controller, text(chat_id, "Half", 5), ChatFailed(chat_id, "No memory."))
    assert controller.continue_answer(chat_id)
    say(controller, text(chat_id, " an answer."), ended(chat_id))
    assert last(controller, chat_id).content == "Half an answer."
    assert last(controller, chat_id).quiet_line.startswith("8 tokens · ")


def test_it_goes_on_after_a_restart_too_and_counts_what_was_there(
    controller: Controller, engine: ScriptedEngine, store: Store
) -> None:
    chat_id = asked(controller)
    say(controller, text(chat_id, "Half an "), ended(chat_id, "length"))
    fresh = ScriptedEngine()
    again = Controller(fresh, store)
    say(again, ModelReady(INFO))
    assert again.continue_answer(chat_id)
    assert [type(command) for command in fresh.commands] == [OpenChat, Send]
    say(again, text(chat_id, "answer."), ended(chat_id))
    assert last(again, chat_id).quiet_line.startswith("6 tokens · 14.2 tok/s")
    assert Controller(ScriptedEngine(), store).chats[chat_id].turns[-1] == last(again, chat_id)


def test_an_answer_that_was_going_on_when_the_app_ended_can_go_on_again(controller: Controller, store: Store) -> None:
    chat_id = asked(controller)
    say(controller, text(chat_id, "Half an ", 3))
    controller.save_all()
    again = Controller(ScriptedEngine(), store)
    say(again, ModelReady(INFO))
    assert again.continue_answer(chat_id)
    say(again, text(chat_id, "answer"), ended(chat_id))
    assert last(again, chat_id).quiet_line.startswith("6 tokens")


def test_one_that_cannot_go_on_now_stays_as_it_is(controller: Controller, engine: ScriptedEngine) -> None:
    chat_id = asked(controller)
    assert not controller.continue_answer(chat_id), "it is being written"
    say(controller, text(chat_id, "Half"), ended(chat_id, "stopped"), EngineStopped("gone"))
    assert not controller.continue_answer(chat_id)
    assert last(controller, chat_id).kind == "stopped"
    assert not controller.continue_answer(controller.new_chat())


@pytest.mark.parametrize(
    ("note", "rest", "cost"),
    [
        ("done: 1,024 tokens · 14.2 tok/s · 1.0 KB cache", None, Cost(1024)),
        ("stopped: 1 token · 1.0 KB cache", None, Cost(1)),
        ("failed: It took 30 tokens.\nClose a chat.", None, Cost()),
        ('failed: Said:\n{"error": 5}', None, Cost()),
        ("failed: Said:\n{broken", None, Cost()),
        ("", None, Cost()),
        ('failed: Two\nlines\n{"tokens": 5, "seconds": 2.5}', "failed: Two\nlines", Cost(5, 2.5)),
    ],
)
def test_notes_of_any_version_are_read(note: str, rest: str | None, cost: Cost) -> None:
    assert Cost.take_from(note) == (note if rest is None else rest, cost)
    assert Cost.take_from(Cost(7, 0.5, 20, 3).add_to("done: x")) == ("done: x", Cost(7, 0.5, 20, 3))


def test_the_button_is_there_while_it_helps(window: MainWindow, engine: ScriptedEngine) -> None:
    say(window.controller, ModelReady(INFO))
    write(window, "Hello")
    say(window.controller, text(1, "Half an "))
    assert "Continue" not in visible_words(window.chat_view)
    say(window.controller, ended(1, "length"))
    assert "Cut off at the length limit" in visible_words(window.chat_view)
    press(window, "Continue")
    assert "Cut off" not in visible_words(window.chat_view)
    assert "Half an" in visible_words(window.chat_view)
    assert "Waiting for its turn" in visible_words(window.chat_view)
    say(window.controller, text(1, "answer."), ChatFailed(1, "No memory."))
    assert "Half an answer." in visible_words(window.chat_view)
    assert "Try again" in visible_words(window.chat_view)
    press(window, "Continue")
    assert "No memory." not in visible_words(window.chat_view)
    say(window.controller, text(1, " There."), ended(1))
    assert "Half an answer. There." in visible_words(window.chat_view)
    assert "Continue" not in visible_words(window.chat_view)
    write(window, "And?")
    say(window.controller, text(1, "So"), ended(1, "stopped"))
    assert visible_words(window.chat_view).count("Continue") == 1
    press(window, "Continue")
    assert len(engine.told(Send)) == 5


def test_the_note_says_in_its_tooltip_how_much_of_the_prompt_was_in_memory(window: MainWindow) -> None:
    say(window.controller, ModelReady(INFO))
    write(window, "Hello")
    say(
        window.controller, text(1, "Hi"), AnswerEnded(1, "stop", replace(stats(), prompt_tokens=412, reused_tokens=380))
    )
    QApplication.processEvents()
    note = next(v for v in window.chat_view.findChildren(ElidedLabel) if v.accessibleName().startswith("3 tokens"))
    assert note.toolTip() == "Prompt: 412 tokens, 380 of them still in memory"
    assert note.accessibleDescription() == note.toolTip()
    view = window.chat_view.findChild(AssistantMessage)
    assert isinstance(view, AssistantMessage)
    view._note.resize(40, 20)
    assert note.toolTip().endswith("4.0× smaller\nPrompt: 412 tokens, 380 of them still in memory")


def test_a_turn_dropped_while_going_on_is_shown(controller: Controller) -> None:
    chat_id = asked(controller)
    say(controller, text(chat_id, "One"), ended(chat_id))
    controller.send(chat_id, "Two")
    say(controller, text(chat_id, "Half"), ended(chat_id, "length"))
    controller.continue_answer(chat_id)
    say(controller, TurnsDropped(chat_id, 2), text(chat_id, " more"))
    assert controller.chats[chat_id].dropped == 2
