"""The real application ends with exit code 0, whatever it is doing."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


def start(data: Path, *arguments: str, display: bool = True) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")}
    if display:
        environment["QT_QPA_PLATFORM"] = "offscreen"
    return subprocess.Popen(
        [sys.executable, "-m", "app", "--data", str(data), *arguments],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def window_is_open(data: Path) -> bool:
    """The theme is written down once the window is built, before it is shown."""
    try:
        with closing(sqlite3.connect(f"file:{data / 'chats.sqlite3'}?mode=ro", uri=True)) as db:
            return any("theme" in str(row) for row in db.execute("SELECT * FROM settings"))
    except sqlite3.Error:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", [0.3, 1.5, 6.0], ids=["importing", "loading", "ready"])
def test_a_signal_ends_the_app(tmp_path: Path, default_model_dir: Path, number: signal.Signals, after: float) -> None:
    process = start(tmp_path, "--theme", "light", "--model", str(default_model_dir))
    deadline = time.monotonic() + 30
    while not window_is_open(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(after)
    assert process.poll() is None, process.communicate()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGTERM)", "self.close()"])
def test_closing_the_window_while_it_appears_ends_the_app(tmp_path: Path, how: str) -> None:
    """Nothing told the application, which waited for a window that was gone."""
    program = (
        "import os, signal, sys\n"
        "from PySide6.QtCore import QTimer\n"
        "from app.__main__ import main\n"
        "from app.ui.shell.main_window import MainWindow\n"
        "shown = MainWindow.showEvent\n"
        "def show(self, event):\n"
        "    shown(self, event)\n"
        f"    QTimer.singleShot(0, lambda: {how})\n"
        "MainWindow.showEvent = show\n"
        f"sys.exit(main(['--data', {str(tmp_path)!r}]))"
    )
    environment = os.environ | {"QT_QPA_PLATFORM": "offscreen"}
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, timeout=60)
    assert result.returncode == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems always have a display")
def test_without_a_display_it_says_what_to_do(tmp_path: Path) -> None:
    process = start(tmp_path, display=False)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "There is no display" in errors
    assert "--tour" in errors


def test_the_window_stands_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    """NumPy, which the chart needs, has no part in the first picture."""
    script = """
import sys
from PySide6.QtWidgets import QApplication
from app.engine.engine import Engine
from app.store.store import Store
from app.ui.shell.main_window import build_window
app = QApplication([])
window = build_window(Engine(), Store(sys.argv[1]))
window.show()
app.processEvents()
print(sorted({"mlx", "mlx_lm", "numpy", "pyqtgraph", "transformers"} & set(sys.modules)))
window.close()
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "chats.sqlite3")],
        cwd=ROOT,
        env=os.environ | {"QT_QPA_PLATFORM": "offscreen"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.strip() == "[]", result.stderr


def test_options_are_checked(tmp_path: Path) -> None:
    from app.__main__ import parse

    with pytest.raises(SystemExit):
        parse(["--pool-blocks", "0"])
    options = parse(["--data", str(tmp_path), "--theme", "dark"])
    assert (options.data, options.theme, options.tour) == (tmp_path, "dark", None)
