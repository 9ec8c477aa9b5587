"""The editor: as high as its text up to a limit, every character kept, and very long lines wrapped the quick way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtCore import QMimeData, Qt, QUrl
from PySide6.QtGui import QTextCursor, QTextOption
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QTextEdit
from pytestqt.qtbot import QtBot

from app.ui.chat.message_editor import MessageEditor
from app.ui.look.growing_edit import LONG_LINE, MAX_LINES, GrowingEdit
from app.ui.look.input_box import InputBox
from app.ui.shell.menus import _in_focus

AT_WORDS = QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere
ANYWHERE = QTextOption.WrapMode.WrapAnywhere
LONG = "a" * (LONG_LINE + 1)
SHIFT, CTRL = Qt.KeyboardModifier.ShiftModifier, Qt.KeyboardModifier.ControlModifier


def pasted(edit: GrowingEdit, text: str) -> None:
    mime = QMimeData()
    mime.setText(text)
    edit.insertFromMimeData(mime)


def as_set(edit: GrowingEdit, text: str) -> None:
    edit.setPlainText(text)


PUT = pytest.mark.parametrize("put", [as_set, pasted])
Put = Callable[[GrowingEdit, str], None]


@pytest.fixture
def box(qtbot: QtBot) -> InputBox:
    made = InputBox("Write a message", "Message")
    qtbot.addWidget(made)
    made.resize(600, 60)
    made.show()
    made.edit.setFocus()
    return made


@pytest.fixture
def edit(box: InputBox) -> GrowingEdit:
    return box.edit


def lines_high(edit: GrowingEdit) -> float:
    QApplication.processEvents()
    return (edit.height() - 4) / edit.fontMetrics().lineSpacing()


def scrolls(edit: GrowingEdit) -> bool:
    QApplication.processEvents()
    return edit.verticalScrollBar().maximum() > 0


# ------------------------------------------------------------ height
@PUT
@pytest.mark.parametrize("n", [1, 2, 3, MAX_LINES - 1, MAX_LINES])
def test_it_is_as_high_as_its_lines(edit: GrowingEdit, put: Put, n: int) -> None:
    put(edit, "\n".join("gj" for _ in range(n)))
    assert lines_high(edit) == n
    assert not scrolls(edit)
    assert not edit.verticalScrollBar().isVisible()


@PUT
@pytest.mark.parametrize("text", ["x\n" * MAX_LINES, "\n" * 10_000, "word " * 2000, LONG, LONG * 20, "x\u2028" * 9])
def test_beyond_its_limit_it_scrolls(edit: GrowingEdit, put: Put, text: str) -> None:
    put(edit, text)
    assert lines_high(edit) == MAX_LINES
    assert scrolls(edit)
    assert edit.verticalScrollBar().isVisible()
    edit.setPlainText("")
    assert lines_high(edit) == 1
    assert not edit.verticalScrollBar().isVisible()


def test_a_line_that_wraps_counts_as_many_as_it_takes(edit: GrowingEdit) -> None:
    edit.setPlainText("some words " * 14)
    wide = lines_high(edit)
    assert wide > 1
    edit.window().resize(300, 60)
    assert lines_high(edit) > wide
    edit.window().resize(600, 60)
    assert lines_high(edit) == wide


def test_it_grows_with_what_is_typed_and_nothing_scrolls_away(edit: GrowingEdit) -> None:
    for n in range(1, MAX_LINES + 1):
        QTest.keyClicks(edit, "line")
        assert lines_high(edit) == n
        assert edit.verticalScrollBar().value() == 0
        QTest.keyClick(edit, Qt.Key.Key_Return, SHIFT)
    assert lines_high(edit) == MAX_LINES
    assert edit.verticalScrollBar().value() == 1
    assert edit.rect().contains(edit.cursorRect())
    QTest.keyClick(edit, Qt.Key.Key_Backspace)
    assert lines_high(edit) == MAX_LINES
    assert edit.verticalScrollBar().value() == 0


def test_one_that_may_be_higher_is(qtbot: QtBot) -> None:
    editor = MessageEditor("\n".join("x" for _ in range(12)))
    qtbot.addWidget(editor)
    editor.resize(600, 400)
    editor.show()
    assert lines_high(editor.edit) == 12


# ------------------------------------------------------------ wrapping
@PUT
def test_a_long_line_is_wrapped_anywhere_and_short_ones_at_words_again(edit: GrowingEdit, put: Put) -> None:
    put(edit, f"short\n{LONG}\nshort")
    assert edit.wordWrapMode() == ANYWHERE
    put(edit, "x")
    edit.setPlainText("short again")
    assert edit.wordWrapMode() == AT_WORDS


@PUT
def test_many_lines_are_no_long_one(edit: GrowingEdit, put: Put) -> None:
    put(edit, "some words\n" * LONG_LINE)
    assert edit.wordWrapMode() == AT_WORDS


def test_a_line_becomes_long_by_typing_and_short_by_deleting(edit: GrowingEdit) -> None:
    edit.setPlainText(LONG[2:])
    assert edit.wordWrapMode() == AT_WORDS
    edit.moveCursor(QTextCursor.MoveOperation.End)
    QTest.keyClick(edit, Qt.Key.Key_B)
    assert edit.wordWrapMode() == ANYWHERE
    QTest.keyClick(edit, Qt.Key.Key_Backspace)
    assert edit.wordWrapMode() == AT_WORDS


def test_lines_become_a_long_one_by_joining(edit: GrowingEdit) -> None:
    edit.setPlainText(LONG[2:] + "\nb")
    edit.moveCursor(QTextCursor.MoveOperation.End)
    edit.moveCursor(QTextCursor.MoveOperation.StartOfLine)
    QTest.keyClick(edit, Qt.Key.Key_Backspace)
    assert edit.wordWrapMode() == ANYWHERE
    QTest.keyClick(edit, Qt.Key.Key_Return, SHIFT)
    assert edit.wordWrapMode() == AT_WORDS


def test_the_long_line_is_known_wherever_it_moves(edit: GrowingEdit) -> None:
    edit.setPlainText(f"first\n{LONG}\nlast")
    QTest.keyClicks(edit, "more before it ")
    QTest.keyClick(edit, Qt.Key.Key_Return, SHIFT)
    assert edit.wordWrapMode() == ANYWHERE
    edit.moveCursor(QTextCursor.MoveOperation.End)
    QTest.keyClick(edit, Qt.Key.Key_Backspace)
    assert edit.wordWrapMode() == ANYWHERE
    pasted(edit, f"\n{LONG}")
    cursor = QTextCursor(edit.document().findBlockByNumber(2))
    cursor.select(QTextCursor.SelectionType.BlockUnderCursor)
    cursor.removeSelectedText()
    assert edit.wordWrapMode() == ANYWHERE, "there is another one"
    edit.moveCursor(QTextCursor.MoveOperation.End)
    edit.moveCursor(QTextCursor.MoveOperation.StartOfBlock, QTextCursor.MoveMode.KeepAnchor)
    QTest.keyClick(edit, Qt.Key.Key_Delete)
    assert edit.wordWrapMode() == AT_WORDS
    assert edit.text == "more before it \nfirst\nlas\n"


def test_undo_and_redo_choose_the_wrapping_too(edit: GrowingEdit) -> None:
    pasted(edit, LONG)
    edit.selectAll()
    QTest.keyClick(edit, Qt.Key.Key_Delete)
    assert edit.wordWrapMode() == AT_WORDS
    edit.undo()
    assert (edit.wordWrapMode(), edit.text) == (ANYWHERE, LONG)
    edit.undo()
    assert (edit.wordWrapMode(), edit.text) == (AT_WORDS, "")
    edit.redo()
    assert (edit.wordWrapMode(), edit.text) == (ANYWHERE, LONG)


def test_a_text_that_was_set_can_not_be_undone(edit: GrowingEdit) -> None:
    edit.setPlainText("a draft")
    assert not edit.document().isUndoAvailable()
    assert edit.textCursor().position() == 0
    QTest.keyClicks(edit, "x")
    edit.undo()
    assert edit.text == "a draft"


# ------------------------------------------------------------ what is kept
@PUT
@pytest.mark.parametrize(
    "text",
    [
        "one\ntwo\n\nthree\n",
        "  kept\t at both ends  \n",
        "10\u00a0km",  # which keeps number and unit on one line
        "emoji 😀 👩‍👩‍👧‍👦 and é, e\u0301, \u200b, \ufffc",
        "a\x00b",
        "שלום",
        LONG,
        "*" * 60_000,
        "`" * 50_000,
        "😀" * 20_000,
    ],
)
def test_texts_are_kept_exactly(edit: GrowingEdit, put: Put, text: str) -> None:
    put(edit, text)
    assert edit.text == text


@PUT
def test_every_line_end_is_a_newline(edit: GrowingEdit, put: Put) -> None:
    put(edit, "a\r\nb\rc\u2028d\u2029e\nf")
    assert edit.text == "a\nb\nc\nd\ne\nf"
    assert edit.document().blockCount() == 6


def test_what_qt_itself_changes(edit: GrowingEdit) -> None:
    """A QTextEdit does the same, so nobody misses what `text` keeps besides."""
    plain = QTextEdit()
    for any_edit in (plain, edit):
        any_edit.setPlainText("10\u00a0km\u2028\x00")
        assert any_edit.toPlainText() == "10 km\n\x00"
    assert edit.text == "10\u00a0km\n\x00"


@pytest.mark.parametrize(
    ("text", "has"), [("", False), (" \n\t\u00a0\n\u2028", False), ("\n" * 500 + "x", True), ("x", True)]
)
def test_white_space_alone_is_nothing_to_send(box: InputBox, text: str, has: bool) -> None:
    box.set_text(text)
    assert box.edit.has_words == has
    assert box.action.isEnabled() == has


# ------------------------------------------------------------ keys and drops
def test_shift_enter_begins_a_line_of_its_own(edit: GrowingEdit) -> None:
    edit.setPlainText("ab")
    edit.moveCursor(QTextCursor.MoveOperation.Right)
    QTest.keyClick(edit, Qt.Key.Key_Return, SHIFT)
    assert edit.text == "a\nb"
    assert edit.document().blockCount() == 2
    edit.selectAll()
    QTest.keyClick(edit, Qt.Key.Key_Return, SHIFT)
    assert edit.text == "\n"
    edit.undo()
    assert edit.text == "a\nb"


def test_enter_and_ctrl_enter_submit_and_esc_is_left_to_the_window(box: InputBox, qtbot: QtBot) -> None:
    box.set_text("Hello")
    for modifier in (Qt.KeyboardModifier.NoModifier, CTRL):
        with qtbot.waitSignal(box.sent) as sent:
            QTest.keyClick(box.edit, Qt.Key.Key_Return, modifier)
        assert sent.args == ["Hello"]
    QTest.keyClick(box.edit, Qt.Key.Key_Escape)
    assert box.text == "Hello"


def test_tab_leaves_it(box: InputBox) -> None:
    box.set_text("Hello")
    QTest.keyClick(box.edit, Qt.Key.Key_Tab)
    assert box.text == "Hello"
    assert not box.edit.hasFocus()


def test_a_link_is_text(edit: GrowingEdit) -> None:
    mime = QMimeData()
    mime.setUrls([QUrl("https://example.org/")])
    edit.insertFromMimeData(mime)
    assert edit.text == "https://example.org/"


def test_the_edit_menu_works_in_it(box: InputBox) -> None:
    edit = box.edit
    box.activateWindow()
    edit.setFocus()
    QApplication.processEvents()
    assert QApplication.focusWidget() is edit
    QTest.keyClicks(edit, "Hello")
    for verb, left in (("undo", ""), ("redo", "Hello"), ("selectAll", "Hello"), ("cut", ""), ("paste", "Hello")):
        _in_focus(verb)
        assert edit.text == left, verb
