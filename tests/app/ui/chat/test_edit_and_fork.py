"""Asking something else in the place of an earlier question, and beginning another chat from there."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app.engine.messages import (
    CacheChoice,
    ChatFailed,
    ChatForked,
    CloseChat,
    ContextNearlyFull,
    ForkChat,
    Message,
    ModelReady,
    OpenChat,
    Send,
    Stop,
)
from app.store.store import Store, StoreError
from app.ui.chat.context_bar import CHOOSE
from app.ui.chat.message_editor import MessageEditor
from app.ui.chat.message_view import FORK, AssistantMessage, UserMessage
from app.ui.session.controller import Controller
from app.ui.session.settings import ChatSettings
from app.ui.session.state import Turn
from app.ui.shell.main_window import MainWindow
from tests.app.ui.conftest import INFO, ScriptedEngine, ended, say, text
from tests.app.ui.shell.test_window import visible_words

QUESTIONS, ANSWERS = ("What is a rainbow?", "And at night?"), ("Light in drops.", "A moonbow.")


def conversation(controller: Controller) -> int:
    """A chat of two questions and two answers."""
    chat_id = controller.new_chat(CacheChoice("turboquant_mse", 2, 2))
    for question, answer in zip(QUESTIONS, ANSWERS, strict=True):
        assert controller.send(chat_id, question)
        say(controller, text(chat_id, answer), ended(chat_id))
    return chat_id


def stored(store: Store, chat_id: int) -> list[str]:
    return [message.content for message in store.messages(chat_id)]


def last_sent(engine: ScriptedEngine) -> list[str]:
    sent = engine.told(Send)[-1]
    assert isinstance(sent, Send)
    return [message.content for message in sent.messages]


@pytest.fixture
def shown(window: MainWindow) -> int:
    """A conversation that the window shows."""
    say(window.controller, ModelReady(INFO))
    chat_id = conversation(window.controller)
    window.show_chat(chat_id)
    return chat_id


def questions(window: MainWindow) -> list[UserMessage]:
    views = [view for _, view in window.chat_view.conversation.shown]
    return [view for view in views if isinstance(view, UserMessage)]


def answers(window: MainWindow) -> list[AssistantMessage]:
    views = [view for _, view in window.chat_view.conversation.shown]
    return [view for view in views if isinstance(view, AssistantMessage)]


def editor(window: MainWindow) -> MessageEditor:
    (found,) = [view.editor for view in questions(window) if view.editor is not None]
    return found


# ---------------------------------------------------------------- editing
def test_another_question_takes_the_place_of_one_and_of_all_after_it(
    controller: Controller, engine: ScriptedEngine, store: Store
) -> None:
    chat_id = conversation(controller)
    assert controller.edit_message(chat_id, 2, "  And at noon?\n")
    assert last_sent(engine) == [QUESTIONS[0], ANSWERS[0], "And at noon?"]
    say(controller, text(chat_id, "No."), ended(chat_id))
    assert stored(store, chat_id) == [QUESTIONS[0], ANSWERS[0], "And at noon?", "No."]
    assert controller.chats[chat_id].title == QUESTIONS[0]
    assert controller.edit_message(chat_id, 0, "What is a halo?")
    assert stored(store, chat_id) == ["What is a halo?", ""]
    assert controller.chats[chat_id].title == store.chats()[0].title == "What is a halo?"
    assert len(engine.told(OpenChat)) == 1, "it goes on in the same chat"


def test_a_title_the_person_gave_stays(controller: Controller) -> None:
    chat_id = conversation(controller)
    controller.rename_chat(chat_id, "Weather")
    controller.edit_message(chat_id, 0, "What is a halo?")
    assert controller.chats[chat_id].title == "Weather"


def test_what_cannot_be_edited_stays(controller: Controller, engine: ScriptedEngine, store: Store) -> None:
    chat_id = conversation(controller)
    assert not controller.edit_message(chat_id, 1, "The answer I wanted")
    assert not controller.edit_message(chat_id, 0, " ")
    controller.send(chat_id, "More")
    assert not controller.edit_message(chat_id, 0, "While it answers")
    assert len(engine.told(Send)) == 3
    assert stored(store, chat_id)[:4] == [QUESTIONS[0], ANSWERS[0], QUESTIONS[1], ANSWERS[1]]


def test_a_question_is_written_again_in_its_place(
    window: MainWindow, engine: ScriptedEngine, store: Store, shown: int
) -> None:
    first = questions(window)[0]
    first.edit_button.click()
    edit = editor(window).edit
    assert edit.hasFocus()
    assert edit.toPlainText() == QUESTIONS[0]
    assert "The messages after it will be deleted." in visible_words(window)
    edit.selectAll()
    QTest.keyClicks(edit, "What is")
    QTest.keyClick(edit, Qt.Key.Key_Return)
    QTest.keyClicks(edit, "a halo?")
    QTest.keyClick(edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert last_sent(engine) == ["What is\na halo?"]
    assert stored(store, shown) == ["What is\na halo?", ""]
    assert "a halo?" in visible_words(window.chat_view)
    assert ANSWERS[0] not in visible_words(window.chat_view)
    assert window.chat_view.input.edit.hasFocus()


def test_escape_puts_the_message_back(window: MainWindow, engine: ScriptedEngine, shown: int, qtbot: QtBot) -> None:
    other = window.controller.new_chat()
    window.controller.send(other, "Still answering")
    view = questions(window)[0]
    view.edit_button.setFocus()
    QTest.keyClick(view.edit_button, Qt.Key.Key_Space)
    QTest.keyClicks(editor(window).edit, "something")
    QTest.keyClick(editor(window).edit, Qt.Key.Key_Escape)
    assert view.editor is None
    assert QUESTIONS[0] in visible_words(view)
    assert view.edit_button.hasFocus(), "where the keyboard was before"
    assert len(engine.told(Send)) == 3
    view.edit_button.clearFocus()
    view.edit_button.click()
    visible_words(view)
    cancel = next(b for b in view.findChildren(QPushButton) if b.text() == "Cancel" and b.isVisible())
    cancel.setFocus()
    QTest.keyClick(cancel, Qt.Key.Key_Escape)
    assert view.editor is None
    assert window.chat_view.input.edit.hasFocus()


def test_nothing_is_edited_while_the_chat_answers(window: MainWindow, engine: ScriptedEngine, shown: int) -> None:
    first, second = questions(window)
    second.edit_button.click()
    window.controller.send(shown, "More")
    assert not first.edit_button.isEnabled()
    assert not editor(window).send.isEnabled()
    QTest.keyClick(editor(window).edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert len(engine.told(Send)) == 3
    QTest.keyClick(editor(window).edit, Qt.Key.Key_Escape)
    assert second.editor is None
    assert not engine.told(Stop), "Esc was about the editor"
    assert not second.edit_button.isEnabled()
    say(window.controller, ended(shown))
    second.edit_button.click()
    assert first.edit_button.isEnabled()
    assert editor(window).send.isEnabled()
    QTest.keyClick(editor(window).edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert last_sent(engine) == [QUESTIONS[0], ANSWERS[0], QUESTIONS[1]]


def test_what_is_being_edited_is_there_after_a_look_at_another_chat(window: MainWindow, shown: int) -> None:
    questions(window)[1].edit_button.click()
    QTest.keyClicks(editor(window).edit, " Or at dawn?")
    window.show_chat(window.controller.new_chat())
    assert not questions(window)
    window.show_chat(shown)
    assert editor(window).text == f"{QUESTIONS[1]} Or at dawn?"
    window.show_chat(shown)
    assert questions(window)[0].editor is None


# ---------------------------------------------------------------- forking
def test_a_fork_begins_like_its_parent(controller: Controller, engine: ScriptedEngine, store: Store) -> None:
    chat_id = conversation(controller)
    controller.set_settings(chat_id, ChatSettings(drop_oldest=True))
    fork_id = controller.fork_chat(chat_id, 2)
    assert fork_id is not None
    told = (Message("user", QUESTIONS[0]), Message("assistant", ANSWERS[0]))
    assert engine.commands[-1] == ForkChat(chat_id, fork_id, told)
    fork, parent = controller.chats[fork_id], controller.chats[chat_id]
    assert (fork.title, fork.choice, fork.settings) == (f"{QUESTIONS[0]} (2)", parent.choice, parent.settings)
    assert fork.turns == parent.turns[:2]
    assert fork.turns[0] is not parent.turns[0]
    assert fork.colour != parent.colour
    assert stored(store, fork_id) == [QUESTIONS[0], ANSWERS[0]]
    say(controller, ChatForked(chat_id, fork_id, 20))
    controller.send(fork_id, "And in winter?")
    assert len(engine.told(OpenChat)) == 1, "the fork is there already"
    assert stored(store, chat_id) == [QUESTIONS[0], ANSWERS[0], QUESTIONS[1], ANSWERS[1]]


def test_forks_are_numbered(controller: Controller) -> None:
    chat_id = conversation(controller)
    controller.rename_chat(chat_id, "Light")
    second = controller.fork_chat(chat_id, 2)
    assert second is not None
    third = controller.fork_chat(second, 2)
    assert third is not None
    assert [controller.chats[i].title for i in (second, third)] == ["Light (2)", "Light (3)"]
    controller.close_chat(second)
    fourth = controller.fork_chat(third, 2)
    assert fourth is not None
    assert controller.chats[fourth].title == "Light (2)"


def test_a_fork_of_a_chat_that_holds_nothing_waits_until_it_is_used(
    controller: Controller, engine: ScriptedEngine
) -> None:
    chat_id = conversation(controller)
    controller.free_memory(chat_id)
    before = len(engine.commands)
    fork_id = controller.fork_chat(chat_id, 2)
    assert fork_id is not None
    assert len(engine.commands) == before
    controller.send(fork_id, "And in winter?")
    assert [type(command) for command in engine.commands[before:]] == [OpenChat, Send]
    controller.close_chat(fork_id)
    assert engine.commands[-1] == CloseChat(fork_id)


def test_a_chat_can_be_forked_while_it_answers_but_not_the_answer_itself(
    controller: Controller, engine: ScriptedEngine
) -> None:
    chat_id = conversation(controller)
    controller.send(chat_id, "More")
    assert controller.fork_chat(chat_id, 6) is None
    fork_id = controller.fork_chat(chat_id, 4)
    assert fork_id is not None
    assert len(engine.told(ForkChat)) == 1
    assert not controller.chats[fork_id].answering
    assert controller.send(fork_id, "Something else")


def test_a_fork_the_engine_could_not_make_is_opened_when_it_is_used(
    controller: Controller, engine: ScriptedEngine
) -> None:
    chat_id = conversation(controller)
    fork_id = controller.fork_chat(chat_id, 2)
    assert fork_id is not None
    say(controller, ChatFailed(fork_id, "The chat to fork is closed."))
    controller.send(fork_id, "And in winter?")
    assert [type(command) for command in engine.commands[-2:]] == [OpenChat, Send]


def test_a_fork_goes_on_even_if_it_could_not_be_written_down(
    controller: Controller, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat_id = conversation(controller)

    def full(*_: object) -> None:
        raise StoreError("The disk is full.")

    monkeypatch.setattr(store, "fork_chat", full)
    fork_id = controller.fork_chat(chat_id, 2)
    assert fork_id is not None
    assert controller.save_error == "The disk is full."
    assert len(controller.chats[fork_id].turns) == 2


def test_a_fork_after_an_answer_is_shown_at_once(window: MainWindow, shown: int) -> None:
    fork = answers(window)[0].fork_button
    assert fork.accessibleName().startswith("Fork from here")
    fork.click()
    assert window.chat_view.chat_id != shown
    said = visible_words(window.chat_view)
    assert ANSWERS[0] in said
    assert QUESTIONS[1] not in said
    assert window.chat_view.input.text == ""
    assert f"{QUESTIONS[0]} (2)" in visible_words(window.header)
    assert window.sidebar.chats._model.rowCount() == 2


def test_a_fork_at_a_question_has_it_ready_to_be_asked_differently(
    window: MainWindow, engine: ScriptedEngine, shown: int
) -> None:
    questions(window)[1].fork_button.click()
    assert [turn.content for turn in window.controller.chats[window.chat_view.chat_id or 0].turns] == [
        QUESTIONS[0],
        ANSWERS[0],
    ]
    assert window.chat_view.input.text == QUESTIONS[1]
    assert window.chat_view.input.edit.hasFocus()
    QTest.keyClick(window.chat_view.input.edit, Qt.Key.Key_Return)
    assert last_sent(engine) == [QUESTIONS[0], ANSWERS[0], QUESTIONS[1]]


def test_a_fork_at_the_first_question_is_an_empty_chat_that_keeps_its_title(
    window: MainWindow, engine: ScriptedEngine, shown: int
) -> None:
    questions(window)[0].fork_button.click()
    assert not engine.told(ForkChat), "there is nothing to share"
    assert window.chat_view.input.text == QUESTIONS[0]
    fork_id = window.chat_view.chat_id
    window.new_chat()
    assert window.chat_view.chat_id != fork_id, "it is not just any empty chat"
    window.show_chat(fork_id)
    assert window.chat_view.input.text == QUESTIONS[0]
    QTest.keyClick(window.chat_view.input.edit, Qt.Key.Key_Return)
    assert window.controller.chats[fork_id or 0].title == f"{QUESTIONS[0]} (2)"


def test_the_buttons_of_a_message_can_be_reached_by_keyboard(window: MainWindow, shown: int) -> None:
    for view in (*questions(window), *answers(window)):
        for one in view.hover_buttons:
            assert not one.revealed
            assert one.focusPolicy() & Qt.FocusPolicy.TabFocus
            assert one.accessibleName()


def test_tab_goes_through_the_chat_from_top_to_bottom(window: MainWindow, shown: int) -> None:
    window.controller.send(shown, "More")
    say(window.controller, text(shown, "```python\nx = 1\n```\n\nHalf"), ended(shown, "length"))
    say(window.controller, ContextNearlyFull(shown, 7400, 8192))
    questions(window)[0].edit_button.click()
    visible_words(window)
    names: list[str] = []
    widget: QWidget | None = editor(window).edit
    while widget is not None and widget is not window.chat_view.input.edit:
        if widget.isVisible() and widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            names.append(widget.accessibleName() or widget.property("text"))
        widget = widget.nextInFocusChain()
    assert names == [
        *("Edit message", "Cancel", "Send"),
        *("Copy answer", FORK),
        *(FORK, "Copy message", "Edit message"),
        *("Copy answer", FORK),
        *(FORK, "Copy message", "Edit message"),
        *("Copy code", "Continue", "Answer again", "Copy answer", FORK),
        CHOOSE,
    ]


def test_a_fork_keeps_how_an_answer_ended(controller: Controller, store: Store) -> None:
    chat_id = controller.new_chat()
    controller.send(chat_id, "Hello")
    say(controller, text(chat_id, "Half"), ended(chat_id, "length"))
    fork_id = controller.fork_chat(chat_id, 2)
    assert fork_id is not None
    again = Controller(ScriptedEngine(), store)
    assert again.chats[fork_id].turns[-1] == controller.chats[chat_id].turns[-1]
    assert again.chats[fork_id].turns[-1] == Turn(
        "assistant", "Half", "length", controller.chats[fork_id].turns[-1].note
    )
