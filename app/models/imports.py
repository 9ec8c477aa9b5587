"""GGUF files that people open: each is converted once, into a folder beside the default model's."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.models.convert import converted_size, display_name, gguf_to_mlx_folder, plan_conversion
from app.models.default_model import default_model_folder, models_dir
from app.models.errors import ModelFileError
from app.models.fetch import is_disk_full
from app.models.gguf_file import MAGIC, GgufFile, read_gguf
from app.models.progress import IsCancelled, Progress
from app.models.set_up import is_whole, only_process, put_in_place, remove_leftovers, scaled, work_folder
from app.models.verify import MANIFEST, file_sha256, write_manifest

_CONVERTED = 0.95  # the share of the progress bar; the rest is reading what was written


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model's folder with a manifest; `n_bytes` as the manifest has it."""

    name: str
    folder: Path
    n_bytes: int


def is_gguf(path: Path) -> bool:
    """Whether `path` is a file that ends in .gguf or begins with the letters GGUF."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def import_gguf(gguf: Path, progress: Progress, cancelled: IsCancelled) -> Path:
    """The folder of the converted model, which is made first where it isn't there or is damaged.

    Args:
        progress: Called with what is being done and how much of it is done (0 to 1; None where it can't be known).
        cancelled: Polled more than ten times a second, but for the seconds in which a large vocabulary is written.

    Raises:
        ModelFileError: the file can't be converted, or the folder can't be written; the message says what to do.
        Cancelled: `cancelled()` became true.
        In either case nothing half-converted is left.
    """
    progress("Reading the file", None)
    state = _state(gguf)
    file = read_gguf(gguf)
    plan = plan_conversion(file)
    identity = file_identity(gguf, cancelled)
    parent = models_dir()
    folder = parent / f"{_safe(display_name(file))}-{identity[:8]}"
    needed = converted_size(file, plan)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if is_whole(folder, progress, cancelled):
            return folder
        with only_process(parent, progress, cancelled):
            # Another process may have converted the file while this one waited.
            if not is_whole(folder, progress, cancelled):
                remove_leftovers(parent)
                _check_space(parent, needed)
                _convert(file, state, identity, folder, progress, cancelled)
    except OSError as error:
        if is_disk_full(error):
            raise ModelFileError(_no_space(parent, needed)) from error
        raise ModelFileError(
            f"The converted model can't be written to {parent}: {error.strerror or error}. "
            f"Check the folder's permissions, or set VELOXQUANT_MODELS_DIR to another folder, then try again."
        ) from error
    return folder


def installed_models() -> list[InstalledModel]:
    """The models in `models_dir()`, and the default model wherever it is, by name. Only manifests are read.

    A folder whose manifest can't be read is left out: importing or fetching its model again puts it right.
    """
    parent = models_dir()
    folders = {path.parent for path in parent.glob(f"*/{MANIFEST}") if not path.parent.name.startswith(".")}
    found = []
    for folder in folders | {default_model_folder()}:
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            n_bytes = sum(int(row["size"]) for row in manifest["files"].values())
            found.append(InstalledModel(str(manifest.get("name") or folder.name), folder, n_bytes))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
            continue
    return sorted(found, key=lambda model: (model.name.casefold(), str(model.folder)))


def file_identity(gguf: Path, cancelled: IsCancelled = lambda: False) -> str:
    """The file's SHA-256: the same wherever it lies, and another one for a copy with a single other byte.

    Raises:
        ModelFileError: the file can't be read.
        Cancelled: `cancelled()` became true.
    """
    try:
        return file_sha256(gguf, cancelled)
    except OSError as error:
        raise ModelFileError(f"The model's file {gguf} can't be read: {error.strerror}.") from error


def _state(gguf: Path) -> tuple[int, int, int]:
    """Changes when the file is written to, or another one takes its place."""
    try:
        found = gguf.stat()
    except OSError as error:
        raise ModelFileError(f"The model's file {gguf} can't be read: {error.strerror}.") from error
    return found.st_ino, found.st_size, found.st_mtime_ns


def _convert(
    gguf: GgufFile,
    state: tuple[int, int, int],
    identity: str,
    folder: Path,
    progress: Progress,
    cancelled: IsCancelled,
) -> None:
    facts: dict[str, Any] = {
        "name": display_name(gguf),
        "licence": gguf.words("general.license") or "unknown",
        "source": {
            "file": gguf.path.name,
            "size": gguf.size,
            "identity": identity,
            "architecture": gguf.text("general.architecture"),
        },
    }
    with work_folder(folder.parent) as work:
        finished = work / "model"
        gguf_to_mlx_folder(gguf.path, finished, scaled(progress, 0.0, _CONVERTED), cancelled)
        progress("Checking the model's files", _CONVERTED)
        write_manifest(finished, facts, cancelled)
        if _state(gguf.path) != state:
            raise ModelFileError(
                f"The file {gguf.path} was changed while it was read. Wait until it is whole, then open it again."
            )
        put_in_place(finished, folder, work)
    progress("The model is ready", 1.0)


def _safe(name: str) -> str:
    """A name for a folder on every system."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:60].rstrip("-.") or "model"


def _check_space(parent: Path, needed: int) -> None:
    if shutil.disk_usage(parent).free < needed:
        raise ModelFileError(_no_space(parent, needed))


def _no_space(parent: Path, needed: int) -> str:
    return (
        f"There is not enough space on the disk for the converted model in {parent}: it takes "
        f"{needed / 1e6:,.0f} MB. Free some space, or set VELOXQUANT_MODELS_DIR to a folder on another disk, then try "
        f"again."
    )
