"""A process that used the engine ends with exit code 0, whatever the worker was doing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
from app.engine.engine import Engine
from app.engine.messages import *
moment, folder = sys.argv[1:]
engine = Engine()
engine.start()
engine.submit(LoadModel(folder))
wanted = {"loading": ModelProgress, "ready": ModelReady, "reading": PromptProgress, "answering": AnswerText}[moment]
engine.submit(OpenChat(1, CacheChoice()))
while True:
    event = engine.next_event(60)
    assert event is not None
    if isinstance(event, ModelReady):
        engine.submit(Send(1, (Message("user", "Tell me about ships. " * (100 if moment == "reading" else 1)),)))
    if isinstance(event, wanted):
        break
assert engine.shutdown(30)
"""


@pytest.mark.parametrize("moment", ["loading", "ready", "reading", "answering"])
def test_quitting_at_any_moment_ends_cleanly(moment: str, default_model_dir: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, moment, str(default_model_dir)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[3],
    )
    assert (result.returncode, result.stderr) == (0, "")
