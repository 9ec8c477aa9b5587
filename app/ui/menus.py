"""The menu bar: every verb of the window with its standard shortcut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QApplication, QLineEdit, QMenu, QTextEdit

from app.ui.models_menu import ModelsMenu
from app.ui.theme import NAMES, theme

if TYPE_CHECKING:
    from app.ui.main_window import MainWindow

Keys = QKeySequence | QKeySequence.StandardKey | str


def make_menus(window: MainWindow) -> None:
    def add(menu: QMenu, text: str, keys: Keys | None, does: Callable[[], object]) -> QAction:
        action = menu.addAction(text)
        if keys is not None:
            action.setShortcut(QKeySequence(keys))
        action.triggered.connect(lambda _=False: does())
        return action

    bar = window.menuBar()
    file = bar.addMenu("File")
    add(file, "New chat", QKeySequence.StandardKey.New, window.new_chat)
    file.addSeparator()
    opens = [
        add(file, "Open GGUF file…", QKeySequence.StandardKey.Open, window.ask_gguf_file),
        add(file, "Open model folder…", "Ctrl+Shift+O", window.ask_model_folder),
    ]
    file.addMenu(ModelsMenu(window))
    default = add(file, "Use default model", None, window.use_default_model)
    add(file, "Show model files", None, window.show_model_files)
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
    add(view, "Chats", "Ctrl+1", window.show_chats)
    add(view, "Compare", "Ctrl+2", window.show_compare)
    view.addSeparator()
    add(view, "Show or hide memory", "Ctrl+M", window.toggle_memory)
    add(view, "Memory budget…", None, window.ask_budget)
    view.addSeparator()
    group = QActionGroup(window)
    titles = {"system": "As the system", "light": "Light", "dark": "Dark"}
    for name in NAMES:
        action = add(view, titles[name], None, partial(window.set_theme, name))
        action.setCheckable(True)
        action.setChecked(theme().name == name)
        group.addAction(action)

    chat = bar.addMenu("Chat")
    add(chat, "Stop answering", "Esc", window.stop)
    answers = add(chat, "Answer settings…", None, window.ask_answer_settings)
    answers.setMenuRole(QAction.MenuRole.NoRole)  # macOS would take it for the application's own settings
    add(chat, "Delete chat", "Ctrl+W", window.close_current)

    def enable() -> None:
        controller = window.controller
        for action in opens:
            action.setEnabled(controller.model.phase != "stopped")
        default_is_on = controller.model.phase == "ready" and controller.model_folder is None
        default.setEnabled(controller.model.can_change and not default_is_on)

    window.controller.model_changed.connect(enable)
    enable()


def _in_focus(verb: str) -> None:
    """Do what the Edit menu says where the keyboard is."""
    target = QApplication.focusWidget()
    if isinstance(target, QLineEdit | QTextEdit):
        getattr(target, verb)()
