"""Imports point downwards only, Qt stays in app/ui, and MLX stays out of app/ui and app/store."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Top to bottom. A layer imports itself and what stands below it.
LAYERS = [
    "app.ui",
    "app.engine",
    "app.store",
    "app.models",
    "veloxquant_mlx.integrations",
    "veloxquant_mlx.memory",
    "veloxquant_mlx.cache",
    "veloxquant_mlx.quantizers",
    "veloxquant_mlx.core",
]
QT = {"PySide6", "shiboken6", "pyqtgraph"}
MLX = {"mlx", "mlx_lm", "transformers"}


def modules() -> Iterator[tuple[str, Path]]:
    for package in ("app", "veloxquant_mlx"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path


def imported(path: Path) -> set[str]:
    """Every module named in an import statement, those inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            assert node.module is not None
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def layer_of(module: str) -> int | None:
    return next((i for i, name in enumerate(LAYERS) if module == name or module.startswith(name + ".")), None)


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=[name for name, _ in modules()])
def test_imports_point_downwards_only(module: str, path: Path) -> None:
    names = imported(path)
    libraries = {name.partition(".")[0] for name in names}
    layer = layer_of(module)
    if layer is None:
        return  # app/__init__, app/__main__ and veloxquant_mlx/__init__ stand above all layers
    assert not [name for name in names if (other := layer_of(name)) is not None and other < layer]
    if not module.startswith("app.ui"):
        assert not libraries & QT
    if module.startswith(("app.ui", "app.store")):
        assert not libraries & MLX
    if module.startswith("veloxquant_mlx"):
        assert "app" not in libraries


def loaded_after(statement: str) -> set[str]:
    """The top-level packages in a fresh interpreter after `statement`."""
    script = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_the_window_can_be_built_without_mlx() -> None:
    assert not loaded_after("import app.__main__, app.ui.main_window, app.ui.tour, app.engine.engine") & MLX


# The half of the engine that has a model. Everything else in it decides, writes or hands on, in plain Python.
WITH_MLX = {"alone", "decode", "ledger", "runner", "sampling", "sequence", "worker"}


def test_the_engine_decides_without_mlx() -> None:
    """Not even by way of others: what the scheduler needs can run where no model is."""
    names = {path.stem for path in (ROOT / "app" / "engine").glob("*.py")} - {"__init__"}
    assert names > {"scheduler", "turns", "admission", "answers", "step"} | WITH_MLX
    assert not loaded_after(f"import {', '.join(f'app.engine.{name}' for name in sorted(names - WITH_MLX))}") & MLX
    for name in sorted(WITH_MLX):
        assert loaded_after(f"import app.engine.{name}") & MLX, f"{name} is on the wrong list"


def test_no_two_modules_of_the_engine_import_each_other() -> None:
    paths = {module: path for module, path in modules() if module.startswith("app.engine.")}
    left = {module: imported(path) & paths.keys() for module, path in paths.items()}
    while free := {module for module, needs in left.items() if not needs}:
        left = {module: needs - free for module, needs in left.items() if module not in free}
    assert not left


def test_the_engine_needs_no_qt() -> None:
    assert not loaded_after("import app.engine.worker, app.store.store, app.models.loading") & QT


def test_the_block_pool_needs_the_standard_library_only() -> None:
    loaded = loaded_after("import veloxquant_mlx.memory.block_pool")
    assert not loaded & (MLX | QT | {"numpy"})
    sites = {"_distutils_hack", "sitecustomize"}  # an interpreter's own, at every start
    assert loaded - {"veloxquant_mlx", "__main__"} <= set(sys.stdlib_module_names) | sites
