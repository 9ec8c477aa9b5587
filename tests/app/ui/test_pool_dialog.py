"""The dialog for the pool's size: what it asks in, what it sends, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.engine.messages import MemoryReport, ModelReady, PoolReport, ResizePool
from app.ui.main_window import MainWindow
from app.ui.pool_dialog import PoolDialog, block_bytes
from tests.app.ui.conftest import INFO, ScriptedEngine, say
from tests.app.ui.test_window import visible_words

POOL = PoolReport(16, 32_768, 4000, 0.01, 4000, 0, 4000, 500_000_000)  # 402.7 MB, of which 49.2 MB are in use


@pytest.fixture
def dialog(window: MainWindow, qtbot: QtBot) -> PoolDialog:
    made = PoolDialog(INFO, POOL, window)
    qtbot.addWidget(made)
    made.show()
    return made


def accept_with(size: str | None) -> Callable[[], None]:
    def act() -> None:
        dialog = QApplication.activeModalWidget()
        assert isinstance(dialog, PoolDialog)
        if size is not None:
            dialog._size.setText(size)
        dialog._apply.click()

    return act


def test_the_pool_size_is_asked_in_megabytes(dialog: PoolDialog) -> None:
    assert block_bytes(INFO, 16) == 46_080 / 60 * 16
    assert dialog._size.text() == "403"
    dialog._size.setText("100")
    assert dialog.n_blocks == round(100_000_000 / (46_080 / 60 * 16))
    assert "8,138 blocks: room for about 2,170 tokens" in visible_words(dialog)


@pytest.mark.parametrize(("size", "sent"), [(None, []), ("403", []), ("100", [ResizePool(8138)])])
def test_a_pool_size_left_as_it_was_changes_nothing(
    window: MainWindow, engine: ScriptedEngine, size: str | None, sent: list[ResizePool]
) -> None:
    say(window.controller, ModelReady(INFO), MemoryReport(1.0, (), POOL))
    QTimer.singleShot(0, accept_with(size))
    window.ask_pool_size()
    assert engine.told(ResizePool) == sent


def test_a_pool_smaller_than_what_is_in_use_is_refused_with_the_reason(dialog: PoolDialog) -> None:
    dialog._size.setText("49")
    assert not dialog._apply.isEnabled()
    assert "50 MB are in use; the pool can't be smaller until chats free memory." in visible_words(dialog)
    dialog._size.setText("50")
    assert dialog._apply.isEnabled()
    assert dialog.n_blocks >= POOL.blocks_in_use
    assert "are in use" not in visible_words(dialog)


def test_a_full_pool_can_be_left_as_it_is(window: MainWindow, qtbot: QtBot) -> None:
    dialog = PoolDialog(INFO, replace(POOL, blocks_in_use=POOL.n_blocks), window)
    qtbot.addWidget(dialog)
    assert dialog._apply.isEnabled()


@pytest.mark.parametrize("size", ["", "0"])
def test_no_size_is_not_a_pool_of_one_block(dialog: PoolDialog, size: str) -> None:
    dialog._size.setText(size)
    assert not dialog._apply.isEnabled()
    assert "Write a size from 1 to 1,000,000 MB." in visible_words(dialog)
