"""A context that fills up: what the bar above the input says, and that nothing is left out unless it was chosen."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from PySide6.QtWidgets import QApplication

from app.engine.messages import AnswerEnded, ChatFailed, ContextNearlyFull, ModelReady, Send, TurnsDropped
from app.store.store import Store
from app.ui.chat.context_bar import CHOOSE, CHOSEN, DROPPED, GO_ON, DroppedLine
from app.ui.session.controller import Controller
from app.ui.session.settings import ChatSettings
from app.ui.session.state import Turn, turn_of_message
from app.ui.shell.main_window import MainWindow
from tests.app.ui.conftest import INFO, ScriptedEngine, ended, say, stats, text
from tests.app.ui.shell.test_window import press, visible_words, write


@pytest.fixture
def begun(window: MainWindow) -> MainWindow:
    """One answered question, shown."""
    say(window.controller, ModelReady(INFO))
    write(window, "Hello")
    say(window.controller, text(1, "Half"), ended(1, "length"))
    return window


def last_sent(engine: ScriptedEngine) -> Send:
    sent = engine.told(Send)[-1]
    assert isinstance(sent, Send)
    return sent


def test_the_bar_says_how_much_is_used_and_offers_a_choice_that_can_be_undone(
    begun: MainWindow, engine: ScriptedEngine, store: Store
) -> None:
    view = begun.chat_view
    assert CHOOSE not in visible_words(view)
    say(begun.controller, ContextNearlyFull(1, 7400, 8192))
    assert "This chat takes 7,400 of the 8,192 tokens the model reads." in visible_words(view)
    write(begun, "More")
    assert not last_sent(engine).drop_oldest, "nobody has chosen it"
    say(begun.controller, text(1, "x"), AnswerEnded(1, "stop", replace(stats(), prompt_tokens=7400)))
    press(begun, CHOOSE)
    assert CHOSEN in visible_words(view)
    assert store.chats()[0].settings == {"drop_oldest": True}
    assert begun.chat_view.input.edit.hasFocus()
    write(begun, "More")
    assert last_sent(engine).drop_oldest
    press(begun, "Undo")
    assert CHOSEN not in visible_words(view)
    assert store.chats()[0].settings == {}
    assert CHOOSE in visible_words(view)


def test_the_bar_counts_the_answer_and_goes_once_there_is_room(begun: MainWindow) -> None:
    write(begun, "More")
    say(begun.controller, ContextNearlyFull(1, 7400, 8192), text(1, "x"))
    say(begun.controller, AnswerEnded(1, "stop", replace(stats(200), prompt_tokens=7400)))
    assert "This chat takes 7,600 of the 8,192 tokens" in visible_words(begun.chat_view)
    begun.controller.set_drop_oldest(1, True)
    write(begun, "Yet more")
    say(begun.controller, TurnsDropped(1, 2), text(1, "x"))
    say(begun.controller, AnswerEnded(1, "stop", replace(stats(200), prompt_tokens=4000)))
    assert CHOSEN not in visible_words(begun.chat_view)
    assert begun.controller.chats[1].settings.drop_oldest


def test_the_bar_belongs_to_its_chat(begun: MainWindow) -> None:
    say(begun.controller, ContextNearlyFull(1, 7400, 8192), ContextNearlyFull(99, 1, 2), ContextNearlyFull(-1, 1, 2))
    begun.show_chat(begun.controller.new_chat())
    assert CHOOSE not in visible_words(begun.chat_view)
    begun.show_chat(1)
    assert CHOOSE in visible_words(begun.chat_view)


def test_it_goes_where_the_conversation_became_shorter(begun: MainWindow) -> None:
    write(begun, "More")
    say(begun.controller, text(1, "x"), ContextNearlyFull(1, 7400, 8192), ended(1))
    begun.controller.edit_message(1, 0, "Hi")
    assert CHOOSE not in visible_words(begun.chat_view)


def test_a_chat_with_a_limit_of_its_own_says_so(begun: MainWindow, engine: ScriptedEngine) -> None:
    begun.controller.set_settings(1, ChatSettings(context_limit=400))
    write(begun, "More")
    assert last_sent(engine).context_limit == 400
    say(begun.controller, ContextNearlyFull(1, 400, 400))
    assert "This chat takes all of the 400 tokens it may have." in visible_words(begun.chat_view)
    begun.controller.set_settings(1, ChatSettings())
    assert CHOOSE not in visible_words(begun.chat_view), "there is room again"


def test_an_answer_that_ended_at_the_context_goes_on_once_it_is_chosen_how(
    begun: MainWindow, engine: ScriptedEngine
) -> None:
    write(begun, "More")
    say(begun.controller, text(1, "Half an "), ContextNearlyFull(1, 7000, 8192), ended(1, "context"))
    assert "takes all of the 8,192 tokens" in visible_words(begun.chat_view)
    assert "Ended: the context is full" in visible_words(begun.chat_view)
    asked = len(engine.told(Send))
    press(begun, "Continue")
    assert len(engine.told(Send)) == asked, "it asks first"
    focus = QApplication.focusWidget()
    assert focus is not None
    assert focus.property("text") == GO_ON
    press(begun, GO_ON)
    sent = last_sent(engine)
    assert sent.drop_oldest
    assert sent.messages[-1].content == "Half an "
    say(begun.controller, text(1, "answer"))
    assert "Half an answer" in visible_words(begun.chat_view)
    assert CHOSEN in visible_words(begun.chat_view)


def test_it_goes_on_at_once_where_there_is_room_or_it_was_chosen_before(
    begun: MainWindow, engine: ScriptedEngine
) -> None:
    write(begun, "More")
    say(begun.controller, text(1, "Half"), ended(1, "context"))
    begun.controller.set_settings(1, ChatSettings(context_limit=8000))
    assert begun.controller.continue_answer(1)
    say(begun.controller, ended(1, "context"))
    assert not begun.controller.continue_answer(1)
    begun.controller.set_settings(1, ChatSettings(None, True, 8000))
    assert begun.controller.continue_answer(1)


def test_after_a_restart_it_asks_as_well(begun: MainWindow, store: Store) -> None:
    write(begun, "More")
    say(begun.controller, text(1, "Half"), ended(1, "context"))
    fresh = Controller(ScriptedEngine(), store)
    say(fresh, ModelReady(INFO))
    assert not fresh.continue_answer(1)
    assert fresh.chats[1].asks_room
    fresh.set_drop_oldest(1, True)
    assert fresh.chats[1].answering


def test_a_conversation_that_is_too_long_fails_with_the_same_choice(begun: MainWindow, engine: ScriptedEngine) -> None:
    write(begun, "Much more")
    say(begun.controller, ContextNearlyFull(1, 8450, 8192), ChatFailed(1, "The conversation is too long."))
    assert "This chat takes 8,450 tokens, more than the 8,192 the model reads." in visible_words(begun.chat_view)
    press(begun, CHOOSE)
    press(begun, "Try again")
    assert last_sent(engine).drop_oldest
    assert CHOSEN in visible_words(begun.chat_view)


def read_before_the_line(window: MainWindow) -> int:
    """How many messages stand above the line, all of them apart from it and from each other."""
    (line,) = window.chat_view.findChildren(DroppedLine)
    parts = sorted([line, *(view for _, view in window.chat_view.conversation.shown)], key=lambda part: part.y())
    assert all(above.geometry().bottom() < below.y() for above, below in pairwise(parts))
    return parts.index(line)


def test_a_line_shows_from_where_the_model_reads(begun: MainWindow) -> None:
    begun.controller.set_drop_oldest(1, True)
    write(begun, "More")
    assert DROPPED not in visible_words(begun.chat_view)
    say(begun.controller, TurnsDropped(1, 2), text(1, "x"))
    assert DROPPED in visible_words(begun.chat_view)
    assert read_before_the_line(begun) == 2
    say(begun.controller, ended(1))
    write(begun, "And more")
    assert DROPPED in visible_words(begun.chat_view), "it does not flicker while the next answer is prepared"
    say(begun.controller, TurnsDropped(1, 4), text(1, "y"))
    assert read_before_the_line(begun) == 4
    assert len(begun.chat_view.conversation.shown) == 6
    begun.show_chat(begun.controller.new_chat())
    assert DROPPED not in visible_words(begun.chat_view)
    begun.show_chat(1)
    assert DROPPED in visible_words(begun.chat_view)


def test_the_line_goes_once_everything_is_read_again(begun: MainWindow) -> None:
    write(begun, "More")
    say(begun.controller, TurnsDropped(1, 2), text(1, "x"), ended(1))
    write(begun, "Again")
    say(begun.controller, text(1, "y"))
    assert DROPPED not in visible_words(begun.chat_view)
    say(begun.controller, TurnsDropped(1, 2), ended(1))
    begun.controller.edit_message(1, 0, "Hi")
    assert DROPPED not in visible_words(begun.chat_view)


def test_messages_are_counted_as_the_model_is_told_them() -> None:
    turns = [
        Turn("user", "One"),
        Turn("assistant", "", "failed", "No."),
        Turn("user", "Two"),
        Turn("assistant", "A"),
        Turn("user", "Three"),
    ]
    assert [turn_of_message(turns, n) for n in range(4)] == [0, 3, 4, 5]
