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
# The window's rooms. `shell` knows all of them; each knows itself and what all of them stand on, never another one.
ROOMS = {"sidebar", "chat", "compare", "memory", "models"}
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


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[2] if parts[:2] == ["app", "ui"] and len(parts) > 2 else None


UI = [(module, path) for module, path in modules() if room_of(module) is not None]


@pytest.mark.parametrize(("module", "path"), UI, ids=[name for name, _ in UI])
def test_rooms_know_no_other_room(module: str, path: Path) -> None:
    room = room_of(module)
    assert room is not None
    known = {other for name in imported(path) if (other := room_of(name)) is not None}
    if room == "shell":
        return
    assert room in ROOMS | {"session", "look"}, f"{module} is in no room"
    if room in ROOMS:
        assert known <= {room, "session", "look"}
    elif room == "session":
        # Words for people are the one part of `look` that has no widget.
        assert known <= {"session", "look"}
        assert {name for name in imported(path) if room_of(name) == "look"} <= {"app.ui.look", "app.ui.look.words"}
        assert not {name for name in imported(path) if name.startswith("PySide6.QtWidgets")}
    else:
        assert known <= {"look"}


def test_every_room_says_what_it_shows() -> None:
    for room in (ROOT / "app" / "ui").iterdir():
        if room.is_dir() and room.name != "__pycache__":
            said = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
            assert said is not None, room
            assert said.endswith("."), room


def cycles(edges: dict[str, set[str]]) -> list[str]:
    """Modules from which imports lead back to themselves."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        left = list(edges[start])
        while left:
            module = left.pop()
            if module not in found:
                found.add(module)
                left += edges.get(module, ())
        return found

    return [module for module in edges if module in reached(module)]


def test_no_imports_go_round_in_circles() -> None:
    """Those for types, and those inside functions, count as well."""
    known = dict(modules())
    packages = {module for module, path in known.items() if path.name == "__init__.py"}
    edges = {module: (imported(path) & known.keys()) - packages for module, path in known.items()}
    assert not cycles(edges)


def loaded_after(statement: str) -> set[str]:
    """The top-level packages in a fresh interpreter after `statement`."""
    script = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_the_window_can_be_built_without_mlx() -> None:
    assert not loaded_after("import app.__main__, app.ui.shell.main_window, app.ui.shell.tour, app.engine.engine") & MLX


# The half of the engine that has a model. Everything else in it decides, writes or hands on, in plain Python.
WITH_MLX = {"alone", "decode", "ledger", "runner", "sampling", "sequence", "worker"}


def test_the_engine_decides_without_mlx() -> None:
    """Not even by way of others: what the scheduler needs can run where no model is."""
    names = {path.stem for path in (ROOT / "app" / "engine").glob("*.py")} - {"__init__"}
    assert names > {"scheduler", "turns", "admission", "answers", "step"} | WITH_MLX
    assert not loaded_after(f"import {', '.join(f'app.engine.{name}' for name in sorted(names - WITH_MLX))}") & MLX
    for name in sorted(WITH_MLX):
        assert loaded_after(f"import app.engine.{name}") & MLX, f"{name} is on the wrong list"


def test_the_engine_needs_no_qt() -> None:
    assert not loaded_after("import app.engine.worker, app.store.store, app.models.loading") & QT


def test_the_block_pool_needs_the_standard_library_only() -> None:
    loaded = loaded_after("import veloxquant_mlx.memory.block_pool")
    assert not loaded & (MLX | QT | {"numpy"})
    sites = {"_distutils_hack", "sitecustomize"}  # an interpreter's own, at every start
    assert loaded - {"veloxquant_mlx", "__main__"} <= set(sys.stdlib_module_names) | sites
