"""The window: an update while an answer streams, opening, scrolling and resizing long chats, start, long texts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.common import median, write
from tests.benchmarks.ui_window import CHATS, TEXTS, TOKENS_PER_UPDATE

ROOT = Path(__file__).parents[2]
STREAMED = (1_000, 5_000, 20_000, 60_000)
OPENED = (50, 500)
LONG = 5_000
STARTS = 7
PATIENCE_S = {"streaming": 25.0, "opening": 25.0, "long_chat": 60.0, "text": 25.0, "lateness": 120.0}
PAINTED = "qt.widgets.painting: "


def part(*arguments: str) -> tuple[dict[str, dict[str, Any]], bool]:
    """What one part found, and whether it came to its end in time."""
    command = [sys.executable, "-m", "tests.benchmarks.ui_window", *arguments]
    patience = PATIENCE_S[arguments[0]]
    try:
        printed, ended = subprocess.run(command, cwd=ROOT, env=off_screen(), stdout=-1, timeout=patience).stdout, True
    except subprocess.TimeoutExpired as expired:
        printed, ended = expired.stdout or b"", False
    found: dict[str, dict[str, Any]] = {}
    for line in printed.decode().splitlines():
        row = json.loads(line)
        found.setdefault(row.pop("name"), {}).update(row)
    print(" ".join(arguments), found, "" if ended else f"(stopped after {patience:.0f} s)", flush=True)
    return found, ended


def off_screen(**more: str) -> dict[str, str]:
    return {**os.environ, "QT_QPA_PLATFORM": "offscreen", **more}


def started(command: list[str], data: str) -> float:
    """Seconds from the process's start until its window is painted, which Qt says itself, in the packaged app too."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--data", data],
        cwd=ROOT,
        env=off_screen(QT_LOGGING_RULES="qt.widgets.painting=true"),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    painting = painted = 0.0
    for line in process.stderr:
        now = time.perf_counter()
        if painting and now - painting > 0.2:
            break
        if "flushing dirty top level" in line and not painting:
            painting = painted = now
        elif painting and line.startswith(f"{PAINTED}Drawing"):
            painted = now
    process.kill()
    process.wait()
    return painted - begin


def starts() -> dict[str, float]:
    """Medians: from source, and of the packaged app where there is one."""
    sys.path.append(str(ROOT / "packaging"))
    from bundle_facts import executable_path

    commands = {"source": [sys.executable, "-m", "app"]}
    if executable_path().is_file():
        commands["packaged"] = [str(executable_path())]
    with tempfile.TemporaryDirectory() as data:
        times = {name: [started(command, data) for _ in range(STARTS + 1)] for name, command in commands.items()}
    found = {name: median(seconds[1:]) for name, seconds in times.items()}  # the first one finds nothing cached
    print("start", {name: [f"{one:.2f}" for one in seconds] for name, seconds in times.items()}, flush=True)
    return found


def run() -> None:
    results: dict[str, Any] = {"tokens_per_update": TOKENS_PER_UPDATE, "chats": CHATS, "start": starts()}
    figures: dict[str, dict[str, Any]] = {}
    stopped: dict[str, float] = {}
    for arguments in (
        *(("streaming", str(n)) for n in STREAMED),
        *(("opening", str(n)) for n in OPENED),
        ("long_chat", str(LONG)),
        *(("text", name) for name in TEXTS),
        ("lateness",),
    ):
        found, ended = part(*arguments)
        for name, row in found.items():
            figures.setdefault(name, {}).update(row)
        if not ended:
            stopped[" ".join(arguments)] = PATIENCE_S[arguments[0]]
    results |= {"figures": figures, "stopped": stopped, "streamed": STREAMED, "opened": [*OPENED, LONG], "long": LONG}
    results["texts"] = list(TEXTS)
    write("ui", results)
