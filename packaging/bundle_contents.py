"""What goes into the packaged app and what stays out: the decisions behind packaging/app.spec, as plain functions.

PyInstaller collects whatever an imported package might ever need. Names here are those of the finished bundle, with
"/" between folders. Standard library only, so the spec and the tests can both use it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

Row = tuple[str, str, str]

# Found by name at run time, so no import statement leads to them.
NAMED_AT_RUN_TIME = ("mlx_lm.models", "mlx_lm.chat_templates", "mlx_lm.tool_parsers")
HIDDEN = (
    *("mlx._reprlib_fix", "mlx.__array_api_info"),  # imported by mlx.core, in C++
    *("PySide6.QtOpenGL", "PySide6.QtOpenGLWidgets"),  # by pyqtgraph, under a name it puts together
)

# Optional parts of libraries, found by PyInstaller and never reached by the app: developers' tools, downloads,
# command lines, other frameworks, other Qt modules.
EXCLUDED = (
    *("PIL", "PyInstaller", "_pytest", "hypothesis", "macholib", "mypy", "pip", "pytest", "pytestqt", "ruff"),
    *("setuptools", "_distutils_hack", "pkg_resources", "wheel"),
    *("hf_xet", "rich", "typer", "shellingham", "click", "IPython", "tkinter", "_tkinter", "turtle", "idlelib"),
    *("torch", "tensorflow", "jax", "flax", "datasets", "scipy", "pandas", "matplotlib", "h5py", "colorcet"),
    *("pydantic", "pydantic_core", "lib2to3", "ensurepip", "pydoc_data", "test", "readline", "curses", "pdb"),
    *("huggingface_hub.cli", "numpy.f2py", "numpy.testing", "numpy.distutils", "sqlite3.test"),
    *("pyqtgraph.examples", "pyqtgraph.opengl", "pyqtgraph.jupyter"),
    *(f"PySide6.{name}" for name in ("QtNetwork", "QtTest", "QtQml", "QtQuick")),
    *(f"PySide6.{name}" for name in ("QtQuickWidgets", "QtPrintSupport", "QtSql", "QtDesigner", "QtUiTools")),
)

# transformers is here for its tokenizers. It runs without the rest, which needs a framework that isn't here either.
_TRANSFORMERS_DROPPED = re.compile(
    r"transformers\.(?:cli|commands|distributed|exporters|pipelines|quantizers|loss|testing_utils|trainer\w*"
    r"|training_args\w*|modeling_(?!rope_utils)\w*|optimization|conversion_mapping|core_model_loading|fusion_mapping"
    r"|cache_utils|masking_utils|monkey_patching|image_processing_\w+|video_processing_utils|hyperparameter_search"
    r"|generation\.(?!configuration_utils)\w+|model_debugging_utils|modelcard|pytorch_utils|time_series_utils"
    r"|integrations\.(?!heterogeneity|mistral)\w+|data|activations|initialization|safetensors_conversion|decision"
    r"|models\.(?!auto\.)\w+\.(?:modeling|modular|convert|image_processing|video_processing|feature_extraction|generation"
    r"|processing|retrieval)_\w*"
    r")(?:\.|$)"
)

# Plugins for machines without a desktop, for Qt modules that aren't here, and of GTK (which would bring all of GTK 3
# from the machine it is built on).
_QT_PLUGINS_DROPPED = re.compile(
    r"/Qt/plugins/(?:"
    r"platforms/lib(?:qeglfs|qlinuxfb|qminimal|qminimalegl|qvkkhrdisplay|qvnc|qwebgl)\."
    r"|platforminputcontexts/libqtvirtualkeyboard|platformthemes/libqgtk3|egldeviceintegrations/|generic/"
    r"|imageformats/libq(?!svg|icns|ico|jpeg|gif)|vectorimageformats/|networkinformation/|tls/|sqldrivers/|printsupport/"
    r"|qmltooling/|qmllint/|designer/|wayland-graphics-integration-server/)"
)

# Part of every Linux desktop, and tied to its drivers: graphics drivers are loaded into this process and bring
# libraries as new as themselves, so an older copy in the bundle breaks them. The list is that of the AppImage project.
_SYSTEMS_OWN = re.compile(
    r"lib(?:stdc\+\+|gcc_s|X11|X11-xcb|xcb|wayland-client|fontconfig|freetype|harfbuzz|fribidi|expat|z|uuid|drm|gbm"
    r"|glapi|GL|EGL|GLX|GLdispatch|OpenGL|p11-kit|ICE|SM|com_err|gpg-error|asound)\.so(?:\.|$)"
)

_LOADED_BY_NAME = re.compile(r"/Qt/plugins/|/libpython|/Python(?:\.framework/|$)|/libopenblas\.so|/libmlx\.")

_NOT_NEEDED = re.compile(
    r"(?:^|/)(?:include|share/cmake|cmake|tests?|examples|__pycache__|translations|qml|typesystems|glue)/"
    r"|\.(?:pyi|h|hpp|a|la|cmake|pxd|pyx|c|cpp|qmltypes|prl)$"
    r"|^transformers/.*\.(?:md|cu|cuh|metal)$"
)


def module_is_dropped(name: str) -> bool:
    """Whether a Python module, by its dotted name, stays out."""
    return _TRANSFORMERS_DROPPED.match(name) is not None


def file_is_dropped(name: str) -> bool:
    """Whether a file, by its name in the bundle, stays out."""
    if name.startswith("resources/") or name.startswith("models/") or name.startswith("licences/"):
        return False
    base = name.rpartition("/")[2]
    if name.endswith(".py") and module_is_dropped(name.removesuffix(".py").replace("/", ".")):
        return True
    return bool(_QT_PLUGINS_DROPPED.search(f"/{name}") or _SYSTEMS_OWN.match(base) or _NOT_NEEDED.search(name))


def qt_part(name: str) -> str | None:
    """The Qt library a file belongs to: "QtCore" for libQt6Core.so.6 and all of QtCore.framework; None for others."""
    found = re.search(r"(?:^|/)(?:libQt6(\w+)\.(?:so|dylib)|Qt(\w+)\.framework(?:/|$))", name)
    return f"Qt{found.group(1) or found.group(2)}" if found else None


def library_key(name: str) -> str:
    """What a file is linked to by: its own name, or the Qt library it belongs to."""
    return qt_part(name) or name.rpartition("/")[2]


def reachable(rows: Iterable[Row], imports: Callable[[str], Iterable[str]]) -> list[Row]:
    """The rows without libraries that nothing in the app is linked to (what brought them was dropped).

    What Python imports, what Qt looks up as a plugin and what is loaded by name is there in its own right.

    Args:
        rows: (name in the bundle, source, type), as PyInstaller has them.
        imports: Gives the names of the libraries that a file at a source path is linked to.
    """
    rows = list(rows)
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(library_key(row[0]), []).append(row)
    queue = [row for row in rows if row[2] == "EXTENSION" or _LOADED_BY_NAME.search(f"/{row[0]}")]
    wanted = {library_key(row[0]) for row in queue}
    while queue:
        _, source, kind = queue.pop()
        for linked in imports(source) if kind in ("EXTENSION", "BINARY") else ():
            key = library_key(linked)
            if key not in wanted:
                wanted.add(key)
                queue += by_key.get(key, [])
    return [row for row in rows if library_key(row[0]) in wanted]


def transformers_modules(site: Path) -> tuple[list[str], list[str]]:
    """The modules of transformers below the folder `site` that go in, and those that stay out.

    transformers imports its own parts by name, so no import statement leads to them either.
    """
    kept: list[str] = []
    dropped: list[str] = []
    for path in sorted((site / "transformers").rglob("*.py")):
        name = ".".join(path.relative_to(site).with_suffix("").parts).removesuffix(".__init__")
        (dropped if module_is_dropped(name) else kept).append(name)
    return kept, dropped
