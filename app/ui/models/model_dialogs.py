"""Asking the system for a model's place on the disk, and showing it where models are kept."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QFileDialog, QWidget

from app.ui.session import settings
from app.ui.session.controller import Controller

FILTER = "GGUF models (*.gguf *.GGUF);;All files (*)"


def ask_gguf_file(parent: QWidget, controller: Controller) -> str:
    """A GGUF file the person picks; "" when they don't."""
    path, _ = QFileDialog.getOpenFileName(parent, "Open GGUF file", _near(controller), FILTER)
    return _picked(path, controller)


def ask_model_folder(parent: QWidget, controller: Controller) -> str:
    """A folder the person picks; "" when they don't."""
    return _picked(QFileDialog.getExistingDirectory(parent, "Open model folder", _near(controller)), controller)


def show_model_files() -> str:
    """Open the folder of the models in the system's file manager. Returns why that is not possible, or ""."""
    from app.models.default_model import models_dir

    folder = models_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"The folder {folder} can't be made: {error.strerror or error}. Check its permissions."
    if QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder))):
        return ""
    return f"No file manager answered. The models are in {folder}."


def _near(controller: Controller) -> str:
    """Where to begin to look: where a model was found last."""
    place = Path(controller.store.setting(settings.PLACE, "") or Path.home())
    return str(place if place.is_dir() else Path.home())


def _picked(path: str, controller: Controller) -> str:
    if path:
        controller.remember(settings.PLACE, str(Path(path).parent))
    return path
