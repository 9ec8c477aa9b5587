"""The manifest of a model folder: written when the folder is made, checked before the folder is used."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from app.models.errors import Cancelled, ModelFileError
from app.models.progress import IsCancelled

MANIFEST = "manifest.json"
_CHUNK = 4_000_000  # bytes: some 10 ms
# Raise this when what the conversion writes changes: folders made by older versions are then made again.
FORMAT = 2


def file_sha256(path: Path, cancelled: IsCancelled = lambda: False) -> str:
    """The file's SHA-256 in hex.

    Raises:
        Cancelled: `cancelled()` became true.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            if cancelled():
                raise Cancelled
            digest.update(chunk)
    return digest.hexdigest()


def write_manifest(folder: Path, facts: dict[str, Any], cancelled: IsCancelled = lambda: False) -> None:
    """Write `manifest.json`: `facts` (source, licence), and size and SHA-256 of every other file in `folder`."""
    files = {
        path.name: {"size": path.stat().st_size, "sha256": file_sha256(path, cancelled)}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }
    text = json.dumps({"format": FORMAT, **facts, "files": files}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def check_model_folder(folder: Path, cancelled: IsCancelled = lambda: False) -> None:
    """Compare every file of `folder` with its manifest, in full (100 MB take a quarter of a second).

    Raises:
        ModelFileError: naming the first file that is missing, of another size or of other content.
        Cancelled: `cancelled()` became true.
    """
    manifest = folder / MANIFEST
    try:
        record = json.loads(manifest.read_text(encoding="utf-8"))
        made_by = record["format"]
        expected = {str(name): (int(row["size"]), str(row["sha256"])) for name, row in record["files"].items()}
    except FileNotFoundError:
        raise ModelFileError(f"The model folder {folder} has no {MANIFEST}, so its files can't be checked.") from None
    except OSError as error:
        raise ModelFileError(f"The model's file {manifest} can't be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ModelFileError(
            f"The model's file {manifest} is damaged: it isn't a list of the folder's files."
        ) from error
    if made_by != FORMAT:
        raise ModelFileError(f"The model folder {folder} was made by another version of this program ({manifest}).")
    # Sizes first: they are free, and a truncated download is the commonest damage.
    for name, (size, _) in expected.items():
        try:
            actual = (folder / name).stat().st_size
        except OSError as error:
            raise ModelFileError(f"The model's file {folder / name} can't be read: {error.strerror}.") from error
        if actual != size:
            raise ModelFileError(
                f"The model's file {folder / name} is damaged: it has {actual:,} bytes instead of {size:,}."
            )
    for name, (_, sha256) in expected.items():
        try:
            same = file_sha256(folder / name, cancelled) == sha256
        except OSError as error:
            raise ModelFileError(f"The model's file {folder / name} can't be read: {error.strerror}.") from error
        if not same:
            raise ModelFileError(f"The model's file {folder / name} is damaged: its content has changed.")
