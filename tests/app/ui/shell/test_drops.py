"""Dropping a model on the window: what is taken, what is refused and how that looks while it is dragged."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QMimeData, QPoint, QPointF, QRect, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDragLeaveEvent, QDragMoveEvent, QDropEvent
from PySide6.QtWidgets import QWidget

from app.engine.messages import ImportModel, LoadModel, ModelReady
from app.ui.look.theme import theme
from app.ui.shell.main_window import MainWindow
from tests.app.ui.conftest import INFO, ScriptedEngine, say
from tests.app.ui.models.test_opening import make_folder, make_gguf
from tests.app.ui.shell.test_window import visible_words

LEFT, NONE, COPY = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier, Qt.DropAction.CopyAction


class Drag:
    """What the system sends a window while something is dragged over one of its widgets."""

    def __init__(self, over: QWidget, *places: str, words: str = "") -> None:
        self._over, self.data = over, QMimeData()
        if places:
            self.data.setUrls([QUrl(place) if "://" in place else QUrl.fromLocalFile(place) for place in places])
        if words:
            self.data.setText(words)

    def enter(self) -> bool:
        return self._send(QDragEnterEvent(QPoint(9, 9), COPY, self.data, LEFT, NONE))

    def move(self) -> bool:
        return self._send(QDragMoveEvent(QPoint(9, 9), COPY, self.data, LEFT, NONE))

    def leave(self) -> None:
        self._send(QDragLeaveEvent())

    def drop(self) -> bool:
        return self._send(QDropEvent(QPointF(9, 9), COPY, self.data, LEFT, NONE))

    def _send(self, event: QEvent) -> bool:
        """Whether it was taken."""
        event.setAccepted(False)
        QCoreApplication.sendEvent(self._over, event)
        return event.isAccepted()


@pytest.fixture
def ready(window: MainWindow) -> MainWindow:
    say(window.controller, ModelReady(INFO))
    return window


def over(window: MainWindow, place: str) -> QWidget:
    """The widget the system would send the drag to: what takes drops there, or the window."""
    return window.chat_view.input.edit.viewport() if place == "input" else window


def inside(window: MainWindow) -> QRect:
    """All of the window but its menu bar."""
    centre = window.centralWidget()
    assert centre is not None
    return centre.rect()


@pytest.mark.parametrize("place", ["window", "input"])
@pytest.mark.parametrize("theme_name", ["light", "dark"])
def test_a_gguf_file_is_opened(
    ready: MainWindow, engine: ScriptedEngine, tmp_path: Path, place: str, theme_name: str
) -> None:
    theme().set_name(theme_name)
    path = str(make_gguf(tmp_path / "small.gguf"))
    drag = Drag(over(ready, place), path)
    assert drag.enter()
    assert ready.drop_zone.isVisible()
    assert "Drop to open this model\nsmall.gguf" in visible_words(ready.drop_zone)
    assert ready.drop_zone.geometry() == inside(ready)
    picture = ready.grab().toImage()
    # Near its left edge, where the sidebar would be otherwise.
    ground, sidebar = picture.pixelColor(30, 400).name(), theme().tokens.sidebar
    assert ground != sidebar
    assert drag.move()
    assert drag.drop()
    assert not ready.drop_zone.isVisible()
    assert engine.commands == [ImportModel(path)]
    assert ready.chat_view.input.text == ""


def test_a_model_folder_is_loaded(ready: MainWindow, engine: ScriptedEngine, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "other")
    drag = Drag(ready, f"{folder}/")
    assert drag.enter()
    assert drag.drop()
    assert engine.commands == [LoadModel(folder)]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["a.gguf", "b.gguf"], "Only one model can be opened at a time."),
        (["notes.txt"], "it is not a model"),
        (["empty"], "has no config.json"),
        (["https://example.com/a.gguf"], "Download the file first"),
    ],
)
def test_other_things_are_refused_while_they_are_dragged_and_when_they_are_dropped(
    ready: MainWindow, engine: ScriptedEngine, tmp_path: Path, names: list[str], why: str
) -> None:
    for name in ("a.gguf", "b.gguf"):
        make_gguf(tmp_path / name)
    (tmp_path / "notes.txt").write_text("Hello")
    (tmp_path / "empty").mkdir()
    drag = Drag(ready, *(name if "://" in name else str(tmp_path / name) for name in names))
    drag.enter()
    assert not drag.move(), "the pointer says no"
    assert why in visible_words(ready.drop_zone).replace("\u200b", "")
    assert not drag.drop()
    assert not ready.drop_zone.isVisible()
    assert why in visible_words(ready.notices)
    assert not engine.commands


def test_the_target_goes_away_with_the_drag(ready: MainWindow, engine: ScriptedEngine, tmp_path: Path) -> None:
    drag = Drag(ready, str(make_gguf(tmp_path / "small.gguf")))
    drag.enter()
    drag.leave()
    assert not ready.drop_zone.isVisible()
    assert not engine.commands


def test_the_target_follows_the_size_of_the_window(ready: MainWindow, tmp_path: Path) -> None:
    Drag(ready, str(make_gguf(tmp_path / "small.gguf"))).enter()
    ready.resize(700, 520)
    QCoreApplication.processEvents()
    assert ready.drop_zone.geometry() == inside(ready)


def test_text_is_still_dropped_into_the_input_box(ready: MainWindow, engine: ScriptedEngine) -> None:
    drag = Drag(over(ready, "input"), words="Some words")
    assert drag.enter()
    assert not ready.drop_zone.isVisible()
    drag.move()
    assert drag.drop()
    assert ready.chat_view.input.text == "Some words"


def test_text_is_not_dropped_on_the_window(ready: MainWindow) -> None:
    assert not Drag(ready, words="Some words").enter()
    assert not ready.drop_zone.isVisible()
