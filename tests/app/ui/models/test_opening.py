"""Opening a GGUF file in the window: progress, cancel, failure, and what is loaded when. The engine is scripted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QApplication, QPushButton, QToolButton, QWidget

from app.engine.messages import (
    CacheChoice,
    CancelImport,
    EngineStopped,
    ImportCancelled,
    ImportFailed,
    ImportModel,
    ImportProgress,
    ImportRefused,
    LoadModel,
    ModelFailed,
    ModelImported,
    ModelReady,
    Send,
)
from app.store.store import Store
from app.ui.session import settings
from app.ui.session.controller import Controller
from app.ui.shell.main_window import MainWindow, build_window
from app.ui.shell.notice import Notice
from tests.app.ui.conftest import INFO, ScriptedEngine, ended, say, text
from tests.app.ui.shell.test_window import press, visible_words

ROOT = Path(__file__).parents[4]
MADE = "/models/small-00000000"


@pytest.fixture
def gguf(tmp_path: Path) -> str:
    return str(make_gguf(tmp_path / "small.gguf"))


@pytest.fixture
def ready(window: MainWindow) -> MainWindow:
    """The window with the default model loaded."""
    say(window.controller, ModelReady(INFO))
    return window


def make_gguf(path: Path) -> Path:
    path.write_bytes(b"GGUF")
    return path


def make_folder(path: Path) -> str:
    path.mkdir()
    (path / "config.json").write_text("{}")
    return str(path)


def asked(window: MainWindow) -> int:
    """A chat that is answering."""
    chat_id = window.controller.new_chat(CacheChoice("fp16"))
    assert window.controller.send(chat_id, "Hello")
    return chat_id


def loaded(engine: ScriptedEngine) -> list[LoadModel]:
    return [command for command in engine.commands if isinstance(command, LoadModel)]


def dismiss(window: QWidget) -> None:
    notice = next(found for found in window.findChildren(Notice) if found.isVisible())
    [away] = [found for found in notice.findChildren(QToolButton) if found.accessibleName() == "Dismiss"]
    away.click()


# ---------------------------------------------------------------- an import
def test_a_file_is_imported_with_its_progress_and_then_used(
    ready: MainWindow, engine: ScriptedEngine, gguf: str
) -> None:
    ready.open_model(gguf)
    assert engine.commands == [ImportModel(gguf)]
    say(ready.controller, ImportProgress(gguf, "Converting the weights", 0.42))
    said = visible_words(ready)
    assert "Opening small.gguf" in said
    assert "Converting the weights…" in said
    assert "42 %" in said
    assert ready.controller.can_send, "the model before serves on"
    say(ready.controller, ModelImported(gguf, MADE))
    assert engine.commands[1:] == [LoadModel(MADE)]
    say(ready.controller, ModelReady(INFO))
    assert "Opening small.gguf" not in visible_words(ready)


def test_chats_answer_while_a_file_is_imported(ready: MainWindow, engine: ScriptedEngine, gguf: str) -> None:
    ready.open_model(gguf)
    say(ready.controller, ImportProgress(gguf, "Converting", 0.1))
    chat_id = asked(ready)
    assert engine.told(Send)
    say(ready.controller, text(chat_id, "Hi."), ImportProgress(gguf, "Converting", 0.2), ended(chat_id))
    assert ready.controller.chats[chat_id].turns[-1].content == "Hi."
    assert not loaded(engine)


def test_a_percentage_is_not_shown_where_it_is_not_known(ready: MainWindow, gguf: str) -> None:
    ready.open_model(gguf)
    say(ready.controller, ImportProgress(gguf, "Another window is setting a model up", None))
    assert "%" not in visible_words(ready.model_progress)


def test_cancelling_is_said_at_once_and_nothing_is_left_of_it(
    ready: MainWindow, engine: ScriptedEngine, gguf: str
) -> None:
    ready.open_model(gguf)
    press(ready, "Cancel")
    assert engine.commands[1:] == [CancelImport()]
    assert "Cancelling…" in visible_words(ready)
    [cancel] = [found for found in ready.findChildren(QPushButton) if found.isVisible() and found.text() == "Cancel"]
    assert not cancel.isEnabled()
    say(ready.controller, ImportCancelled(gguf))
    assert not ready.model_progress.isVisible()
    assert ready.controller.can_send
    assert not loaded(engine)


def test_a_failure_stays_until_dismissed_and_the_model_stays_loaded(
    ready: MainWindow, engine: ScriptedEngine, gguf: str
) -> None:
    ready.open_model(gguf)
    why = f"The file {gguf} can't be converted: its architecture is “rwkv”. Choose another file."
    say(ready.controller, ImportFailed(gguf, why))
    assert why in visible_words(ready.notices)
    assert not ready.model_progress.isVisible()
    assert ready.controller.can_send
    say(ready.controller, ModelReady(INFO))
    assert why in visible_words(ready.notices)
    dismiss(ready)
    assert why not in visible_words(ready)
    assert not loaded(engine)


def test_a_second_file_is_refused_while_the_first_goes_on(
    ready: MainWindow, engine: ScriptedEngine, gguf: str, tmp_path: Path
) -> None:
    other = str(make_gguf(tmp_path / "other.gguf"))
    ready.open_model(gguf)
    ready.open_model(other)
    say(ready.controller, ImportRefused(other, "“small.gguf” is still being opened."))
    said = visible_words(ready)
    assert "“small.gguf” is still being opened." in said
    assert "Opening small.gguf" in said
    say(ready.controller, ModelImported(gguf, MADE))
    assert loaded(engine) == [LoadModel(MADE)]
    assert "“small.gguf” is still being opened." in visible_words(ready), "it may not have been read yet"
    ready.open_model(other)
    assert "“small.gguf” is still being opened." not in visible_words(ready)


def test_answers_are_not_cut_at_the_end_of_an_import(ready: MainWindow, engine: ScriptedEngine, gguf: str) -> None:
    chat_id = asked(ready)
    ready.open_model(gguf)
    say(ready.controller, text(chat_id, "Once"), ModelImported(gguf, MADE))
    assert not loaded(engine)
    assert "changing the model ends their answers" in visible_words(ready)
    say(ready.controller, ended(chat_id))
    assert "changing the model ends their answers" not in visible_words(ready)
    press(ready, "Use it now")
    assert loaded(engine) == [LoadModel(MADE)]
    assert "Use it now" not in visible_words(ready)


def test_a_model_can_be_used_at_once_in_spite_of_answers(ready: MainWindow, engine: ScriptedEngine, gguf: str) -> None:
    asked(ready)
    ready.open_model(gguf)
    say(ready.controller, ModelImported(gguf, MADE))
    press(ready, "Use it now")
    assert loaded(engine) == [LoadModel(MADE)]


def test_an_offer_can_be_declined(ready: MainWindow, engine: ScriptedEngine, tmp_path: Path) -> None:
    asked(ready)
    ready.open_model(make_folder(tmp_path / "other"))
    assert "Use it now" in visible_words(ready)
    [away] = [found for found in ready.model_progress.findChildren(QToolButton) if found.isVisible()]
    away.click()
    assert "Use it now" not in visible_words(ready)
    assert not loaded(engine)


def test_an_import_that_ends_while_a_model_is_loaded_waits_for_it(
    window: MainWindow, engine: ScriptedEngine, gguf: str
) -> None:
    window.open_model(gguf)
    say(window.controller, ModelImported(gguf, MADE))
    assert not loaded(engine)
    say(window.controller, ModelReady(INFO))
    assert loaded(engine) == [LoadModel(MADE)]


def test_an_import_ends_with_the_engine(ready: MainWindow, gguf: str) -> None:
    ready.open_model(gguf)
    say(ready.controller, EngineStopped("RuntimeError: no memory"))
    assert not ready.model_progress.isVisible()
    assert "“small.gguf” was not opened" in visible_words(ready.notices)
    say(ready.controller, ImportCancelled(gguf))
    assert "“small.gguf” was not opened" in visible_words(ready.notices)


# ---------------------------------------------------------------- what can't be opened
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere.gguf", "there is no such file or folder"),
        ("notes.txt", "it is not a model"),
        ("empty", "has no config.json"),
        ("files", "Open one of them instead, for example a.gguf"),
    ],
)
def test_what_is_no_model_is_refused_and_nothing_changes(
    ready: MainWindow, engine: ScriptedEngine, tmp_path: Path, name: str, why: str
) -> None:
    (tmp_path / "notes.txt").write_text("Hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "files").mkdir()
    make_gguf(tmp_path / "files" / "a.gguf")
    ready.open_model(str(tmp_path / name))
    assert why in visible_words(ready.notices)
    assert str(tmp_path / name) in visible_words(ready.notices)
    assert not engine.commands
    assert ready.controller.can_send


def test_a_gguf_file_of_another_name_is_known_by_its_first_bytes(
    ready: MainWindow, engine: ScriptedEngine, tmp_path: Path
) -> None:
    path = make_gguf(tmp_path / "model.bin")
    ready.open_model(str(path))
    assert engine.commands == [ImportModel(str(path))]


def test_a_long_failure_fits_into_a_narrow_window(ready: MainWindow, gguf: str) -> None:
    """A path has hardly a place to break, and must not widen the window or be cut off."""
    ready.resize(640, 560)
    ready.open_model(gguf)
    path = "/home/somebody/" + "averylongnamewithoutanybreak" * 8 + ".gguf"
    say(ready.controller, ImportFailed(gguf, f"The file {path} can't be converted. Choose another one."))
    QApplication.processEvents()
    assert ready.width() == 640
    [notice] = ready.notices.findChildren(Notice)
    assert notice.width() <= 640
    assert notice.height() > 80, "it wraps"
    assert path in visible_words(notice)


# ---------------------------------------------------------------- from start to start
@pytest.fixture
def start(engine: ScriptedEngine, store: Store, window: MainWindow) -> Iterator[MainWindow]:
    """A window that is about to start, after a model folder was used last."""
    store.set_setting(settings.MODEL, MADE)
    yield window
    window.controller.save_all()


def test_the_model_used_last_is_opened_at_the_next_start(start: MainWindow, engine: ScriptedEngine) -> None:
    start.controller.opening.start()
    assert engine.commands == [LoadModel(MADE)]


def test_a_model_is_remembered_once_it_could_be_loaded(ready: MainWindow, store: Store, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "other")
    ready.open_model(folder)
    assert store.setting(settings.MODEL, "") == ""
    say(ready.controller, ModelFailed("Too large.", False))
    assert store.setting(settings.MODEL, "") == ""
    ready.open_model(folder)
    say(ready.controller, ModelReady(INFO))
    assert store.setting(settings.MODEL, "") == folder
    ready.use_default_model()
    say(ready.controller, ModelReady(INFO))
    assert store.setting(settings.MODEL, "") == ""


def test_where_the_model_used_last_is_gone_the_default_one_is_a_click_away(
    start: MainWindow, engine: ScriptedEngine
) -> None:
    start.controller.opening.start()
    say(start.controller, ModelFailed(f"The folder {MADE} has no config.json.", False))
    assert "The model used last can't be opened any more." in visible_words(start.notices)
    assert MADE in visible_words(start.notices)
    press(start, "Use default model")
    assert engine.commands[-1] == LoadModel(None)
    say(start.controller, ModelReady(INFO))
    assert not start.notices.isVisible()


def test_a_model_that_the_app_died_of_is_not_opened_at_the_next_start(
    start: MainWindow, engine: ScriptedEngine, store: Store
) -> None:
    start.controller.opening.start()
    again = ScriptedEngine()
    after = build_window(again, store)
    after.show()
    after.controller.opening.start()
    assert again.commands == [LoadModel(None)]
    assert f"The app ended while it was opening {MADE}" in visible_words(after.notices)
    after.close()
    after.deleteLater()
    QCoreApplication.sendPostedEvents(after, QEvent.Type.DeferredDelete)


@pytest.mark.parametrize("ends", ["closed", "loaded", "failed"])
def test_a_model_that_was_opened_or_not_in_good_order_is_opened_at_the_next_start(
    start: MainWindow, store: Store, ends: str
) -> None:
    start.controller.opening.start()
    if ends == "closed":
        start.close()
    else:
        say(start.controller, ModelReady(INFO) if ends == "loaded" else ModelFailed("The disk is away.", False))
    again = ScriptedEngine()
    controller = Controller(again, store)
    controller.opening.start()
    controller.save_all()
    assert again.commands == [LoadModel(MADE)]


def test_a_folder_named_at_the_start_is_loaded_instead(
    start: MainWindow, engine: ScriptedEngine, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "other")
    start.controller.opening.start(folder)
    assert engine.commands == [LoadModel(folder)]


def test_a_file_named_at_the_start_is_used_without_loading_another_one_if_it_is_there(
    start: MainWindow, engine: ScriptedEngine, gguf: str
) -> None:
    start.controller.opening.start(gguf)
    assert "opening small.gguf" in visible_words(start)
    say(start.controller, ImportProgress(gguf, "Checking the file", None), ModelImported(gguf, MADE))
    assert engine.commands == [ImportModel(gguf), LoadModel(MADE)]


def test_while_a_file_named_at_the_start_is_converted_there_is_a_model_to_chat_with(
    start: MainWindow, engine: ScriptedEngine, gguf: str
) -> None:
    start.controller.opening.start(gguf)
    say(start.controller, ImportProgress(gguf, "Converting", 0.01), ImportProgress(gguf, "Converting", 0.02))
    assert engine.commands == [ImportModel(gguf), LoadModel(MADE)]
    say(start.controller, ModelReady(INFO), ModelImported(gguf, "/models/new"))
    assert engine.commands[2:] == [LoadModel("/models/new")]


def test_a_folder_opened_before_the_file_named_at_the_start_is_ready_comes_after_it(
    start: MainWindow, engine: ScriptedEngine, gguf: str, tmp_path: Path
) -> None:
    start.controller.opening.start(gguf)
    folder = make_folder(tmp_path / "other")
    start.open_model(folder)
    say(start.controller, ModelImported(gguf, "/models/new"), ModelReady(INFO))
    assert engine.commands[1:] == [LoadModel("/models/new"), LoadModel(folder)]


@pytest.mark.parametrize("ends", [ImportFailed, ImportCancelled])
def test_where_a_file_named_at_the_start_is_not_imported_the_model_used_last_is_loaded(
    start: MainWindow, engine: ScriptedEngine, gguf: str, ends: type[ImportFailed] | type[ImportCancelled]
) -> None:
    start.controller.opening.start(gguf)
    say(start.controller, ImportFailed(gguf, "It is damaged.") if ends is ImportFailed else ImportCancelled(gguf))
    assert engine.commands[1:] == [LoadModel(MADE)]
    assert ("It is damaged." in visible_words(start)) == (ends is ImportFailed)


def test_a_path_named_at_the_start_that_is_not_there_is_told_in_the_window(
    start: MainWindow, engine: ScriptedEngine
) -> None:
    start.controller.opening.start("/nowhere/model.gguf")
    assert "/nowhere/model.gguf can't be opened: there is no such file or folder." in visible_words(start.notices)
    assert engine.commands == [LoadModel(MADE)]


def test_the_tour_has_no_other_model_than_its_own(start: MainWindow, engine: ScriptedEngine, gguf: str) -> None:
    start.controller.opening.start(gguf, alone=True)
    say(start.controller, ImportProgress(gguf, "Converting", 0.5))
    assert engine.commands == [ImportModel(gguf)]
    say(start.controller, ImportFailed(gguf, "It is damaged."))
    assert engine.commands == [ImportModel(gguf)]
    assert (start.controller.model.phase, start.controller.model.error) == ("failed", "It is damaged.")


def test_the_tour_does_not_open_the_model_used_last(start: MainWindow, engine: ScriptedEngine) -> None:
    start.controller.opening.start(alone=True)
    assert engine.commands == [LoadModel(None)]


# ---------------------------------------------------------------- files the system opens with the app
def run_application(script: str, *arguments: str) -> list[str]:
    """The lines a script prints that makes an Application of its own, of which a process can have one."""
    head = (
        "import sys\n"
        "from PySide6.QtCore import QCoreApplication, QUrl\n"
        "from PySide6.QtGui import QFileOpenEvent\n"
        "from app.ui.shell.application import Application\n"
        "app = Application(sys.argv[:1])\n"
        "def opened(place):\n"
        "    QCoreApplication.sendEvent(app, QFileOpenEvent(QUrl(place)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", head + script, *arguments],
        cwd=ROOT,
        env=os.environ | {"QT_QPA_PLATFORM": "offscreen"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_a_file_opened_by_the_system_waits_until_somebody_can_open_it() -> None:
    script = (
        "opened('file:///a/first.gguf'); opened('file:///a/second.gguf')\n"
        "print(app.take_first()); print(app.take_first())\n"
        "opened('file:///a/folder/')\n"
        "app.open_with(print)\n"
        "opened('file:///a/third.gguf'); opened('https://example.com/a.gguf')\n"
    )
    assert run_application(script) == [
        "/a/second.gguf",
        "None",
        "/a/folder",
        "/a/third.gguf",
        "https://example.com/a.gguf",
    ]


def test_what_the_system_opens_is_opened_in_the_window(gguf: str) -> None:
    script = (
        "from app.store.store import Store\n"
        "from app.ui.shell.main_window import build_window\n"
        "from tests.app.ui.conftest import ScriptedEngine\n"
        "engine = ScriptedEngine()\n"
        "window = build_window(engine, Store(':memory:'))\n"
        "app.open_with(window.open_model)\n"
        "opened(QUrl.fromLocalFile(sys.argv[1]).toString()); opened('https://example.com/a.gguf')\n"
        "print(*engine.commands)\n"
        "print(window.controller.opening.problem)\n"
    )
    commands, problem = run_application(script, gguf)
    assert commands == str(ImportModel(gguf))
    assert "https://example.com/a.gguf can't be opened" in problem


def test_a_file_opened_in_the_moment_another_one_ends_has_its_progress_and_cancel(
    ready: MainWindow, engine: ScriptedEngine, gguf: str, tmp_path: Path
) -> None:
    ready.open_model(gguf)
    second = str(make_gguf(tmp_path / "second.gguf"))
    ready.open_model(second)  # the engine has ended the first, and the window hasn't heard of it yet
    say(ready.controller, ImportFailed(gguf, "It is damaged."), ImportProgress(second, "Converting", 0.5))
    assert "Opening second.gguf" in visible_words(ready)
    press(ready, "Cancel")
    assert engine.commands[-1] == CancelImport()
