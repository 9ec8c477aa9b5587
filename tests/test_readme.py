"""The two programs in the README run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import table

ROOT = Path(__file__).parents[1]
LIBRARY, ENGINE = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_pictures_are_there() -> None:
    for name in re.findall(r"!\[.*?\]\((.*?)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / name).is_file(), name


def run(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_library_under_an_mlx_lm_model(tiny_model_dir: Path) -> None:
    printed = run(LIBRARY.replace("path/to/a/model/folder", str(tiny_model_dir)))
    blocks, n_bytes = printed.split()[-2:]
    assert int(blocks) > 0
    assert int(n_bytes) > 0


def test_three_chats_without_a_window(default_model_dir: Path) -> None:
    answers = eval(run(ENGINE))
    assert len(answers) == 3
    assert all(answers)


@pytest.mark.parametrize(
    ("measured", "machines"), [(("quality", "decode"), "new"), (("quality",), "old; new")], ids=["all", "one"]
)
def test_the_tables_name_a_machine_that_nothing_was_measured_on_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: tuple[str, ...], machines: str
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(
        f"before\n{table.BEGIN}\nMachine: old.\n\n**Quality.** 1\n\n**Decode.** 1\n{table.END}\nafter\n", "utf-8"
    )
    monkeypatch.setattr(table, "README", readme)
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    monkeypatch.setattr(table, "read", lambda name: {"machine": "new"} if name in measured else None)
    parts = {name: lambda found, name=name: f"**{name.title()}.** 2" for name in ("quality", "decode")}
    monkeypatch.setattr(table, "PARTS", parts)
    table.run()
    decode = 2 if "decode" in measured else 1
    block = f"Machine: {machines}.\n\n**Quality.** 2\n\n**Decode.** {decode}"
    assert readme.read_text("utf-8") == f"before\n{table.BEGIN}\n{block}\n{table.END}\nafter\n"


def test_what_the_windows_benchmark_did_not_come_to_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "machine": "new",
        "streamed": [1_000, 60_000],
        "opened": [50, 500, 5_000],
        "long": 5_000,
        "texts": ["1 MB"],
        "chats": 8,
        "tokens_per_update": 3,
        "start": {"source": 0.4},
        "figures": {"streaming 1000": {"p50": 4.0, "p99": 12.0}, "text 1 MB": {"sent": 40.4}},
        "stopped": {"streaming 60000": 25.0, "long_chat 5000": 60.0, "text 1 MB": 25.0},
    }
    readme = tmp_path / "README.md"
    readme.write_text(f"{table.BEGIN}\nMachine: old.\n\n**UI.** 1\n{table.END}\n", "utf-8")
    monkeypatch.setattr(table, "README", readme)
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    monkeypatch.setattr(table, "read", lambda name: found if name == "ui" else None)
    table.run()
    said = readme.read_text("utf-8")
    assert said.count("**UI.**") == 1
    assert "| an update at 1,000 tokens, p50 / p99 | 4.0 / 12 | 8 / 16 |" in said
    assert "| an update at 60,000 tokens, p50 / p99 | not within 25 s | 8 / 16 |" in said
    assert "| opening a chat of 5,000 messages | not within 60 s | 200 |" in said
    assert "| opening a chat of 50 messages | – | 100 |" in said
    assert "sent / opened / scrolled | 40 / not within 25 s / not within 25 s | 100 |" in said
    assert "source / packaged | 400 / – | 1,000 / 500 |" in said
