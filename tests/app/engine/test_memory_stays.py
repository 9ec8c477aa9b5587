"""Chats that are closed leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own, whose resident memory is nobody else's.
SCRIPT = """
import sys
from app.engine import CacheChoice, Engine, Sampling, Message
from app.engine.messages import ChatClosed, CloseChat, MemoryReport

RESIDENT = next(i for i, line in enumerate(open("/proc/self/status")) if line.startswith("VmRSS"))
METHODS = ["fp16", "turboquant_mse", "turboquant_prod", "spectral", "polar", "qjl", "affine"]


def resident():
    return int(open("/proc/self/status").read().splitlines()[RESIDENT].split()[1])


with Engine() as engine:
    engine.load(sys.argv[1])
    for batch in range(20):
        chats = range(batch * 10, batch * 10 + 10)
        for chat_id in chats:
            engine.open(chat_id, CacheChoice(METHODS[chat_id % 7]))
            engine.ask(chat_id, f"Hi, {chat_id}. " * (1 + chat_id % 3), Sampling(max_tokens=3))
        for _ in engine.stream():
            pass
        for chat_id in chats:
            engine.submit(CloseChat(chat_id))
        closed = 0
        while closed < 10:
            closed += isinstance(engine.next_event(), ChatClosed)
        report = engine.next_event()
        while not (isinstance(report, MemoryReport) and not report.chats):
            report = engine.next_event()
        print(report.pool.active_bytes, resident(), report.pool.bytes_in_use, report.pool.blocks_in_use, flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from Linux's /proc")
@pytest.mark.large
def test_200_short_chats_leave_memory_as_it_was_after_the_first_ten(default_model_dir: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(default_model_dir)],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=Path(__file__).parents[3],
    )
    assert (result.returncode, result.stderr) == (0, "")
    rows = [[int(number) for number in line.split()] for line in result.stdout.splitlines()]
    assert len(rows) == 20
    active, resident, in_use, blocks = zip(*rows, strict=True)
    assert set(in_use) == set(blocks) == {0}
    assert active[-1] <= active[0] * 1.02
    assert resident[-1] <= resident[0] * 1.10
