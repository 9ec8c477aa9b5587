"""Starts the application: `python -m app`. Shows the window first; the model is loaded behind it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.bundle import is_packaged

if TYPE_CHECKING:
    from PySide6.QtCore import QTimer
    from PySide6.QtWidgets import QWidget

# How long the worker may take to end. With what closing the window takes, the process is gone within two seconds.
PATIENCE_S = 1.0

QUIT_SIGNALS = (signal.SIGINT, signal.SIGTERM)

COMMAND = Path(sys.argv[0]).name if is_packaged() else "python -m app"  # what people type to start this

NO_DISPLAY = (
    "There is no display to open a window on (neither DISPLAY nor WAYLAND_DISPLAY is set). "
    f"Start it from a desktop session, or run `{COMMAND} --tour FOLDER` to have it take pictures of itself instead."
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="Chat with a local model, and see what its memory of each chat costs."
    )
    parser.add_argument("path", metavar="PATH", nargs="?", help="a GGUF file or an mlx-lm model folder to open")
    parser.add_argument("--model", metavar="PATH", help="the same; without either, the model used last is opened")
    parser.add_argument("--tour", metavar="DIR", type=Path, help="run three chats and write pictures of them to DIR")
    parser.add_argument("--theme", choices=("system", "light", "dark"), help="colours (default: as chosen last)")
    parser.add_argument(
        "--pool-blocks", metavar="N", type=_positive, help="no more blocks than this, whatever the memory budget is"
    )
    parser.add_argument("--data", metavar="DIR", type=Path, help="where chats and settings are kept")
    options = parser.parse_args(arguments)
    if options.path is not None and options.model is not None:
        parser.error("a model is named twice: give either PATH or --model, not both")
    named = options.path if options.path is not None else options.model
    options.model = None if named is None else str(Path(named).expanduser().absolute())
    if options.tour is not None and options.model is not None and not Path(options.model).exists():
        parser.error(f"there is no file or folder {options.model}")
    return options


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        if "QT_QPA_PLATFORM" not in os.environ:
            if options.tour is None:
                print(NO_DISPLAY, file=sys.stderr)
                return 1
            os.environ["QT_QPA_PLATFORM"] = "offscreen"
            os.environ.setdefault("QT_SCALE_FACTOR", "2")  # pictures for a screen of today
    return run(options)


def run(options: argparse.Namespace) -> int:
    for number in QUIT_SIGNALS:
        signal.signal(number, lambda *_: os._exit(0))  # until there is a window, there is nothing to put in order
    from dataclasses import replace

    from platformdirs import user_data_path
    from PySide6.QtWidgets import QMessageBox

    from app.engine.engine import DEFAULT_POOL, Engine
    from app.store.store import Store, StoreError
    from app.ui.shell.application import Application
    from app.ui.shell.main_window import build_window

    app = Application(sys.argv[:1])
    pool = DEFAULT_POOL
    if options.pool_blocks:
        pool = replace(pool, n_blocks=options.pool_blocks, grow_on_exhaustion=False)
    engines = [Engine(pool)]

    def restart() -> Engine:
        engines.append(Engine(pool))
        return engines[-1]

    try:
        if options.tour is not None:
            store = Store(":memory:")  # the tour's chats are nobody's, and nobody's chats belong on its pictures
        else:
            folder = options.data or user_data_path("VeloxQuant Chat", appauthor=False)
            store = Store(folder / "chats.sqlite3")
    except (StoreError, OSError) as error:
        print(error, file=sys.stderr)
        if options.tour is None:
            QMessageBox.critical(None, "VeloxQuant Chat", str(error))
        return 1
    window = build_window(engines[0], store, restart)
    if options.theme:
        window.set_theme(options.theme)
    heartbeat = quit_on_signals(window)
    window.show()
    # The window is on screen before the worker starts and imports MLX, which takes seconds.
    app.processEvents()
    window.controller.opening.start(app.take_first() or options.model, alone=options.tour is not None)
    app.open_with(window.open_model)
    if options.tour is not None:
        from app.ui.shell.tour import run_tour

        code = int(run_tour(app, window, options.tour))
        window.close()
    else:
        # Closed before the application waits for events: Qt would not hear of it any more.
        code = app.exec() if window.isVisible() else 0
    heartbeat.stop()
    store.close()
    if not engines[-1].shutdown(PATIENCE_S):
        # The worker is inside one long call of MLX, or still importing it, and can't be interrupted; waiting for it
        # would keep a process without a window alive. Everything is saved: closing the window and the store did that.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def quit_on_signals(window: QWidget) -> QTimer:
    """Let Ctrl+C and a polite kill close the window like its own button does."""
    from PySide6.QtCore import QTimer
    from PySide6.QtWidgets import QApplication

    def leave() -> None:
        window.close()
        QApplication.exit(0)  # a dialog may be open, which runs an event loop of its own

    for number in QUIT_SIGNALS:
        signal.signal(number, lambda *_: QTimer.singleShot(0, leave))
    # Python runs signal handlers between its own instructions only, and there are none while Qt waits for events.
    heartbeat = QTimer(window)
    heartbeat.timeout.connect(lambda: None)
    heartbeat.start(100)
    return heartbeat


if __name__ == "__main__":
    sys.exit(main())
