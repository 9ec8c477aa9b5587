"""The tour, as `make tour` runs it: a process of its own, the default model, pictures and figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtGui import QImage

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory, default_model_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("tour") / "pictures"
    environment = {k: v for k, v in os.environ.items() if k not in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")}
    result = subprocess.run(
        [sys.executable, "-m", "app", "--tour", str(folder)],
        cwd=ROOT,
        env=environment | ({} if sys.platform.startswith("linux") else {"QT_QPA_PLATFORM": "offscreen"}),
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert result.returncode == 0, result.stderr
    assert "tok/s" in result.stdout, "the live table"
    return folder


def test_the_tour_writes_what_three_chats_said_and_cost(tour: Path) -> None:
    report = json.loads((tour / "tour.json").read_text(encoding="utf-8"))
    chats, pool = report["chats"], report["pool"]
    assert len({chat["question"] for chat in chats}) == len({chat["answer"] for chat in chats}) == 3
    assert len({(chat["method"], chat["bits"]) for chat in chats}) == 3
    for chat in chats:
        # 48 tokens or a shorter answer; every token of the prompt and of the answer is held. The newest is only where
        # the step for the one after it had begun.
        assert chat["answer"]
        held = chat["prompt_tokens"] + chat["tokens"]
        possible = {30 * 2 * -(-n_tokens // pool["block_size"]) for n_tokens in (held - 1, held)}
        assert chat["blocks_held"] in possible
    assert chats[0]["memory_bytes"] > chats[1]["memory_bytes"] >= chats[2]["memory_bytes"]
    assert pool["blocks_in_use"] == sum(chat["blocks_held"] for chat in chats)
    assert pool["blocks_in_use"] <= pool["peak_blocks_in_use"] <= pool["n_blocks"]
    assert 0 < pool["fragmentation"] <= 3 * 60 / pool["n_blocks"]
    assert report["after_close"] == {"blocks_in_use": 0}


def test_the_tour_compares_three_methods(tour: Path) -> None:
    lanes = json.loads((tour / "tour.json").read_text(encoding="utf-8"))["compare"]["lanes"]
    assert [(lane["method"], lane["bits"]) for lane in lanes] == [
        ("fp16", None),
        ("turboquant_mse", 4.0),
        ("turboquant_mse", 2.0),
    ]
    assert lanes[0]["ratio"] == 1.0
    assert 1.0 < lanes[1]["ratio"] < lanes[2]["ratio"]
    assert all(lane["answer"] and lane["tokens_per_s"] > 0 for lane in lanes)


@pytest.mark.parametrize("name", ["chat.png", "memory.png", "compare.png"])
def test_the_pictures_show_something(tour: Path, name: str) -> None:
    image = QImage(str(tour / name))
    assert image.width() >= 500
    assert image.height() >= 500
    colours = {image.pixel(x, y) for x in range(0, image.width(), 7) for y in range(0, image.height(), 7)}
    assert len(colours) > 50
