"""The main window: sidebar, the chat or the comparison in the middle, the memory panel; menus and what they do."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QByteArray, Qt
from PySide6.QtGui import (
    QCloseEvent,
    QDragEnterEvent,
    QDragLeaveEvent,
    QDragMoveEvent,
    QDropEvent,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import QDialog, QHBoxLayout, QMainWindow, QStackedWidget, QVBoxLayout, QWidget

from app.ui.chat.answer_settings import AnswerSettings
from app.ui.chat.chat_view import ChatView
from app.ui.compare.compare_view import CompareView
from app.ui.look.confirm import confirm
from app.ui.look.theme import theme
from app.ui.memory.budget_dialog import BudgetDialog
from app.ui.memory.memory_panel import MemoryPanel
from app.ui.models.model_dialogs import ask_gguf_file, ask_model_folder, show_model_files
from app.ui.models.model_progress import ModelProgressBar
from app.ui.session import settings
from app.ui.session.controller import Controller
from app.ui.session.ports import EngineLike, StoreLike
from app.ui.session.settings import ChatSettings
from app.ui.shell.drops import DropZone
from app.ui.shell.header import Header
from app.ui.shell.menus import make_menus
from app.ui.shell.notice import Notices
from app.ui.sidebar.sidebar import Sidebar

# Below this width there is room for one side only.
NARROW = 980


class MainWindow(QMainWindow):
    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.controller = controller
        self.setWindowTitle("VeloxQuant Chat")
        self.setMinimumSize(640, 480)
        self.resize(1240, 800)
        self.sidebar = Sidebar(controller)
        self.chat_view = ChatView(controller)
        self.compare_view = CompareView(controller)
        self.memory_panel = MemoryPanel(controller)
        self.header = Header()
        self._pages = QStackedWidget()
        self._pages.addWidget(self.chat_view)
        self._pages.addWidget(self.compare_view)
        self._wants_memory = controller.store.setting(settings.MEMORY_PANEL, "1") == "1"
        self._wants_memory_narrow = False
        self._lay_out()
        self._connect()
        make_menus(self, self, controller)
        self._restore()
        newest = max(controller.chats, default=None)
        self.chat_view.show_chat(newest)
        self._after_switch()
        self._arrange()

    # ------------------------------------------------------------ verbs
    def show_chat(self, chat_id: int | None) -> None:
        self.chat_view.show_chat(chat_id)
        self._go(0)
        self._after_switch()
        self.chat_view.setFocus()

    def show_chats(self) -> None:
        self._go(0)

    def show_compare(self) -> None:
        self._go(1)
        self.compare_view.setFocus()

    def set_theme(self, name: str) -> None:
        """Light, dark or system."""
        theme().set_name(name)
        self.controller.remember(settings.THEME, name)

    def new_chat(self) -> None:
        """Show an empty chat with the chosen method: the one that is there already, or a new one."""
        choice = self.controller.last_choice
        empty = next((chat.id for chat in self.controller.chats.values() if chat.is_new), None)
        if empty is None:
            empty = self.controller.new_chat(choice)
        self.controller.set_choice(empty, choice)
        self.show_chat(empty)

    def _choice_changed(self) -> None:
        """A chat that has not begun takes over the method just picked."""
        shown = self.controller.chats.get(self.chat_view.chat_id or 0)
        if shown is not None:
            self.controller.set_choice(shown.id, self.controller.last_choice)
        self.chat_view.refresh()
        self._draw_header()

    def close_current(self) -> None:
        if self.chat_view.chat_id is not None and self._pages.currentIndex() == 0:
            self.ask_to_close(self.chat_view.chat_id)

    def ask_to_close(self, chat_id: int) -> None:
        """Delete a chat; one that holds messages only after asking."""
        chat = self.controller.chats.get(chat_id)
        if chat is None:
            return
        question, consequence = f"Delete “{chat.title}”?", "Its messages can't be brought back."
        if chat.turns and not confirm(self, question, consequence, "Delete"):
            return
        self.controller.close_chat(chat_id)

    def stop(self) -> None:
        """Stop what is being answered where one looks."""
        (self.compare_view if self._pages.currentIndex() else self.chat_view).stop()

    def toggle_memory(self) -> None:
        shown = not self.memory_panel.isVisibleTo(self)
        if self.width() < NARROW:
            self._wants_memory_narrow = shown
        else:
            self._wants_memory = shown
            self.controller.remember(settings.MEMORY_PANEL, "1" if shown else "0")
        self._arrange()

    def ask_budget(self) -> None:
        """Ask how much memory all chats may take."""
        controller = self.controller
        info, pool = controller.model.info, controller.memory.pool
        if info is None or pool is None:
            return
        dialog = BudgetDialog(info, pool, controller.drop_idle, self)
        if dialog.exec() == QDialog.DialogCode.Accepted:
            wanted = (dialog.max_bytes, dialog.drop_idle)
            if wanted != (pool.max_bytes, controller.drop_idle):
                controller.set_budget(*wanted)
        dialog.deleteLater()

    def ask_answer_settings(self, chat_id: int | None = None) -> None:
        """Ask how a chat, or the one that is shown, is to be answered."""
        controller = self.controller
        chat = controller.chats.get(chat_id or self.chat_view.chat_id or 0)
        info = controller.model.info
        chosen = chat.settings if chat else ChatSettings()
        dialog = AnswerSettings(chosen, controller.sampling, info.context_limit if info else None, self)
        if dialog.exec() == QDialog.DialogCode.Accepted and dialog.chosen != chosen:
            if chat is None:
                self.new_chat()
            controller.set_settings(chat.id if chat else self.chat_view.chat_id or 0, dialog.chosen)
        dialog.deleteLater()

    def open_model(self, path: str) -> None:
        """Open a GGUF file or a model folder."""
        self.controller.opening.open(path)

    def ask_gguf_file(self) -> None:
        """Open a GGUF file the person picks."""
        if path := ask_gguf_file(self, self.controller):
            self.open_model(path)

    def ask_model_folder(self) -> None:
        """Load a model from a folder the person picks."""
        if path := ask_model_folder(self, self.controller):
            self.open_model(path)

    def use_model(self, folder: str | None, name: str = "") -> None:
        """Use a model that is there already, or the default one; nothing where it is in use."""
        controller = self.controller
        if controller.model.phase != "ready" or controller.model_folder != folder:
            controller.opening.use(folder, name)

    def use_default_model(self) -> None:
        self.use_model(None)

    def show_model_files(self) -> None:
        """Show the folder of the models that were converted or downloaded."""
        if problem := show_model_files():
            self.controller.opening.tell(problem)

    # ------------------------------------------------------------ inside
    def _lay_out(self) -> None:
        centre = QWidget()
        centre.setObjectName("centre")
        middle = QVBoxLayout(centre)
        middle.setContentsMargins(0, 0, 0, 0)
        middle.setSpacing(0)
        middle.addWidget(self.header)
        middle.addWidget(self._pages, 1)
        sides = QHBoxLayout()
        sides.setContentsMargins(0, 0, 0, 0)
        sides.setSpacing(0)
        sides.addWidget(self.sidebar)
        sides.addWidget(centre, 1)
        sides.addWidget(self.memory_panel)
        whole = QWidget()
        layout = QVBoxLayout(whole)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        self.notices = Notices(self.controller)
        self.model_progress = ModelProgressBar(self.controller)
        layout.addWidget(self.notices)
        layout.addWidget(self.model_progress)
        layout.addLayout(sides, 1)
        self.setCentralWidget(whole)
        self.setAcceptDrops(True)
        self.drop_zone = DropZone(whole)

    def _connect(self) -> None:
        self.sidebar.place_chosen.connect(lambda place: self.show_compare() if place else self.show_chats())
        self.sidebar.new_chat_asked.connect(self.new_chat)
        self.sidebar.choice_changed.connect(self._choice_changed)
        self.sidebar.chats.chosen.connect(self.show_chat)
        self.sidebar.chats.close_asked.connect(self.ask_to_close)
        self.sidebar.chats.settings_asked.connect(self.ask_answer_settings)
        self.chat_view.chat_made.connect(lambda _: self._after_switch())
        self.chat_view.fork_made.connect(self.show_chat)
        for asks in (self.chat_view.budget_asked, self.compare_view.budget_asked, self.memory_panel.budget_asked):
            asks.connect(self.ask_budget)
        self.notices.model_folder_asked.connect(self.ask_model_folder)
        self.drop_zone.dropped.connect(self.open_model)
        self.drop_zone.refused.connect(self.controller.opening.tell)
        self.header.answers.clicked.connect(lambda: self.ask_answer_settings())
        self.header.memory.clicked.connect(self.toggle_memory)
        self.controller.chats_changed.connect(self._chats_changed)
        self.controller.chat_changed.connect(lambda _: self._draw_header())

    def _go(self, place: int) -> None:
        self._pages.setCurrentIndex(place)
        self.sidebar.places.choose(place)
        self._after_switch()

    def _after_switch(self) -> None:
        in_chats = self._pages.currentIndex() == 0
        self.sidebar.chats.show_current(self.chat_view.chat_id if in_chats else None)
        self._draw_header()

    def _draw_header(self) -> None:
        self.header.answers.setVisible(self._pages.currentIndex() == 0)
        if self._pages.currentIndex() == 1:
            self.header.show_place("Compare")
            return
        chat = self.controller.chats.get(self.chat_view.chat_id or 0)
        if chat is None:
            self.header.show_place("New chat", self.controller.last_choice.label)
        else:
            self.header.show_place(chat.title, chat.choice.label, chat.colour)

    def _chats_changed(self) -> None:
        shown = self.chat_view.chat_id
        if shown is not None and shown not in self.controller.chats:
            self.chat_view.show_chat(max(self.controller.chats, default=None))
        self._after_switch()

    def _arrange(self) -> None:
        """In a narrow window the memory panel is away until asked for, and then takes the sidebar's place."""
        narrow = self.width() < NARROW
        memory = self._wants_memory_narrow if narrow else self._wants_memory
        self.memory_panel.setVisible(memory)
        self.sidebar.setVisible(not (narrow and memory))
        self.header.memory.setChecked(memory)

    def _restore(self) -> None:
        saved = self.controller.store.setting(settings.GEOMETRY, "")
        if saved:
            self.restoreGeometry(QByteArray.fromBase64(saved.encode()))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        self.drop_zone.enter(event)

    def dragMoveEvent(self, event: QDragMoveEvent) -> None:
        self.drop_zone.move_over(event)

    def dragLeaveEvent(self, event: QDragLeaveEvent) -> None:
        self.drop_zone.leave()

    def dropEvent(self, event: QDropEvent) -> None:
        self.drop_zone.drop(event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.chat_view.setFocus(Qt.FocusReason.OtherFocusReason)

    def closeEvent(self, event: QCloseEvent) -> None:
        geometry = bytes(self.saveGeometry().toBase64().data()).decode()
        self.controller.remember(settings.GEOMETRY, geometry)
        self.controller.save_all()
        super().closeEvent(event)


def build_window(
    engine: EngineLike, store: StoreLike, restart_engine: Callable[[], EngineLike] | None = None
) -> MainWindow:
    """The whole window on an engine and a store. Show it, then call `window.controller.opening.start(path)`."""
    theme().set_name(store.setting(settings.THEME, "system"))
    controller = Controller(engine, store, restart_engine)
    with theme().dressed_once():
        window = MainWindow(controller)
    controller.setParent(window)
    return window
