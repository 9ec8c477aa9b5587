"""Long conversations: only what can be seen is there as widgets, and nobody notices but by the speed."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt, QTimer
from PySide6.QtGui import QAccessible, QGuiApplication, QPaintEvent, QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QPushButton, QWidget

from app.engine.messages import ModelReady, TurnsDropped
from app.ui.chat.body import Body
from app.ui.chat.conversation import Conversation
from app.ui.chat.copy_button import CopyButton
from app.ui.chat.message_view import AssistantMessage, MessageView, UserMessage
from app.ui.session.state import Turn
from app.ui.shell.main_window import MainWindow
from tests.app.ui.conftest import INFO, ended, say, text

ANSWER = """Some words *first*, which are the answer's beginning and may take more than one line of the column.

- a list
- of two

```python
print("and code")
```

| a | b |
|---|---|
| 1 | 2 |

The end of it."""


def turns(n: int, seed: int = 1) -> list[Turn]:
    """A conversation of so many messages, none of which is as high as its neighbours."""
    rng = random.Random(seed)
    made: list[Turn] = []
    for i in range(n):
        if i % 2 == 0:
            made.append(Turn("user", f"Question {i} " + "what is it " * rng.randrange(60)))
        else:
            made.append(
                Turn("assistant", f"Answer {i}\n\n" + "\n\n".join([ANSWER] * rng.randrange(1, 4)), note="3 tokens")
            )
    return made


def shown_chat(window: MainWindow, n: int) -> Conversation:
    """A chat of so many messages, on screen."""
    say(window.controller, ModelReady(INFO))
    chat_id = window.controller.new_chat()
    window.controller.chats[chat_id].turns = turns(n)
    window.show_chat(chat_id)
    settle()
    return window.chat_view.conversation


def settle() -> None:
    for _ in range(60):
        QApplication.processEvents()


def seen(scroll: Conversation) -> dict[int, int]:
    """The messages of which something can be seen, and where each begins, in pixels from the top edge."""
    high = scroll.viewport().height()
    return {i: view.y() for i, view in scroll.shown if view.y() < high and view.y() + view.height() > 0}


def read(scroll: Conversation) -> dict[tuple[int, int], int]:
    """The pieces of messages of which something can be seen, and where each begins."""
    high = scroll.viewport().height()
    places = {}
    for i, view in scroll.shown:
        for n, piece in enumerate(view.body.pieces):
            y = view.body.mapTo(scroll.viewport(), QPoint(0, view.body.y_of((n + 1, 0)) - piece.height)).y()
            if y < high and y + piece.height > 0:
                places[i, n] = y
    return places


def check(scroll: Conversation) -> None:
    """What is seen has no holes and nothing twice, and every word of it is laid out."""
    high, views = scroll.viewport().height(), scroll.shown
    here = [(i, view) for i, view in views if view.y() < high and view.y() + view.height() > 0]
    assert here
    indices = [i for i, _ in here]
    assert indices == list(range(indices[0], indices[-1] + 1))
    for (_, above), (_, below) in pairwise(here):
        assert above.y() + above.height() + 24 == below.y()
    for _, view in here:
        for index, piece in enumerate(view.body.pieces):
            top = view.body.mapTo(scroll.viewport(), QPoint(0, view.body.y_of((index, 0)))).y()
            if top < high and top + piece.height > 0:
                assert piece.is_laid_out


def test_a_chat_of_5000_messages_holds_no_more_widgets_than_one_of_50(window: MainWindow) -> None:
    shown_chat(window, 50)
    few = len(window.chat_view.findChildren(QWidget))
    scroll = shown_chat(window, 5000)
    assert len(window.chat_view.findChildren(QWidget)) <= few * 1.5
    bar = scroll.verticalScrollBar()
    for part in range(20):
        bar.setValue(bar.maximum() * part // 20)
        settle()
    assert len([view for view in window.chat_view.findChildren(MessageView) if not view.isHidden()]) <= 30
    assert len(window.chat_view.findChildren(MessageView)) <= 45


def test_a_chat_opens_at_its_end(window: MainWindow) -> None:
    scroll = shown_chat(window, 400)
    bar = scroll.verticalScrollBar()
    assert bar.value() == bar.maximum() > 0
    assert 399 in seen(scroll)
    check(scroll)
    last = scroll.view(399)
    assert last is not None
    assert last.y() + last.height() + 24 == scroll.viewport().height()


def test_scrolling_through_a_long_chat_shows_every_message_once_in_order(window: MainWindow) -> None:
    scroll = shown_chat(window, 80)
    bar = scroll.verticalScrollBar()
    met: list[int] = []
    for _ in range(2000):
        check(scroll)
        met += [i for i in sorted(seen(scroll), reverse=True) if i not in met]
        if bar.value() == 0:
            break
        bar.setValue(bar.value() - 150)
        if len(met) % 3 == 0:
            settle()
    assert met == list(range(79, -1, -1))
    assert seen(scroll)[0] == 24


def test_what_one_reads_does_not_move_while_heights_above_turn_out_otherwise(window: MainWindow) -> None:
    scroll = shown_chat(window, 600)
    bar = scroll.verticalScrollBar()
    for value in (bar.maximum() // 2, bar.maximum() // 3, 9000):
        bar.setValue(value)
        before = read(scroll)
        settle()  # what is around it is laid out meanwhile
        assert read(scroll) == before
        # A step up brings what stood above, by as much as was scrolled.
        bar.setValue(bar.value() - 60)
        moved = read(scroll)
        common = before.keys() & moved.keys()
        assert common
        assert {moved[i] - before[i] for i in common} == {60}


def test_what_one_reads_does_not_move_when_an_answer_grows_below(window: MainWindow) -> None:
    scroll = shown_chat(window, 60)
    chat_id = window.chat_view.chat_id
    assert chat_id is not None
    window.controller.send(chat_id, "More")
    scroll.verticalScrollBar().setValue(3000)
    settle()
    before = read(scroll)
    for _ in range(10):
        say(window.controller, text(chat_id, "A line.\n\n" * 10))
        settle()
    assert read(scroll) == before
    assert not scroll.is_at_end


def test_the_message_at_the_top_stays_there_when_the_window_becomes_narrower(window: MainWindow) -> None:
    scroll = shown_chat(window, 300)
    scroll.to_row(150)
    settle()
    assert min(seen(scroll)) == 150
    for width in (1000, 900, 700, 1240):
        window.resize(width, 800)
        settle()
        check(scroll)
        assert min(seen(scroll)) in (149, 150)
        assert seen(scroll)[150] == 24


def test_a_resize_at_the_end_stays_at_the_end(window: MainWindow) -> None:
    scroll = shown_chat(window, 300)
    for size in ((900, 800), (700, 500), (1240, 900)):
        window.resize(*size)
        settle()
        bar = scroll.verticalScrollBar()
        assert bar.value() == bar.maximum()
        assert 299 in seen(scroll)
        check(scroll)


def test_the_wheel_scrolls_over_words_and_code(window: MainWindow) -> None:
    scroll = shown_chat(window, 40)
    bar = scroll.verticalScrollBar()
    view = scroll.shown[-1][1]
    body = view.body
    before = bar.value()
    at = QPointF(20, 20)
    wheel = QWheelEvent(
        at,
        body.mapToGlobal(at),
        QPoint(),
        QPoint(0, 120),
        Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    # Qt hands on only what comes from a real wheel: to the message, and then to what it is in.
    for widget in (body, view):
        wheel.accept()
        QApplication.sendEvent(widget, wheel)
        assert not wheel.isAccepted()
    QApplication.sendEvent(scroll.viewport(), wheel)
    assert bar.value() == before - 60


def test_keys_scroll_where_a_message_has_the_keyboard(window: MainWindow) -> None:
    scroll = shown_chat(window, 200)
    bar = scroll.verticalScrollBar()
    body = scroll.shown[-1][1].body
    body.setFocus()
    QTest.keyClick(body, Qt.Key.Key_PageUp)
    page = bar.maximum() - bar.value()
    assert 0 < page <= scroll.viewport().height()
    QTest.keyClick(body, Qt.Key.Key_Up)
    assert bar.maximum() - bar.value() > page
    QTest.keyClick(body, Qt.Key.Key_Home)
    settle()
    assert seen(scroll)[0] == 24
    QTest.keyClick(body, Qt.Key.Key_End)
    settle()
    assert scroll.is_at_end
    assert 199 in seen(scroll)


def test_page_keys_scroll_while_one_writes(window: MainWindow) -> None:
    scroll = shown_chat(window, 50)
    bar, edit = scroll.verticalScrollBar(), window.chat_view.input.edit
    QTest.keyClicks(edit, "half a question")
    QTest.keyClick(edit, Qt.Key.Key_PageUp)
    up = bar.maximum() - bar.value()
    assert 0 < up < scroll.viewport().height()
    QTest.keyClick(edit, Qt.Key.Key_PageDown)
    assert scroll.is_at_end
    edit.setPlainText("line\n" * 40)
    QTest.keyClick(edit, Qt.Key.Key_PageDown)
    assert edit.verticalScrollBar().value() > 0, "a long text scrolls by itself"
    assert scroll.is_at_end


def test_tab_reaches_messages_that_were_not_there(window: MainWindow) -> None:
    """From the last message back to one a few screens above, every step in sight and none left out."""
    scroll = shown_chat(window, 120)
    last = scroll.view(119)
    assert isinstance(last, AssistantMessage)
    last.fork_button.setFocus(Qt.FocusReason.TabFocusReason)
    met = [119]
    for _ in range(400):
        focused = QApplication.focusWidget()
        assert focused is not None
        QTest.keyClick(focused, Qt.Key.Key_Backtab)
        settle()
        focused = QApplication.focusWidget()
        assert focused is not None
        (index,) = [i for i, view in scroll.shown if view.isAncestorOf(focused)]
        y = focused.mapTo(scroll.viewport(), QPoint(0, 0)).y()
        assert 0 <= y <= scroll.viewport().height() - focused.height()
        if index != met[-1]:
            met.append(index)
        if index == 95:
            break
    assert met == list(range(119, 94, -1))


def test_a_question_that_is_being_written_again_survives_a_look_elsewhere_in_the_chat(window: MainWindow) -> None:
    scroll = shown_chat(window, 300)
    view = scroll.view(298)
    assert isinstance(view, UserMessage)
    view.edit_button.click()
    assert view.editor is not None
    QTest.keyClicks(view.editor.edit, " indeed")
    written = view.editor.text
    bar = scroll.verticalScrollBar()
    bar.setValue(0)
    settle()
    window.chat_view.input.edit.setFocus()
    scroll.to_end()
    settle()
    again = scroll.view(298)
    assert isinstance(again, UserMessage)
    assert again.editor is not None
    assert again.editor.text == written


def test_a_message_far_above_can_be_edited_and_forked(window: MainWindow) -> None:
    scroll = shown_chat(window, 300)
    chat_id = window.chat_view.chat_id
    assert chat_id is not None
    scroll.to_row(20)
    settle()
    view = scroll.view(20)
    assert isinstance(view, UserMessage)
    view.edit_button.click()
    assert view.editor is not None
    view.editor.edit.setPlainText("Something else")
    view.editor.send.click()
    settle()
    assert [turn.content for turn in window.controller.chats[chat_id].turns[20:]] == ["Something else", ""]
    say(window.controller, text(chat_id, "Well"), ended(chat_id))
    settle()
    check(scroll)
    assert max(seen(scroll)) == 21
    answer = scroll.view(21)
    assert isinstance(answer, AssistantMessage)
    answer.fork_button.click()
    settle()
    assert window.chat_view.chat_id != chat_id
    assert len(scroll.shown) > 0
    check(scroll)


def test_a_widget_that_showed_another_message_before_shows_only_its_own(window: MainWindow) -> None:
    scroll = shown_chat(window, 200)
    chat = window.controller.chats[window.chat_view.chat_id or 0]
    bar = scroll.verticalScrollBar()
    rng = random.Random(3)
    for _ in range(25):
        bar.setValue(rng.randrange(bar.maximum()))
        settle()
        for index, view in scroll.shown:
            turn = chat.turns[index]
            assert view.body.text == turn.content
            assert turn.content[:40] in view.body.accessibleName()
            assert isinstance(view, UserMessage) == (turn.role == "user")


def test_a_failure_and_a_waiting_line_are_not_left_on_other_messages(window: MainWindow) -> None:
    scroll = shown_chat(window, 100)
    chat = window.controller.chats[window.chat_view.chat_id or 0]
    for index in range(1, 100, 10):
        chat.turns[index].kind, chat.turns[index].note = "failed", f"Failure {index}"
    window.show_chat(None)
    window.show_chat(chat.id)
    bar = scroll.verticalScrollBar()
    found = set()
    while True:
        settle()
        for index, view in scroll.shown:
            if isinstance(view, AssistantMessage):
                failure = view.failure_words
                assert failure == (f"Failure {index}" if index % 10 == 1 else "")
                found.add(index)
        if bar.value() == 0:
            break
        bar.setValue(bar.value() - 500)
    assert found == set(range(1, 100, 2))


def test_the_line_of_what_is_not_read_any_more_is_far_above(window: MainWindow) -> None:
    shown_chat(window, 200)
    chat_id = window.chat_view.chat_id
    assert chat_id is not None
    window.controller.send(chat_id, "More")
    say(window.controller, TurnsDropped(chat_id, 100), text(chat_id, "x"), ended(chat_id))
    settle()
    check_line(window, before=100)


def check_line(window: MainWindow, before: int) -> None:
    scroll = window.chat_view.conversation
    scroll.to_row(before)
    settle()
    view = scroll.view(before)
    assert view is not None
    line = next(w for w in scroll.viewport().findChildren(QWidget) if type(w).__name__ == "DroppedLine")
    assert line.isVisible()
    above = scroll.view(before - 1)
    assert above is not None
    assert above.y() + above.height() < line.y() < line.y() + line.height() < view.y()


def test_selecting_in_another_message_ends_the_first_selection(window: MainWindow) -> None:
    scroll = shown_chat(window, 4)
    first, second = (view.body for _, view in scroll.shown[-2:])
    first.selectAll()
    assert first.has_selection
    second.selectAll()
    assert (first.has_selection, second.has_selection) == (False, True)


def test_what_is_selected_is_still_selected_after_a_look_elsewhere(window: MainWindow) -> None:
    scroll = shown_chat(window, 300)
    view = scroll.shown[-1][1]
    view.body.setFocus()
    view.body.selectAll()
    words = view.body.selected_text
    bar = scroll.verticalScrollBar()
    bar.setValue(0)
    settle()
    QTest.keyClick(view.body, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == words
    assert words.startswith("Answer 299")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_short_chat_begins_at_the_top(window: MainWindow, n: int) -> None:
    say(window.controller, ModelReady(INFO))
    chat_id = window.controller.new_chat()
    window.controller.chats[chat_id].turns = [Turn("user" if i % 2 == 0 else "assistant", "Short") for i in range(n)]
    window.show_chat(chat_id)
    settle()
    scroll = window.chat_view.conversation
    assert seen(scroll)[0] == 24
    assert scroll.verticalScrollBar().maximum() == 0
    check(scroll)


def test_a_chat_that_was_scrolled_is_followed_again_after_one_asks(window: MainWindow) -> None:
    scroll = shown_chat(window, 100)
    chat_id = window.chat_view.chat_id
    assert chat_id is not None
    scroll.verticalScrollBar().setValue(0)
    settle()
    window.chat_view.input.set_text("And?")
    QTest.keyClick(window.chat_view.input.edit, Qt.Key.Key_Return)
    for _ in range(20):
        say(window.controller, text(chat_id, "A line.\n\n" * 5))
        settle()
        assert scroll.is_at_end
        assert 101 in seen(scroll)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_done_the_picture_has_no_holes(window: MainWindow, seed: int) -> None:
    scroll = shown_chat(window, 120)
    chat_id = window.chat_view.chat_id
    assert chat_id is not None
    chat, rng, bar = window.controller.chats[chat_id], random.Random(seed), scroll.verticalScrollBar()
    for _ in range(120):
        match rng.randrange(9):
            case 0:
                bar.setValue(rng.randrange(bar.maximum() + 1))
            case 1 | 2:
                bar.setValue(bar.value() + rng.randrange(-900, 900))
            case 3:
                window.resize(rng.randrange(640, 1400), rng.randrange(480, 1000))
            case 4:
                settle()
            case 5 if not chat.answering:
                window.controller.send(chat_id, "More " * rng.randrange(1, 90))
            case 5 | 6 if chat.answering:
                say(window.controller, text(chat_id, ANSWER[: rng.randrange(len(ANSWER))] * rng.randrange(1, 5)))
            case 7 if chat.answering:
                say(window.controller, ended(chat_id))
            case 7 if len(chat.turns) > 20:
                window.controller.edit_message(chat_id, len(chat.turns) // 2 * 2 - 2, "Something else")
            case 8:
                views = [view for _, view in scroll.shown if isinstance(view, UserMessage) and not chat.answering]
                if views and (view := rng.choice(views)).editor is None:
                    view.edit("Being written again\n" * rng.randrange(1, 20))
                elif views:
                    view.end_editing()
        scroll.settle()
        if scroll.isVisible():
            check(scroll)
            assert bar.value() <= bar.maximum()
            assert not scroll.is_at_end or bar.value() == bar.maximum()
            for index, shown in scroll.shown:
                assert shown.body.text == chat.turns[index].content
            for index in seen(scroll):
                shown = scroll.bring(index)
                assert shown.x() >= 0
                assert shown.x() + shown.width() <= scroll.viewport().width()


@pytest.mark.parametrize(
    "words",
    ["word " * 200_000, "x" * 200_000, "a line of words\n" * 10_000, ">" * 500 + " deep", "*" * 60_000],
    ids=["1 MB", "one line", "10,000 lines", "quotes", "asterisks"],
)
def test_a_huge_message_is_sent_scrolled_and_copied(window: MainWindow, words: str) -> None:
    say(window.controller, ModelReady(INFO))
    window.chat_view.input.set_text(words)
    QTest.keyClick(window.chat_view.input.edit, Qt.Key.Key_Return)
    settle()
    scroll = window.chat_view.conversation
    chat_id = window.chat_view.chat_id
    assert chat_id is not None
    say(window.controller, text(chat_id, words), ended(chat_id))
    for _ in range(2000):
        QApplication.processEvents()
        if not any(view.body.is_reading for _, view in scroll.shown):
            break
    bar = scroll.verticalScrollBar()
    assert bar.maximum() > 20_000 or len(words) < 1000
    for part in range(11):
        bar.setValue(bar.maximum() * part // 10)
        settle()
        check(scroll)
        assert sum(view.body.n_laid_out for _, view in scroll.shown) < 300
    answer = next(view for _, view in reversed(scroll.shown) if isinstance(view, AssistantMessage))
    answer.hover_buttons[0].click()
    assert QGuiApplication.clipboard().text() == words


def tall_chat(window: MainWindow) -> Conversation:
    """A chat with answers that are higher than three windows."""
    said = "\n\n".join(["A paragraph of some words."] * 120)
    shown_chat(window, 2)
    chat_id = window.controller.new_chat()
    window.controller.chats[chat_id].turns = [
        Turn("user", f"Question {i}") if i % 2 == 0 else Turn("assistant", said) for i in range(40)
    ]
    window.show_chat(chat_id)
    settle()
    return window.chat_view.conversation


@pytest.mark.parametrize("other", [False, True], ids=["no chat", "a shorter one"])
def test_another_chat_is_shown_while_a_button_of_a_message_has_the_keyboard(window: MainWindow, other: bool) -> None:
    shown_chat(window, 2)
    short = window.chat_view.chat_id if other else None
    scroll = shown_chat(window, 100)
    scroll.verticalScrollBar().setValue(300)
    settle()
    view = [view for _, view in scroll.shown if isinstance(view, UserMessage)][1]
    view.edit_button.setFocus(Qt.FocusReason.TabFocusReason)
    window.show_chat(short)
    settle()
    assert len(scroll.shown) == (2 if other else 0)
    assert QApplication.focusWidget() is window.chat_view.input.edit


@pytest.mark.parametrize("by_keyboard", [True, False])
def test_a_question_stays_where_it_is_when_one_edits_it_and_gives_up(window: MainWindow, by_keyboard: bool) -> None:
    scroll = tall_chat(window)
    scroll.to_row(20)
    settle()
    view = scroll.view(20)
    assert isinstance(view, UserMessage)
    before = view.y()
    if by_keyboard:
        view.edit_button.setFocus(Qt.FocusReason.TabFocusReason)
    view.edit_button.click()
    settle()
    assert view.y() == before
    assert view.editor is not None
    QTest.keyClick(view.editor.edit, Qt.Key.Key_Escape)
    settle()
    assert scroll.view(20) is view
    assert view.y() == before


def test_nothing_scrolls_when_the_button_that_has_the_keyboard_is_disabled(window: MainWindow) -> None:
    scroll = tall_chat(window)
    scroll.to_row(20)
    settle()
    view = scroll.view(20)
    assert isinstance(view, UserMessage)
    before = scroll.verticalScrollBar().value()
    view.edit_button.setFocus(Qt.FocusReason.TabFocusReason)
    view.edit_button.setEnabled(False)
    settle()
    assert scroll.verticalScrollBar().value() == before


def rests(scroll: Conversation) -> bool:
    """Whether nothing is left to be laid out, soon or around what can be seen."""
    settle()
    return not any(timer.isActive() for timer in scroll.findChildren(QTimer) if timer.isSingleShot())


def test_the_window_rests_when_the_theme_changes_while_a_question_is_edited(window: MainWindow) -> None:
    scroll = shown_chat(window, 20)
    view = scroll.view(18)
    assert isinstance(view, UserMessage)
    view.edit_button.click()
    assert rests(scroll)
    window.set_theme("dark")
    assert rests(scroll)


def test_the_window_rests_when_an_edit_of_a_long_question_is_gone_on_with(window: MainWindow) -> None:
    scroll = shown_chat(window, 2)
    chat_id = window.controller.new_chat()
    window.controller.chats[chat_id].turns = [Turn("user", "word " * 4_000), Turn("assistant", "Yes")]
    window.show_chat(chat_id)
    scroll.to_row(0)
    view = scroll.view(0)
    assert isinstance(view, UserMessage)
    view.edit_button.click()
    window.show_chat(None)
    window.show_chat(chat_id)
    assert rests(scroll)


def test_a_slider_that_is_let_go_is_where_the_next_step_goes_on_from(window: MainWindow) -> None:
    scroll = shown_chat(window, 600)
    bar = scroll.verticalScrollBar()
    for _ in range(3):
        bar.setSliderDown(True)
        bar.setSliderPosition(bar.maximum() // 2)
        settle()
        before = read(scroll)
        bar.setSliderDown(False)
        assert read(scroll) == before
        bar.setValue(bar.value() - 60)
        moved = read(scroll)
        common = before.keys() & moved.keys()
        assert common
        assert {moved[i] - before[i] for i in common} == {60}
        scroll.to_end()


def test_a_window_that_grows_to_the_end_of_the_chat_is_at_the_end(window: MainWindow) -> None:
    scroll = shown_chat(window, 4)
    chat_id = window.chat_view.chat_id
    assert chat_id is not None
    bar = scroll.verticalScrollBar()
    bar.setValue(bar.maximum() - 100)
    settle()
    assert bar.value() < bar.maximum()
    window.resize(window.width(), window.height() + 300)
    settle()
    assert scroll.is_at_end
    latest = scroll.findChild(QPushButton, "latest")
    assert latest is not None
    assert latest.isHidden()
    window.controller.send(chat_id, "More")
    say(window.controller, text(chat_id, "A line.\n\n" * 60))
    settle()
    assert bar.value() == bar.maximum()


@pytest.mark.parametrize("forwards", [False, True], ids=["up", "down"])
def test_tab_goes_through_messages_that_are_higher_than_the_window(window: MainWindow, forwards: bool) -> None:
    scroll = tall_chat(window)
    first = scroll.view(39)
    if forwards:
        scroll.to_row(10)
        settle()
        first = scroll.view(10)
    assert first is not None
    first.focus_order[-1].setFocus(Qt.FocusReason.TabFocusReason)
    met = [10 if forwards else 39]
    for _ in range(60):
        focused = QApplication.focusWidget()
        assert focused is not None
        QTest.keyClick(focused, Qt.Key.Key_Tab if forwards else Qt.Key.Key_Backtab)
        settle()
        focused = QApplication.focusWidget()
        assert focused is not None
        (index,) = [i for i, view in scroll.shown if view.isAncestorOf(focused)]
        y = focused.mapTo(scroll.viewport(), QPoint(0, 0)).y()
        assert 0 <= y <= scroll.viewport().height() - focused.height()
        if index != met[-1]:
            met.append(index)
        if index in (20, 29):
            break
    assert met == (list(range(10, 21)) if forwards else list(range(39, 28, -1)))


def test_the_tick_of_what_was_copied_is_not_left_on_other_messages(window: MainWindow) -> None:
    scroll = shown_chat(window, 200)
    for _, view in scroll.shown:
        for one in view.findChildren(CopyButton):
            one.click()
            assert one.accessibleName() == "Copied"
    bar = scroll.verticalScrollBar()
    bar.setValue(bar.maximum() // 2)
    settle()
    buttons = [one for _, view in scroll.shown for one in view.findChildren(CopyButton)]
    assert buttons
    assert all(one.accessibleName().startswith("Copy ") for one in buttons)


def test_a_click_with_shift_does_not_go_on_from_a_click_in_another_message(window: MainWindow) -> None:
    scroll = shown_chat(window, 200)
    last = scroll.view(198)
    assert last is not None
    QTest.mouseClick(last.body, Qt.MouseButton.LeftButton, pos=QPoint(5, 8))
    window.chat_view.input.edit.setFocus()
    bar = scroll.verticalScrollBar()
    for part in range(10):
        bar.setValue(bar.maximum() * part // 10)
        settle()
        if any(view is last for _, view in scroll.shown):
            break
    assert scroll.index_of(last) != 198
    QTest.mouseClick(last.body, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.ShiftModifier, QPoint(60, 8))
    assert not last.body.has_selection


def test_an_answer_that_begins_is_not_read_out_as_the_message_its_widget_showed_before(window: MainWindow) -> None:
    scroll = shown_chat(window, 200)
    chat_id = window.chat_view.chat_id
    assert chat_id is not None
    bar = scroll.verticalScrollBar()
    for part in range(5):
        bar.setValue(bar.maximum() * part // 5)
        settle()
    scroll.to_end()
    settle()
    window.controller.send(chat_id, "More")
    say(window.controller, text(chat_id, "Words"))
    settle()
    view = scroll.view(201)
    assert view is not None
    assert view.body.accessibleName() == "Answer"


def test_messages_keep_their_width_while_another_place_is_shown(window: MainWindow) -> None:
    window.resize(700, 700)
    scroll = shown_chat(window, 60)
    chat_id = window.chat_view.chat_id
    assert chat_id is not None
    before = scroll.shown[-1][1].width()
    window.show_compare()
    window.controller.send(chat_id, "More")
    say(window.controller, text(chat_id, "A line.\n\n" * 30), ended(chat_id))
    settle()
    assert {view.width() for _, view in scroll.shown} == {before}
    window.show_chats()
    settle()
    assert {view.width() for _, view in scroll.shown} == {before}
    check(scroll)


def test_a_question_that_is_being_written_again_survives_a_click_on_its_chat_in_the_list(window: MainWindow) -> None:
    scroll = shown_chat(window, 10)
    chat_id = window.chat_view.chat_id
    assert chat_id is not None
    view = scroll.view(8)
    assert isinstance(view, UserMessage)
    view.edit_button.click()
    assert view.editor is not None
    QTest.keyClicks(view.editor.edit, " indeed")
    written = view.editor.text
    window.sidebar.chats.chosen.emit(chat_id)
    settle()
    again = scroll.view(8)
    assert isinstance(again, UserMessage)
    assert again.editor is not None
    assert again.editor.text == written


def test_of_a_chat_that_opens_nothing_is_laid_out_but_its_end(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown_chat(window, 300)
    chat_id = window.chat_view.chat_id
    scroll = shown_chat(window, 300)
    scroll.verticalScrollBar().setValue(0)
    settle()
    laid_out: list[str] = []
    lay_out = AssistantMessage.lay_out

    def noted(view: AssistantMessage, width: int, top: int, bottom: int) -> int:
        laid_out.append(view.body.text.split("\n")[0])
        return lay_out(view, width, top, bottom)

    monkeypatch.setattr(AssistantMessage, "lay_out", noted)
    window.show_chat(chat_id)
    settle()
    check(scroll)
    assert "Answer 299" in laid_out
    assert "Answer 1" not in laid_out


@pytest.mark.parametrize("high", [1, 10, 50])
def test_the_window_rests_when_there_is_hardly_any_room_for_messages(window: MainWindow, high: int) -> None:
    scroll = shown_chat(window, 40)
    scroll.setFixedSize(300, high)
    assert rests(scroll)
    scroll.verticalScrollBar().setValue(1000)
    assert rests(scroll)


def test_a_screen_reader_meets_the_messages_from_top_to_bottom(window: MainWindow) -> None:
    scroll = shown_chat(window, 200)
    bar = scroll.verticalScrollBar()
    for value in (bar.maximum() // 2, 0, 2000, 1500):
        bar.setValue(value)
        settle()
        viewport = QAccessible.queryAccessibleInterface(scroll.viewport())
        met = [viewport.child(index).object() for index in range(viewport.childCount())]
        assert [one for one in met if isinstance(one, MessageView) and one.isVisible()] == [
            view for _, view in scroll.shown
        ]


def test_on_a_high_screen_an_answer_that_grows_has_only_its_last_paragraph_laid_out_again(window: MainWindow) -> None:
    window.resize(1200, 2400)
    scroll = shown_chat(window, 2)
    chat_id = window.chat_view.chat_id
    assert chat_id is not None
    window.controller.send(chat_id, "More")
    say(window.controller, text(chat_id, "\n\n".join(["A line."] * 600)))
    view = scroll.view(3)
    assert view is not None
    for _ in range(2000):
        QApplication.processEvents()
        if not view.body.is_reading:
            break
    assert rests(scroll)
    laid_out = {piece: piece.document for piece in view.body.pieces if piece.is_laid_out}
    assert len(laid_out) > 120
    for _ in range(3):
        say(window.controller, text(chat_id, " More."))
        assert rests(scroll)
        now = {piece: piece.document for piece in view.body.pieces[:-1] if piece.is_laid_out}
        assert len(now) > 120
        assert all(laid_out.get(piece) is document for piece, document in now.items())


def test_the_messages_are_still_there_after_a_change_of_theme(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    painted: dict[Body, bool] = {}
    paint = Body.paintEvent

    def noted(body: Body, event: QPaintEvent) -> None:
        visible = body.visibleRegion().boundingRect()
        painted[body] = body.is_laid_out(visible.top(), visible.bottom())
        paint(body, event)

    monkeypatch.setattr(Body, "paintEvent", noted)
    scroll = shown_chat(window, 60)
    for theme in ("dark", "light"):
        painted.clear()
        window.set_theme(theme)
        settle()
        assert painted
        assert {painted[view.body] for index, view in scroll.shown if index in seen(scroll)} == {True}
