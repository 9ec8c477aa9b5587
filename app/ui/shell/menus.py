"""The menu bar: every verb of the window with its standard shortcut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QApplication, QLineEdit, QMainWindow, QMenu, QPlainTextEdit, QTextEdit

from app.ui.look.theme import NAMES, theme
from app.ui.models.models_menu import ModelsMenu
from app.ui.session.controller import Controller

Keys = QKeySequence | QKeySequence.StandardKey | str


class Verbs(Protocol):
    """What the menus can ask for."""

    def new_chat(self) -> None: ...
    def ask_gguf_file(self) -> None: ...
    def ask_model_folder(self) -> None: ...
    def use_model(self, folder: str | None, name: str = "") -> None: ...
    def use_default_model(self) -> None: ...
    def show_model_files(self) -> None: ...
    def show_chats(self) -> None: ...
    def show_compare(self) -> None: ...
    def toggle_memory(self) -> None: ...
    def ask_budget(self) -> None: ...
    def set_theme(self, name: str) -> None: ...
    def stop(self) -> None: ...
    def ask_answer_settings(self) -> None: ...
    def close_current(self) -> None: ...


def make_menus(window: QMainWindow, verbs: Verbs, controller: Controller) -> None:
    """Fill the window's menu bar."""

    def add(menu: QMenu, text: str, keys: Keys | None, does: Callable[[], object]) -> QAction:
        action = menu.addAction(text)
        if keys is not None:
            action.setShortcut(QKeySequence(keys))
        action.triggered.connect(lambda _=False: does())
        return action

    bar = window.menuBar()
    file = bar.addMenu("File")
    add(file, "New chat", QKeySequence.StandardKey.New, verbs.new_chat)
    file.addSeparator()
    opens = [
        add(file, "Open GGUF file…", QKeySequence.StandardKey.Open, verbs.ask_gguf_file),
        add(file, "Open model folder…", "Ctrl+Shift+O", verbs.ask_model_folder),
    ]
    file.addMenu(ModelsMenu(controller, verbs.use_model, file))
    default = add(file, "Use default model", None, verbs.use_default_model)
    add(file, "Show model files", None, verbs.show_model_files)
    file.addSeparator()
    leave = add(file, "Quit", QKeySequence.StandardKey.Quit, window.close)
    leave.setMenuRole(QAction.MenuRole.QuitRole)

    edit = bar.addMenu("Edit")
    add(edit, "Cut", QKeySequence.StandardKey.Cut, lambda: _in_focus("cut"))
    add(edit, "Copy", QKeySequence.StandardKey.Copy, lambda: _in_focus("copy"))
    add(edit, "Paste", QKeySequence.StandardKey.Paste, lambda: _in_focus("paste"))
    edit.addSeparator()
    add(edit, "Select all", QKeySequence.StandardKey.SelectAll, lambda: _in_focus("selectAll"))

    view = bar.addMenu("View")
    add(view, "Chats", "Ctrl+1", verbs.show_chats)
    add(view, "Compare", "Ctrl+2", verbs.show_compare)
    view.addSeparator()
    add(view, "Show or hide memory", "Ctrl+M", verbs.toggle_memory)
    add(view, "Memory budget…", None, verbs.ask_budget)
    view.addSeparator()
    group = QActionGroup(window)
    titles = {"system": "As the system", "light": "Light", "dark": "Dark"}
    for name in NAMES:
        action = add(view, titles[name], None, partial(verbs.set_theme, name))
        action.setCheckable(True)
        action.setChecked(theme().name == name)
        group.addAction(action)

    chat = bar.addMenu("Chat")
    add(chat, "Stop answering", "Esc", verbs.stop)
    answers = add(chat, "Answer settings…", None, verbs.ask_answer_settings)
    answers.setMenuRole(QAction.MenuRole.NoRole)  # macOS would take it for the application's own settings
    add(chat, "Delete chat", "Ctrl+W", verbs.close_current)

    def enable() -> None:
        for action in opens:
            action.setEnabled(controller.model.phase != "stopped")
        default_is_on = controller.model.phase == "ready" and controller.model_folder is None
        default.setEnabled(controller.model.can_change and not default_is_on)

    controller.model_changed.connect(enable)
    enable()


def _in_focus(verb: str) -> None:
    """Do what the Edit menu says where the keyboard is."""
    target = QApplication.focusWidget()
    if isinstance(target, QLineEdit | QPlainTextEdit | QTextEdit):
        getattr(target, verb)()
