"""The packaged app that `make app` left in dist/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bundle_facts
import pytest

from tests.app.models.real_files import smollm2

SOURCES = ("app", "veloxquant_mlx", "packaging", "resources", "requirements.lock")
PARTS = (".py", ".spec", ".sh", ".svg", ".qss", ".json", ".otf", ".lock")


@pytest.fixture(scope="session")
def built_app() -> Path:
    """The executable, made from the sources as they are now."""
    executable = bundle_facts.executable_path()
    if not executable.is_file():
        pytest.fail(f"There is no packaged app in {bundle_facts.DIST}. Run `make test-app`, or `make app` first.")
    paths = [path for name in SOURCES for path in (bundle_facts.ROOT / name, *(bundle_facts.ROOT / name).rglob("*"))]
    built = executable.stat().st_mtime
    newer = [path for path in paths if path.suffix in PARTS and path.stat().st_mtime > built]
    if newer:
        pytest.fail(f"The packaged app is older than {newer[0]}. Run `make app`.")
    return executable


@pytest.fixture(scope="session")
def moved_app(built_app: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executable of a copy in another place, as people have it."""
    root = bundle_facts.app_path()
    copy = tmp_path_factory.mktemp("elsewhere") / root.name
    subprocess.run(["ditto" if sys.platform == "darwin" else "cp", *_ARCHIVE, str(root), str(copy)], check=True)
    return copy / built_app.relative_to(root)


_ARCHIVE = () if sys.platform == "darwin" else ("-a",)


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file."""
    return smollm2()
