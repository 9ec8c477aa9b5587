"""Choosing another model: from the menu, and from the notice that one could not be loaded."""

from __future__ import annotations

import pytest
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFileDialog

from app.engine.messages import EngineStopped, LoadModel, ModelFailed, ModelReady
from app.ui.main_window import MainWindow
from tests.app.ui.conftest import INFO, ScriptedEngine, say
from tests.app.ui.test_window import press, visible_words


def item(window: MainWindow, text: str) -> QAction:
    return next(action for action in window.findChildren(QAction) if action.text() == text)


def pick(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """Let the system's folder dialog answer `folder`; "" is cancelled."""
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: folder)


def test_another_model_can_be_opened_and_the_default_one_again(
    window: MainWindow, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, default = item(window, "Open model folder…"), item(window, "Use default model")
    assert not opened.isEnabled(), "the first one is being loaded"
    assert not default.isEnabled()
    say(window.controller, ModelReady(INFO))
    assert opened.isEnabled()
    assert not default.isEnabled(), "it is the default one"
    pick(monkeypatch, "/models/other")
    opened.trigger()
    assert engine.commands == [LoadModel("/models/other")]
    assert "Loading model" in visible_words(window)
    say(window.controller, ModelReady(INFO))
    default.trigger()
    assert engine.commands[-1] == LoadModel(None)


def test_a_cancelled_folder_dialog_changes_nothing(
    window: MainWindow, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(window.controller, ModelReady(INFO))
    pick(monkeypatch, "")
    window.ask_model_folder()
    assert not engine.commands
    assert window.controller.can_send


def test_a_stopped_engine_is_not_asked_for_a_model(window: MainWindow, engine: ScriptedEngine) -> None:
    say(window.controller, ModelReady(INFO), EngineStopped("RuntimeError: no memory"))
    assert not item(window, "Open model folder…").isEnabled()
    window.controller.load_model(None)
    assert not engine.commands
    assert "Restart engine" in visible_words(window)


def test_a_broken_model_folder_is_told_with_a_way_to_choose_another(
    window: MainWindow, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(window.controller, ModelFailed("The folder /x holds no model.", False))
    assert "The folder /x holds no model." in visible_words(window)
    assert "Download" not in visible_words(window)
    pick(monkeypatch, "/models/other")
    press(window, "Choose a model folder…")
    assert engine.commands == [LoadModel("/models/other")]


def test_a_missing_default_model_is_downloaded_rather_than_searched_for(window: MainWindow) -> None:
    say(window.controller, ModelFailed("The default model is not here yet.", True))
    assert "Choose a model folder…" not in visible_words(window)
