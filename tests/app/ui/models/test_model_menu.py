"""Choosing another model: from the menu, and from the notice that one could not be loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QAction, QDesktopServices, QKeySequence
from PySide6.QtWidgets import QFileDialog, QMenu

from app.engine.messages import EngineStopped, ImportModel, LoadModel, ModelFailed, ModelReady
from app.models.verify import write_manifest
from app.ui.models.models_menu import ModelsMenu
from app.ui.shell.main_window import MainWindow
from tests.app.ui.conftest import INFO, ScriptedEngine, say
from tests.app.ui.shell.test_window import press, visible_words


@pytest.fixture
def other(tmp_path: Path) -> str:
    """What looks like a model folder; the scripted engine asks no more."""
    return str(make_model(tmp_path / "other"))


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the models that are on this computer, with none in it."""
    monkeypatch.setenv("VELOXQUANT_MODELS_DIR", str(tmp_path / "models"))
    return tmp_path / "models"


def make_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def install(folder: Path, name: str = "") -> Path:
    make_model(folder)
    write_manifest(folder, {"name": name or folder.name})
    return folder


def item(window: MainWindow, text: str) -> QAction:
    return next(action for action in window.findChildren(QAction) if action.text() == text)


def listed(window: MainWindow) -> list[QAction]:
    """The models of the submenu, as it is when it is opened."""
    menu = window.findChild(ModelsMenu)
    assert isinstance(menu, ModelsMenu)
    menu.aboutToShow.emit()
    return menu.actions()


def pick(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Let the system's dialogs answer `path`; "" is cancelled."""
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: path)
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (path, ""))


def test_the_file_menu_comes_first_and_has_its_standard_shortcuts(window: MainWindow) -> None:
    menus = [action.text() for action in window.menuBar().actions()]
    assert menus == ["File", "Edit", "View", "Chat"]
    file = window.menuBar().actions()[0].menu()
    assert isinstance(file, QMenu)
    assert [action.text() for action in file.actions() if not action.isSeparator()] == [
        "New chat",
        "Open GGUF file…",
        "Open model folder…",
        "Models",
        "Use default model",
        "Show model files",
        "Quit",
    ]
    assert item(window, "Open GGUF file…").shortcut() == QKeySequence("Ctrl+O")
    assert item(window, "Open model folder…").shortcut() == QKeySequence("Ctrl+Shift+O")
    assert item(window, "Quit").menuRole() == QAction.MenuRole.QuitRole


def test_another_model_can_be_opened_and_the_default_one_again(
    window: MainWindow, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    opened, default = item(window, "Open model folder…"), item(window, "Use default model")
    assert not default.isEnabled(), "the first one is being loaded"
    say(window.controller, ModelReady(INFO))
    assert not default.isEnabled(), "it is the default one"
    pick(monkeypatch, other)
    opened.trigger()
    assert engine.commands == [LoadModel(other)]
    assert "Loading model" in visible_words(window)
    say(window.controller, ModelReady(INFO))
    default.trigger()
    assert engine.commands[-1] == LoadModel(None)


def test_a_folder_opened_while_a_model_is_being_loaded_is_loaded_next(
    window: MainWindow, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    pick(monkeypatch, other)
    item(window, "Open model folder…").trigger()
    assert not engine.commands
    say(window.controller, ModelReady(INFO))
    assert engine.commands == [LoadModel(other)]


def test_a_gguf_file_is_picked_and_imported(
    window: MainWindow, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF")
    pick(monkeypatch, str(path))
    item(window, "Open GGUF file…").trigger()
    assert engine.commands == [ImportModel(str(path))]


@pytest.mark.parametrize("verb", ["ask_model_folder", "ask_gguf_file"])
def test_a_cancelled_dialog_changes_nothing(
    window: MainWindow, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    say(window.controller, ModelReady(INFO))
    pick(monkeypatch, "")
    getattr(window, verb)()
    assert not engine.commands
    assert window.controller.can_send


def test_the_dialogs_begin_where_a_model_was_found_last(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    pick(monkeypatch, other)
    window.ask_model_folder()
    begun: list[str] = []

    def cancelled(parent: object, title: str, place: str) -> str:
        begun.append(place)
        return ""

    monkeypatch.setattr(QFileDialog, "getExistingDirectory", cancelled)
    window.ask_model_folder()
    assert begun == [str(Path(other).parent)]


def test_a_stopped_engine_is_not_asked_for_a_model(window: MainWindow, engine: ScriptedEngine, other: str) -> None:
    say(window.controller, ModelReady(INFO), EngineStopped("RuntimeError: no memory"))
    assert not item(window, "Open model folder…").isEnabled()
    assert not item(window, "Open GGUF file…").isEnabled()
    window.controller.load_model(None)
    window.open_model(other)
    window.use_model(None)
    assert not engine.commands
    assert "Restart engine" in visible_words(window)


def test_a_broken_model_folder_is_told_with_a_way_to_choose_another(
    window: MainWindow, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    say(window.controller, ModelFailed("The folder /x holds no model.", False))
    assert "The folder /x holds no model." in visible_words(window)
    assert "Download" not in visible_words(window)
    pick(monkeypatch, other)
    press(window, "Choose a model folder…")
    assert engine.commands == [LoadModel(other)]


def test_a_missing_default_model_is_downloaded_rather_than_searched_for(window: MainWindow) -> None:
    say(window.controller, ModelFailed("The default model is not here yet.", True))
    assert "Choose a model folder…" not in visible_words(window)


def test_the_models_that_are_there_are_listed_with_the_default_one_first(
    window: MainWindow, engine: ScriptedEngine, models: Path
) -> None:
    say(window.controller, ModelReady(INFO))
    [nothing] = listed(window)
    assert (nothing.text(), nothing.isEnabled()) == ("No models yet", False)
    install(models / "SmolLM2-135M-Instruct")
    alpaca = install(models / "alpaca-00000000", "Alpaca & friends")
    default, second = listed(window)
    assert default.text().startswith("SmolLM2-135M-Instruct · ")
    assert second.text().startswith("Alpaca && friends · ")
    assert (default.isChecked(), second.isChecked()) == (True, False)
    second.trigger()
    assert engine.commands == [LoadModel(str(alpaca))]
    say(window.controller, ModelReady(INFO))
    assert [action.isChecked() for action in listed(window)] == [False, True]
    listed(window)[1].trigger()
    assert len(engine.commands) == 1, "it is in use"
    listed(window)[0].trigger()
    assert engine.commands[-1] == LoadModel(None)


def test_a_model_that_was_deleted_is_no_longer_listed(window: MainWindow, models: Path) -> None:
    gone = install(models / "gone-00000000")
    install(models / "here-00000000")
    assert len(listed(window)) == 2
    shutil.rmtree(gone)
    assert [action.text().partition(" · ")[0] for action in listed(window)] == ["here-00000000"]


def test_the_models_are_shown_in_the_file_manager(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch, models: Path
) -> None:
    shown: list[QUrl] = []
    answers = True

    def open_url(url: QUrl) -> bool:
        shown.append(url)
        return answers

    monkeypatch.setattr(QDesktopServices, "openUrl", open_url)
    item(window, "Show model files").trigger()
    assert shown == [QUrl.fromLocalFile(str(models))]
    assert models.is_dir()
    answers = False
    item(window, "Show model files").trigger()
    assert str(models) in visible_words(window)
