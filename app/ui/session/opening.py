"""Which model is used: opens GGUF files and folders, follows an import, and remembers what was used last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.engine.messages import (
    CancelImport,
    Command,
    ImportCancelled,
    ImportFailed,
    ImportModel,
    ImportProgress,
    ImportRefused,
    LoadModel,
    ModelImported,
)
from app.ui.session import settings
from app.ui.session.model_paths import Kind, kind_of, why_not
from app.ui.session.saving import Saving
from app.ui.session.state import Model, State

ImportEvent = ImportProgress | ModelImported | ImportFailed | ImportCancelled | ImportRefused


@dataclass
class Import:
    """A GGUF file that is being converted."""

    path: str
    stage: str = "Reading the file"
    fraction: float | None = None
    cancelling: bool = False

    @property
    def name(self) -> str:
        return Path(self.path).name


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that could be used now, but for the chats that are answering with another one."""

    name: str
    folder: str | None


class Opening(QObject):
    """The one place that decides when another model is loaded.

    Args:
        start_engine: Starts the worker, without a model.
        submit: Tells it something.

    Attributes:
        running: The import that goes on, if any.
        offer: What waits for the person's word, because using it would end answers.
        problem: Why something that was asked for could not be opened; it stays until dismissed.
        resumes: The model that is being loaded is the one used last, which nobody asked for in this run.
    """

    changed = Signal()
    model_changed = Signal()

    def __init__(
        self,
        state: State,
        saving: Saving,
        start_engine: Callable[[], None],
        submit: Callable[[Command], None],
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._state, self._saving = state, saving
        self._start_engine, self._submit = start_engine, submit
        self.running: Import | None = None
        self.offer: Offer | None = None
        self.problem = ""
        self.resumes = False
        self._next: Offer | None = None  # is loaded once the model that is being loaded has been
        self._waits_to_start = False  # nothing is loaded yet, because what is being imported may be there in a moment
        self._fallback: str | None = None  # what is loaded if it isn't
        self._alone = False  # nothing is

    # ------------------------------------------------------------ verbs
    def start(self, path: str | None = None, *, alone: bool = False) -> None:
        """Start the engine and open `path`, or the model used last.

        Args:
            path: A GGUF file or a model folder. If it can't be used, that is told and the model used last is opened.
            alone: Load nothing but `path` (or the default model), whatever happens.
        """
        self._alone = alone
        last = None if alone else self._used_last()
        kind = kind_of(path) if path is not None else None
        if path is not None and kind is Kind.GGUF:
            self._waits_to_start, self._fallback = True, last
            self._start_engine()
            self._state.model.stage = f"opening {Path(path).name}"
            self._import(path)
        elif path is not None and kind is Kind.FOLDER:
            self._start_with(path)
        elif path is not None and alone:
            self._start_engine()
            self._state.model = Model("failed", error=why_not(path))
        else:
            if path is not None:
                self.problem = why_not(path)
            self._resume(last)
            self._start_with(last)
        self.model_changed.emit()
        self.changed.emit()

    def open(self, path: str) -> None:
        """Open what a person named: import a GGUF file, load a folder, or say why neither is possible."""
        if self._refuses(_name(path)):
            return
        self.problem = ""  # of what was asked for before
        match kind_of(path):
            case Kind.GGUF:
                self._import(path)
            case Kind.FOLDER:
                self.use(path)
            case _:
                self.tell(why_not(path))

    def use(self, folder: str | None, name: str = "") -> None:
        """Load a model folder, or the default model for None; where that would end answers, offer it."""
        wanted = Offer(name or (_name(folder) if folder else "The default model"), folder)
        if self._refuses(wanted.name):
            return
        if self.would_end_answers:
            self.offer = wanted
        elif self._state.model.phase == "loading":
            self._next = wanted
        else:
            self._load(wanted)
        self.changed.emit()

    def load(self, folder: str | None) -> None:
        """Load the model in `folder`, or the default one for None; every chat's cache is made again for it."""
        self._state.model_folder = folder
        self._state.model = Model()
        self._submit(LoadModel(folder))
        self.model_changed.emit()

    @property
    def would_end_answers(self) -> bool:
        """Whether any answer would end with the model."""
        return any(holder.answering for holder in self._state.holders)

    def use_offered(self) -> None:
        """The person wants it now, whoever is answering."""
        offer, self.offer = self.offer, None
        if offer is not None:
            if self._state.model.can_change:
                self._load(offer)
            elif self._state.model.phase == "loading":
                self._next = offer
        self.changed.emit()

    def decline(self) -> None:
        self.offer = None
        self.changed.emit()

    def cancel(self) -> None:
        """End the running import."""
        if self.running is not None and not self.running.cancelling:
            self.running.cancelling = True
            self._submit(CancelImport())
            self.changed.emit()

    def tell(self, problem: str) -> None:
        """Say why something can't be opened."""
        if problem:
            self.problem = problem
        self.changed.emit()

    def dismiss_problem(self) -> None:
        self.problem = ""
        self.changed.emit()

    # ------------------------------------------------------------ what happens
    def take(self, event: ImportEvent) -> None:
        """Follow what the engine says of an import."""
        running = self.running
        match event:
            case ImportProgress(path, stage, fraction):
                if running is None:  # it was asked for before the end of another one was known here
                    self.running = running = Import(path)
                if running.path == path:
                    running.stage, running.fraction = stage, fraction
                    if self._waits_to_start and fraction and not self._alone:
                        self._start_meanwhile()  # it takes its time; there is another model to chat with until then
            case ModelImported(path, folder):
                self.running = None
                if self._waits_to_start:
                    self._waits_to_start = False
                    self._load(Offer(Path(path).stem, folder))
                else:
                    self.use(folder, Path(path).stem)
            case ImportFailed(_, message):
                self.running = None
                self._not_imported(message)
            case ImportCancelled():
                self.running = None
                self._not_imported("")
            case ImportRefused(_, message):
                self.tell(message)

    def model_is_ready(self) -> None:
        """The model was loaded: it is the one to open at the next start, and what waited for it can be loaded."""
        self.resumes = False
        self.forget_trial()
        folder = self._state.model_folder or ""
        if self._saving.setting(settings.MODEL) != folder:
            self._saving.remember(settings.MODEL, folder)
        self._go_on()

    def model_has_failed(self) -> None:
        self.forget_trial()
        self._go_on()

    def forget_trial(self) -> None:
        """The app has not ended in the middle of opening the model used last; or it does, and in good order."""
        if self._saving.setting(settings.TRIED):
            self._saving.remember(settings.TRIED, "")

    def engine_has_stopped(self) -> None:
        """Its import has ended with it."""
        self._next, self.offer, self._waits_to_start = None, None, False
        if self.running is not None:
            self.problem = f"“{self.running.name}” was not opened: the engine stopped. Restart it, then open it again."
            self.running = None

    # ------------------------------------------------------------ inside
    def _start_with(self, folder: str | None) -> None:
        self._start_engine()
        self._state.model_folder = folder
        self._submit(LoadModel(folder))

    def _used_last(self) -> str | None:
        """The folder of the model used last. None: the default one, also where the app died of opening it."""
        last, tried = self._saving.setting(settings.MODEL), self._saving.setting(settings.TRIED)
        if last and last == tried:
            self.problem = (
                f"The app ended while it was opening {last}, so the default model is opened instead. "
                f"If the computer's memory was full, close other programs, then open that model again."
            )
            self.forget_trial()
            return None
        return last or None

    def _resume(self, last: str | None) -> None:
        """The model used last is loaded now, which may end the app if there is not enough memory for it."""
        self.resumes = last is not None
        if last is not None:
            self._saving.remember(settings.TRIED, last)

    def _refuses(self, name: str) -> bool:
        """Whether nothing can be opened, after saying so."""
        if self._state.model.phase != "stopped":
            return False
        self.tell(f"“{name}” can't be opened: the engine has stopped. Restart it first.")
        return True

    def _import(self, path: str) -> None:
        if self.running is None:
            self.running = Import(path)
        # Where one is running the engine refuses, and says so.
        self._submit(ImportModel(path))
        self.changed.emit()

    def _load(self, wanted: Offer) -> None:
        self.offer = None
        self.resumes = False
        self.load(wanted.folder)

    def _go_on(self) -> None:
        wanted, self._next = self._next, None
        if wanted is not None:
            self.use(wanted.folder, wanted.name)

    def _not_imported(self, message: str) -> None:
        if self._waits_to_start and self._alone:
            self._waits_to_start = False
            self._state.model = Model("failed", error=message or "Opening the model was cancelled.")
            self.model_changed.emit()
            return
        self.tell(message)
        if self._waits_to_start:
            self._start_meanwhile()

    def _start_meanwhile(self) -> None:
        self._waits_to_start = False
        self._resume(self._fallback)
        self.load(self._fallback)


def _name(path: str) -> str:
    return Path(path).name or path
