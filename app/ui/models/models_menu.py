"""The submenu of the models that are on this computer, read anew each time it is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtGui import QActionGroup
from PySide6.QtWidgets import QMenu, QWidget

from app.ui.look.words import elided, size
from app.ui.session.controller import Controller

LONGEST = 48  # characters of a name; it comes from a file and may have any length


class ModelsMenu(QMenu):
    """`use` is told the folder (None: the default model's) and the name of the one that is chosen."""

    def __init__(self, controller: Controller, use: Callable[[str | None, str], object], parent: QWidget) -> None:
        super().__init__("Models", parent)
        self._controller, self._use = controller, use
        self.aboutToShow.connect(self.fill)
        self._say("Looking for models…")  # a menu without an entry could not be opened everywhere

    def fill(self) -> None:
        """List what is there now, the default model first and the one that is loaded checked."""
        from app.models.default_model import default_model_folder
        from app.models.imports import installed_models

        self.clear()
        controller = self._controller
        default = default_model_folder()
        try:
            found = sorted(installed_models(), key=lambda model: model.folder != default)
        except OSError as error:
            self._say(f"The models can't be listed: {error.strerror or error}")
            return
        group = QActionGroup(self)
        used = Path(controller.model_folder) if controller.model_folder else default
        for model in found:
            folder = None if model.folder == default else str(model.folder)
            # An ampersand would be taken for a shortcut's.
            action = self.addAction(f"{elided(model.name, LONGEST)} · {size(model.n_bytes)}".replace("&", "&&"))
            action.setCheckable(True)
            action.setChecked(controller.model.phase == "ready" and model.folder == used)
            action.setEnabled(controller.model.phase != "stopped")
            action.triggered.connect(lambda _=False, folder=folder, name=model.name: self._use(folder, name))
            group.addAction(action)
        if not found:
            self._say("No models yet")

    def _say(self, words: str) -> None:
        self.addAction(words).setEnabled(False)
