"""The memory budget: what is sent and when, what is kept, and where one is asked for it."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QDialog

from app.engine.messages import BudgetSet, LoadModel, ModelReady, SetBudget
from app.store.store import Store
from app.ui.memory.budget_dialog import BudgetDialog
from app.ui.session.controller import Controller
from app.ui.shell import main_window
from app.ui.shell.main_window import MainWindow
from tests.app.ui.conftest import INFO, ScriptedEngine, report, say
from tests.app.ui.models.test_model_menu import item


def test_a_budget_is_sent_and_counts_once_it_is_confirmed(controller: Controller, engine: ScriptedEngine) -> None:
    heard: list[None] = []
    controller.memory_changed.connect(lambda: heard.append(None))
    controller.set_budget(60_000_000, True)
    assert engine.commands[-1] == SetBudget(60_000_000, True)
    assert (controller.budget, controller.drop_idle) == (None, False)
    say(controller, BudgetSet(60_000_000, True))
    assert (controller.budget, controller.drop_idle) == (60_000_000, True)
    assert heard


@pytest.mark.parametrize("budget", [60_000_000, None])
def test_a_start_sends_the_saved_budget_before_the_model_is_loaded(
    controller: Controller, store: Store, budget: int | None
) -> None:
    controller.set_budget(budget, True)
    fresh = ScriptedEngine()
    again = Controller(fresh, store)
    assert (again.budget, again.drop_idle) == (budget, True)
    again.start("/models/x")
    assert fresh.commands == [SetBudget(budget, True), LoadModel("/models/x")]
    again.save_all()


def test_without_a_saved_budget_the_engine_keeps_its_own(controller: Controller, engine: ScriptedEngine) -> None:
    controller.start()
    assert engine.commands == [LoadModel(None)]
    controller.save_all()


@pytest.mark.parametrize("written", ["much", "-5", "0", "¹²"])
def test_a_budget_that_cannot_be_read_is_no_limit(store: Store, engine: ScriptedEngine, written: str) -> None:
    store.set_setting("budget", written)
    controller = Controller(engine, store)
    assert controller.budget is None
    controller.start()
    assert engine.commands[0] == SetBudget(None, False)
    controller.save_all()


@pytest.mark.parametrize("accepted", [True, False])
def test_the_menu_and_the_panel_ask_for_it(
    window: MainWindow, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    asked: list[tuple[int | None, bool]] = []

    class Answered(BudgetDialog):
        def exec(self) -> int:
            asked.append((self._pool.max_bytes, self._drops.isChecked()))
            self._size.setText("40")
            self._drops.setChecked(True)
            return QDialog.DialogCode.Accepted if accepted else QDialog.DialogCode.Rejected

    monkeypatch.setattr(main_window, "BudgetDialog", Answered)
    window.memory_panel.budget_asked.emit()
    assert not asked, "nothing is known of the pool yet"
    say(window.controller, ModelReady(INFO), report(1.0))
    item(window, "Memory budget…").trigger()
    window.memory_panel.budget_asked.emit()
    assert asked == [(None, False)] * 2
    assert engine.told(SetBudget) == [SetBudget(40_000_000, True)] * 2 * accepted


def test_an_unchanged_budget_is_not_sent(
    window: MainWindow, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(window.controller, ModelReady(INFO), report(1.0))
    monkeypatch.setattr(BudgetDialog, "exec", lambda _: QDialog.DialogCode.Accepted)
    window.ask_budget()
    assert not engine.told(SetBudget)
