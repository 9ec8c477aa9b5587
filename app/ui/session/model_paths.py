"""What a path that somebody opens, drops or names is: a GGUF file, a model folder, or nothing that can be opened."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from PySide6.QtCore import QMimeData


class Kind(Enum):
    GGUF = "a GGUF file"
    FOLDER = "a model folder"
    OTHER = "no model"


def kind_of(path: str) -> Kind:
    """Which of them it is, as far as a look at its name and first bytes tells. Never raises."""
    from app.models.imports import is_gguf  # pulls in more than the first picture of the window needs

    place = Path(path)
    try:
        if place.is_dir():
            return Kind.FOLDER if (place / "config.json").is_file() else Kind.OTHER
        return Kind.GGUF if is_gguf(place) else Kind.OTHER
    except (OSError, ValueError):
        return Kind.OTHER  # why_not says which


def why_not(path: str) -> str:
    """A sentence on why a path of the kind OTHER can't be opened, and what can be."""
    place = Path(path)
    try:
        if place.is_dir():
            inside = sorted(entry.name for entry in place.iterdir() if entry.suffix.lower() == ".gguf")
            if inside:
                return f"The folder {path} holds GGUF files. Open one of them instead, for example {inside[0]}."
            return (
                f"The folder {path} can't be opened: it has no config.json. Choose the folder of an MLX model, "
                f"or a GGUF file."
            )
        if place.exists():
            place.open("rb").close()
            return f"{path} can't be opened: it is not a model. Choose a GGUF file, or the folder of an MLX model."
        return f"{path} can't be opened: there is no such file or folder. Check its name, or choose another one."
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"{path} can't be opened: {reason}. Check that you may read it, or choose another one."


def dragged(data: QMimeData) -> tuple[str, str]:
    """The one path that is being dragged, and why it can't be opened ("" where it can). ("", "") where no file is."""
    urls = data.urls() if data.hasUrls() else []
    if not urls:
        return "", ""
    if len(urls) > 1:
        return "", "Only one model can be opened at a time. Drop one GGUF file, or one model folder."
    if not urls[0].isLocalFile():
        return "", "Only what is on this computer can be opened. Download the file first, then drop it here."
    path = urls[0].toLocalFile().rstrip("/") or "/"
    return path, "" if kind_of(path) is not Kind.OTHER else why_not(path)
