"""The application, and the files that the system asks it to open."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent
from PySide6.QtGui import QFileOpenEvent, QGuiApplication
from PySide6.QtWidgets import QApplication

from app.ui.look.icons import app_icon


class Application(QApplication):
    """Takes what is opened with the app: on macOS a double-clicked file, or one that is dropped on the icon.

    What comes before there is a window to open it is kept: the first may come with the first turn of the event loop.
    It hears of it by `event`, which only the application's own events go through. An event filter would see those of
    every widget, which made the start a tenth slower.
    """

    def __init__(self, arguments: list[str]) -> None:
        QGuiApplication.setDesktopFileName("veloxquant-chat")  # by which Wayland finds the icon
        super().__init__(arguments)
        self.setApplicationName("VeloxQuant Chat")
        self.setWindowIcon(app_icon())
        self._open: Callable[[str], object] | None = None
        self._waiting: list[str] = []

    def take_first(self) -> str | None:
        """What the app was asked to open before it could, if anything: the last of it."""
        path = self._waiting[-1] if self._waiting else None
        self._waiting.clear()
        return path

    def open_with(self, opens: Callable[[str], object]) -> None:
        """Let every path be opened by `opens` from now on."""
        self._open = opens
        if (path := self.take_first()) is not None:
            opens(path)

    def event(self, event: QEvent) -> bool:
        if event.type() != QEvent.Type.FileOpen or not isinstance(event, QFileOpenEvent):
            return super().event(event)
        path = (event.file() or event.url().toString()).rstrip("/") or "/"
        if self._open is None:
            self._waiting.append(path)
        else:
            self._open(path)
        return True
