"""The dialog for the memory budget: what it asks in, what it sends, and what it says while one types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from PySide6.QtCore import QLocale, Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app.engine.messages import MemoryReport, ModelReady, PoolReport, SetBudget
from app.ui.look.theme import theme
from app.ui.memory.budget_dialog import BudgetDialog, about
from app.ui.shell.main_window import MainWindow
from tests.app.ui.conftest import INFO, ScriptedEngine, say
from tests.app.ui.shell.test_window import press, visible_words

BUDGET = 402_653_184  # not a whole number of megabytes: shown as 403
POOL = PoolReport(16, 9000, 4000, 0.01, 4000, 0, 4000, 500_000_000, bytes_in_use=41_000_000, max_bytes=BUDGET)
NO_LIMIT = replace(POOL, max_bytes=None)

Ask = Callable[..., BudgetDialog]


@pytest.fixture
def ask(qtbot: QtBot) -> Ask:
    parent = QWidget()
    qtbot.addWidget(parent)

    def made(pool: PoolReport = POOL, drop_idle: bool = False) -> BudgetDialog:
        dialog = BudgetDialog(INFO, pool, drop_idle, parent)
        dialog.show()
        return dialog

    return made


def write(dialog: BudgetDialog, size: str) -> None:
    """Type a size in place of the one that is there."""
    dialog._size.selectAll()
    QTest.keyClick(dialog._size, Qt.Key.Key_Delete)
    QTest.keyClicks(dialog._size, size)


def accept_with(size: str | None, tick: bool) -> Callable[[], None]:
    def act() -> None:
        dialog = QApplication.activeModalWidget()
        assert isinstance(dialog, BudgetDialog)
        if size is not None:
            write(dialog, size)
        if tick:
            dialog._drops.click()
        press(dialog, "Set budget")

    return act


def set_button(dialog: BudgetDialog) -> QPushButton:
    return next(b for b in dialog.findChildren(QPushButton) if b.text() == "Set budget")


def cut_off(dialog: BudgetDialog) -> list[str]:
    """The words there is not enough room for."""
    low = [made.text() for made in dialog.findChildren(QLabel) if made.height() < made.heightForWidth(made.width())]
    return low + [b.text() for b in dialog.findChildren(QPushButton) if b.height() < b.sizeHint().height()]


def test_the_budget_is_asked_in_megabytes_and_explained_in_tokens(ask: Ask) -> None:
    dialog = ask()
    assert dialog._size.text() == "403"
    assert "About 8,730 tokens uncompressed, more when compressed." in visible_words(dialog)
    write(dialog, "100")
    assert dialog.max_bytes == 100_000_000
    said = visible_words(dialog)
    assert "About 2,170 tokens uncompressed" in said
    assert "Memory is taken as it is needed, never all at once." in said


def test_a_budget_left_as_it_was_is_not_rounded(ask: Ask) -> None:
    dialog = ask()
    assert dialog.max_bytes == BUDGET
    write(dialog, "100")
    write(dialog, "403")
    assert dialog.max_bytes == BUDGET


@pytest.mark.parametrize(
    ("size", "tick", "sent"),
    [
        ("100", False, SetBudget(100_000_000, False)),
        (None, True, SetBudget(BUDGET, True)),
        ("30", True, SetBudget(30_000_000, True)),  # less than what is in use is allowed
        ("", False, SetBudget(None, False)),
    ],
)
def test_what_is_set_in_the_dialog_reaches_the_engine(
    window: MainWindow, engine: ScriptedEngine, size: str | None, tick: bool, sent: SetBudget
) -> None:
    say(window.controller, ModelReady(INFO), MemoryReport(1.0, (), POOL))
    QTimer.singleShot(0, accept_with(size, tick))
    press(window.memory_panel, "Budget…")
    assert engine.told(SetBudget) == [sent]


def test_a_budget_below_what_is_in_use_is_possible_and_says_what_follows(ask: Ask) -> None:
    dialog = ask()
    write(dialog, "40")
    assert set_button(dialog).isEnabled()
    assert dialog.max_bytes == 40_000_000
    follows = "chats that answer wait until some is freed, or end where they alone hold more than this"
    waits = f"41 MB of blocks are in use now: {follows}"
    assert f"{waits}." in visible_words(dialog)
    assert dialog._explained.property("voice") == "warn"
    dialog._drops.click()
    assert f"{waits}; idle chats are dropped." in visible_words(dialog)
    write(dialog, "41")
    assert "are in use now" not in visible_words(dialog)
    assert dialog._explained.property("voice") == "3"


@pytest.mark.parametrize(("in_use", "said"), [(41_000_001, "41.1 MB"), (1_234_567_800, "1,234.6 MB")])
def test_what_is_in_use_is_never_said_to_be_less_than_what_was_typed(ask: Ask, in_use: int, said: str) -> None:
    dialog = ask(replace(POOL, bytes_in_use=in_use))
    write(dialog, str(in_use // 1_000_000))
    assert f"{said} of blocks are in use now" in visible_words(dialog)


def test_no_limit_is_an_empty_field_and_stays_one(ask: Ask) -> None:
    dialog = ask(NO_LIMIT)
    assert dialog._size.text() == ""
    assert dialog._size.placeholderText() == "no limit"
    assert "No limit: chats may take as much as this computer has." in visible_words(dialog)
    QTest.keyClick(dialog._size, Qt.Key.Key_Return)
    assert dialog.result() == QDialog.DialogCode.Accepted
    assert dialog.max_bytes is None


def test_a_first_limit_can_be_set_and_a_limit_taken_away(ask: Ask) -> None:
    first = ask(NO_LIMIT)
    write(first, "500")
    assert first.max_bytes == 500_000_000
    last = ask()
    write(last, "")
    assert last.max_bytes is None
    assert set_button(last).isEnabled()


def test_zero_is_no_budget(ask: Ask) -> None:
    dialog = ask()
    write(dialog, "0")
    assert not set_button(dialog).isEnabled()
    assert "Write a size from 1 to 1,000,000 MB, or nothing for no limit." in visible_words(dialog)
    QTest.keyClick(dialog._size, Qt.Key.Key_Return)
    assert dialog.isVisible()


@pytest.mark.parametrize("language", [QLocale.Language.English, QLocale.Language.German])
def test_only_digits_can_be_written(ask: Ask, language: QLocale.Language) -> None:
    before = QLocale()
    QLocale.setDefault(QLocale(language))
    try:
        dialog = ask()
        write(dialog, "1,0.0 0-mb")
        assert dialog._size.text() == "1000"
        assert dialog.max_bytes == 1_000_000_000
    finally:
        QLocale.setDefault(before)


@pytest.mark.parametrize("drop_idle", [False, True])
def test_the_box_is_as_it_was_left_and_is_reached_by_keyboard(ask: Ask, drop_idle: bool) -> None:
    dialog = ask(drop_idle=drop_idle)
    assert dialog.drop_idle is drop_idle
    assert "Its messages stay and are read again when you go on with it." in visible_words(dialog)
    QTest.keyClick(dialog._size, Qt.Key.Key_Tab)
    QTest.keyClick(dialog._drops, Qt.Key.Key_Space)
    assert dialog._drops.hasFocus()
    assert dialog.drop_idle is not drop_idle
    assert dialog.max_bytes == BUDGET


@pytest.mark.parametrize("name", ["light", "dark"])
def test_a_ticked_box_looks_ticked(ask: Ask, name: str) -> None:
    theme().set_name(name)
    box = ask()._drops

    def has_accent() -> bool:
        image = box.grab().toImage()
        accent = theme().tokens.accent
        return any(image.pixelColor(x, y).name() == accent for x in range(16) for y in range(image.height()))

    assert not has_accent()
    box.setChecked(True)
    assert has_accent()


def test_nothing_moves_and_nothing_is_cut_off_while_one_types(ask: Ask) -> None:
    dialog = ask()
    QApplication.processEvents()
    assert not cut_off(dialog)
    assert dialog.height() == dialog.heightForWidth(dialog.width())
    heights = set()
    for size in ("403", "1", "0", ""):
        write(dialog, size)
        QApplication.processEvents()
        heights.add(dialog.height())
        assert not cut_off(dialog)
    assert len(heights) == 1
    write(dialog, "1000000")  # which has one line more to say
    QApplication.processEvents()
    assert not cut_off(dialog)


@pytest.mark.parametrize(
    ("number", "said"), [(0.4, 0), (999.9, 999), (8738.1, 8730), (21_701_388.9, 21_700_000), (1000, 1000)]
)
def test_about(number: float, said: int) -> None:
    assert about(number) == said
