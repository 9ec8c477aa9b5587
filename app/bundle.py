"""Whether this is the packaged app, and where the files are that come with it. Qt-free."""

from __future__ import annotations

import sys
from pathlib import Path


def is_packaged() -> bool:
    """Whether this runs from the app that PyInstaller makes, where `sys.executable` is the app and no Python."""
    return bool(getattr(sys, "frozen", False))


def files_root() -> Path:
    """The folder that holds resources/ and, in the packaged app, models/: the bundle, or the checkout."""
    bundle = getattr(sys, "_MEIPASS", None)  # set by PyInstaller's boot loader
    return Path(bundle) if bundle else Path(__file__).resolve().parents[1]


def bundled_model(name: str) -> Path | None:
    """The folder of the model `name` inside the packaged app; None in a checkout."""
    return files_root() / "models" / name if is_packaged() else None
