"""What a person sees and does in the window; the engine is scripted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app.engine.messages import (
    METHODS,
    AnswerEnded,
    CacheChoice,
    ChatFailed,
    EngineStopped,
    FetchDefaultModel,
    ModelFailed,
    ModelProgress,
    ModelReady,
    Send,
    Stop,
)
from app.ui.chat.body import Body
from app.ui.chat.message_view import AssistantMessage, UserMessage
from app.ui.look.confirm import Confirm
from app.ui.look.document_view import DocumentView
from app.ui.look.method_picker import MethodCard, MethodPopover
from app.ui.look.small import Segments
from app.ui.shell.main_window import MainWindow
from tests.app.ui.conftest import INFO, ScriptedEngine, ended, report, say, stats, text


def visible_words(widget: QWidget) -> str:
    """Everything the labels and buttons in it say right now."""
    QApplication.processEvents()  # what was made a moment ago is shown by an event
    parts = [w.text() for w in widget.findChildren(QLabel) if w.isVisible()]
    parts += [w.text() for w in widget.findChildren(QPushButton) if w.isVisible()]
    parts += [w.toPlainText() for w in widget.findChildren(DocumentView) if w.isVisible()]
    parts += [w.words for w in widget.findChildren(Body) if w.isVisible()]
    return "\n".join(parts)


def press(window: QWidget, name: str) -> None:
    found = [b for b in window.findChildren(QPushButton) if b.isVisible() and b.text() == name]
    assert len(found) == 1, name
    found[0].click()


def write(window: MainWindow, words: str) -> None:
    QTest.keyClicks(window.chat_view.input.edit, words)
    QTest.keyClick(window.chat_view.input.edit, Qt.Key.Key_Return)


def test_the_window_says_what_it_is_doing_until_the_model_is_there(
    window: MainWindow, qtbot: QtBot, engine: ScriptedEngine
) -> None:
    say(window.controller, ModelProgress("Reading weights", 0.6))
    assert "Loading model: reading weights… 60 %" in visible_words(window)
    write(window, "Hello")
    assert window.chat_view.input.text == "Hello", "typing is possible, sending isn't yet"
    assert not engine.told(Send)
    say(window.controller, ModelReady(INFO))
    assert "Loading model" not in visible_words(window)
    QTest.keyClick(window.chat_view.input.edit, Qt.Key.Key_Return)
    assert len(engine.told(Send)) == 1


def test_enter_sends_and_shift_enter_makes_a_line(window: MainWindow, qtbot: QtBot, engine: ScriptedEngine) -> None:
    say(window.controller, ModelReady(INFO))
    edit = window.chat_view.input.edit
    height = edit.height()
    QTest.keyClicks(edit, "One")
    QTest.keyClick(edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    assert edit.height() > height
    write(window, "Two")
    sent = engine.told(Send)[0]
    assert isinstance(sent, Send)
    assert sent.messages[0].content == "One\nTwo"
    assert edit.toPlainText() == ""


def test_sending_in_an_empty_window_makes_a_chat(window: MainWindow, qtbot: QtBot) -> None:
    say(window.controller, ModelReady(INFO))
    assert "What would you like to ask?" in visible_words(window)
    write(window, "What is a rainbow?")
    assert list(window.controller.chats) == [window.chat_view.chat_id]
    assert "What would you like to ask?" not in visible_words(window)


def test_a_sample_prompt_is_sent_by_a_click(window: MainWindow, engine: ScriptedEngine) -> None:
    say(window.controller, ModelReady(INFO))
    card = next(b for b in window.findChildren(QPushButton) if b.accessibleName().startswith("Explain something"))
    card.click()
    assert len(engine.told(Send)) == 1


def test_escape_stops_the_answer_and_its_text_stays(window: MainWindow, qtbot: QtBot, engine: ScriptedEngine) -> None:
    say(window.controller, ModelReady(INFO))
    write(window, "Hello")
    say(window.controller, text(1, "Half an ans"))
    QTest.keyClick(window.chat_view.input.edit, Qt.Key.Key_Escape)
    assert engine.commands[-1] == Stop(1)
    say(window.controller, ended(1, "stopped"))
    assert "Half an ans" in visible_words(window.chat_view)
    assert "Stopped · 3 tokens" in visible_words(window.chat_view)


def test_a_failure_is_shown_inline_with_a_way_to_try_again(
    window: MainWindow, qtbot: QtBot, engine: ScriptedEngine
) -> None:
    say(window.controller, ModelReady(INFO))
    write(window, "Hello")
    say(window.controller, ChatFailed(1, "The pool is full. Close a chat, then try again."))
    assert "The pool is full. Close a chat, then try again." in visible_words(window.chat_view)
    press(window, "Try again")
    assert len(engine.told(Send)) == 2
    assert "pool is full" not in visible_words(window.chat_view)


def test_other_chats_go_on_while_one_looks_at_one(window: MainWindow, qtbot: QtBot) -> None:
    say(window.controller, ModelReady(INFO))
    write(window, "First")
    window.show_chat(window.controller.new_chat())
    write(window, "Second")
    say(window.controller, text(1, "answer one"), text(2, "answer two"))
    assert "answer two" in visible_words(window.chat_view)
    assert "answer one" not in visible_words(window.chat_view)
    window.show_chat(1)
    say(window.controller, text(1, " goes on"))
    assert "answer one goes on" in visible_words(window.chat_view)


def test_what_is_being_written_stays_with_its_chat(window: MainWindow, qtbot: QtBot) -> None:
    first, second = window.controller.new_chat(), window.controller.new_chat()
    window.show_chat(first)
    QTest.keyClicks(window.chat_view.input.edit, "half a question")
    window.show_chat(second)
    assert window.chat_view.input.text == ""
    window.show_chat(first)
    assert window.chat_view.input.text == "half a question"


def test_only_what_changed_is_drawn_again(window: MainWindow, qtbot: QtBot) -> None:
    say(window.controller, ModelReady(INFO))
    write(window, "Hello")
    say(window.controller, text(1, "One paragraph.\n\n```python\nx = 1\n```\n\nMore"))
    (view,) = window.chat_view.findChildren(AssistantMessage)
    before = [piece.document for piece in view.body.pieces]
    say(window.controller, text(1, " and more"))
    after = [piece.document for piece in view.body.pieces]
    assert len(before) == len(after) == 3
    assert [a is b for a, b in zip(before, after, strict=True)] == [True, True, False]


def test_a_long_answer_is_followed_unless_one_reads_above(window: MainWindow, qtbot: QtBot) -> None:
    say(window.controller, ModelReady(INFO))
    write(window, "Hello")
    bar = window.chat_view.conversation.verticalScrollBar()
    say(window.controller, text(1, "A line.\n\n" * 60))
    qtbot.waitUntil(lambda: bar.maximum() > 0 and bar.value() == bar.maximum())
    assert "Jump to latest" not in visible_words(window.chat_view)
    bar.setValue(100)
    say(window.controller, text(1, "A line.\n\n" * 60))
    qtbot.wait(50)
    assert bar.value() == 100
    press(window, "Jump to latest")
    assert bar.value() == bar.maximum()


def test_an_answer_can_be_copied(window: MainWindow, qtbot: QtBot) -> None:
    say(window.controller, ModelReady(INFO))
    write(window, "Hello")
    say(window.controller, text(1, "**bold** answer"), ended(1))
    view = window.chat_view.findChild(AssistantMessage)
    assert isinstance(view, AssistantMessage)
    view._copy.click()
    assert QGuiApplication.clipboard().text() == "**bold** answer"


def test_a_question_is_shown_as_it_was_written(window: MainWindow, qtbot: QtBot) -> None:
    say(window.controller, ModelReady(INFO))
    write(window, "<b>is this bold?</b> **no**")
    bubble = window.chat_view.findChild(UserMessage)
    assert isinstance(bubble, UserMessage)
    assert "<b>is this bold?</b> **no**" in visible_words(bubble)


@pytest.mark.parametrize(("answer", "left"), [("Delete", 0), ("Cancel", 1)])
def test_deleting_asks_only_where_something_would_be_lost(
    window: MainWindow, qtbot: QtBot, answer: str, left: int
) -> None:
    say(window.controller, ModelReady(INFO))
    window.ask_to_close(window.controller.new_chat())  # an empty one goes without a word
    assert not window.controller.chats
    write(window, "Hello")

    def press_it() -> None:
        dialog = QApplication.activeModalWidget()
        assert isinstance(dialog, Confirm)
        assert "Hello" in visible_words(dialog)
        press(dialog, answer)

    QTimer.singleShot(0, press_it)
    window.close_current()
    assert len(window.controller.chats) == left


def test_new_chat_uses_the_empty_one_that_is_there(window: MainWindow) -> None:
    window.new_chat()
    window.controller.last_choice = CacheChoice("turboquant_mse", 2, 2)
    window.new_chat()
    assert [chat.choice.key_bits for chat in window.controller.chats.values()] == [2]


def test_no_model_offers_to_download_one(window: MainWindow, engine: ScriptedEngine) -> None:
    say(window.controller, ModelFailed("The default model is not here yet.", True))
    assert "The default model is not here yet." in visible_words(window)
    press(window, "Download default model (93 MB)")
    assert engine.commands[-1] == FetchDefaultModel()


def test_a_stopped_engine_can_be_restarted(window: MainWindow) -> None:
    say(window.controller, ModelReady(INFO), EngineStopped("RuntimeError: no memory"))
    assert "The engine has stopped: RuntimeError: no memory" in visible_words(window)
    press(window, "Restart engine")
    assert window.controller.model.phase == "loading"


def test_notices_of_the_model_are_shown_and_can_be_dismissed(window: MainWindow) -> None:
    slow = ModelReady(
        type(INFO)(INFO.name, INFO.folder, 30, 3, 64, 8192, "float32", "CPU", 46_080, ("OpenBLAS is missing.",))
    )
    say(window.controller, slow)
    assert "OpenBLAS is missing." in visible_words(window)
    dismiss = next(b for b in window.findChildren(QWidget) if b.accessibleName() == "Dismiss" and b.isVisible())
    assert isinstance(dismiss, QWidget)
    dismiss.click()  # type: ignore[attr-defined]
    assert "OpenBLAS is missing." not in visible_words(window)


def test_the_memory_panel_adds_up(window: MainWindow, qtbot: QtBot) -> None:
    say(window.controller, ModelReady(INFO))
    write(window, "First")
    window.show_chat(window.controller.new_chat())
    write(window, "Second")
    say(window.controller, report(1.0, c1=2_000_000, c2=1_100_000))
    said = visible_words(window.memory_panel)
    assert "3.1 MB" in said
    assert "uncompressed 12.4 MB · 4.0× smaller" in said
    assert "No budget · 120 blocks of 16 tokens" in said
    assert "2.0 MB" in said
    assert "60 blocks · 16 tokens" in said
    window.controller.close_chat(1)
    say(window.controller, report(2.0, c2=1_100_000))
    assert "2.0 MB" not in visible_words(window.memory_panel)


def test_the_memory_panel_goes_and_comes_and_is_remembered(window: MainWindow) -> None:
    window.resize(1240, 800)
    window.toggle_memory()
    assert not window.memory_panel.isVisible()
    assert window.controller.store.setting("memory_panel", "1") == "0"
    window.toggle_memory()
    assert window.memory_panel.isVisible()


def test_a_narrow_window_has_room_for_one_side(window: MainWindow, qtbot: QtBot) -> None:
    window.resize(720, 600)
    qtbot.waitUntil(lambda: not window.memory_panel.isVisible())
    assert window.width() == 720
    window.toggle_memory()
    assert window.memory_panel.isVisible()
    assert not window.sidebar.isVisible()
    window.resize(1240, 800)
    qtbot.waitUntil(lambda: window.sidebar.isVisible() and window.memory_panel.isVisible())


def test_the_picker_offers_every_method_and_its_bits(window: MainWindow, qtbot: QtBot) -> None:
    popover = MethodPopover(CacheChoice(), window)
    qtbot.addWidget(popover)
    picked: list[CacheChoice] = []
    popover.picked.connect(picked.append)
    cards = popover.findChildren(MethodCard)
    for card in cards:
        card.pick()
    assert picked == [CacheChoice(method) for method in METHODS]


def test_only_the_method_in_use_shows_its_bits_and_all_fit_the_screen(window: MainWindow, qtbot: QtBot) -> None:
    popover = MethodPopover(CacheChoice("polar"), window)
    qtbot.addWidget(popover)
    popover.show_below(window)
    cards = popover.findChildren(MethodCard)

    def shown() -> list[str]:
        return [s.accessibleName() for card in cards for s in card.findChildren(Segments) if s.isVisible()]

    assert [card.is_chosen for card in cards].index(True) == list(METHODS).index("polar")
    assert len(shown()) == 1
    cards[0].pick()  # fp16 has no bits
    assert shown() == []
    assert popover.height() <= window.screen().availableGeometry().height()


def test_a_comparison_says_where_answers_part(window: MainWindow, engine: ScriptedEngine) -> None:
    say(window.controller, ModelReady(INFO))
    window.show_compare()
    assert window.controller.start_comparison("Why?", [CacheChoice("fp16"), CacheChoice(), CacheChoice()])
    say(
        window.controller,
        text(-1, "Light bends in water."),
        text(-2, "Light bends in water."),
        text(-3, "Light bends in glass."),
    )
    say(window.controller, ended(-1), ended(-2), ended(-3))
    said = visible_words(window.compare_view)
    assert "Same answer as fp16" in said
    assert "Same as fp16 for 3 words, then differs" in said
    assert "4.0× smaller than fp16" in said
    assert "20.0 tok/s alone · 3 tokens" in said
    assert window.compare_view.input.text == "Why?"
    press(window, "Clear")
    assert "Same answer" not in visible_words(window.compare_view)


def test_a_lane_of_one_token_is_not_said_to_have_no_speed(window: MainWindow) -> None:
    say(window.controller, ModelReady(INFO))
    window.show_compare()
    window.controller.start_comparison("Why?", [CacheChoice("fp16"), CacheChoice()])
    one = replace(stats(1), tokens_per_s=0.0, own_tokens_per_s=0.0)
    say(window.controller, text(-1, "So."), AnswerEnded(-1, "stop", one), ended(-2))
    said = visible_words(window.compare_view)
    assert "1 token" in said
    assert said.count("tok/s alone") == said.count("tok/s") == 1, "only the other lane has a speed"


def test_lanes_come_and_go_between_two_and_six(window: MainWindow) -> None:
    window.show_compare()
    assert len(window.compare_view._lanes) == 3
    for _ in range(3):
        press(window, "Add lane")
    assert len({view.choice for view in window.compare_view._lanes}) == 6, "every lane is another method or other bits"
    assert "Add lane" not in visible_words(window.compare_view)
    for _ in range(4):
        window.compare_view._lanes[-1].remove.click()
    assert len(window.compare_view._lanes) == 2
    assert not window.compare_view._lanes[0].remove.isVisible()


def test_both_themes_can_be_put_on_while_an_answer_streams(window: MainWindow, qtbot: QtBot) -> None:
    say(window.controller, ModelReady(INFO))
    write(window, "Hello")
    say(window.controller, text(1, "Some `code` and\n\n```python\nx = 1\n```"), report(1.0, c1=1000))
    for name in ("dark", "light", "system"):
        window.set_theme(name)
        say(window.controller, text(1, " more"))
        assert not window.grab().isNull()


def test_everything_one_can_press_has_a_name(window: MainWindow) -> None:
    from PySide6.QtWidgets import QAbstractButton

    ours = [b for b in window.findChildren(QAbstractButton) if not b.objectName().startswith("qt_")]
    for one in ours:
        assert one.text() or one.accessibleName(), one


def test_closing_the_window_writes_down_what_is_on_screen(window: MainWindow, qtbot: QtBot) -> None:
    say(window.controller, ModelReady(INFO))
    write(window, "Hello")
    say(window.controller, text(1, "Half"))
    say(window.controller, text(1, " an answer"))
    window.close()
    assert [m.content for m in window.controller.store.messages(1)] == ["Hello", "Half an answer"]
