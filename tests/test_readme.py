"""The two programs in the README run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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
