"""Five hundred damaged GGUF files: each is refused in a sentence, or was damaged where it doesn't matter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from gguf import GGMLQuantizationType

from tests.app.models.damage import DAMAGES, take_apart
from tests.app.models.tiny_models import write_tiny

N_FILES = 500
MEMORY = 500_000_000  # bytes


def test_a_file_put_together_again_is_the_same(tmp_path: Path) -> None:
    data = write_tiny(tmp_path / "tiny.gguf", "gemma3", bpe=False).read_bytes()
    assert take_apart(data).whole() == data


def test_damaged_files_are_refused_or_converted_and_nothing_else(tmp_path: Path) -> None:
    write_tiny(tmp_path / "llama.gguf", weights=GGMLQuantizationType.Q8_0)
    write_tiny(tmp_path / "llama-spm.gguf", bpe=False, weights=GGMLQuantizationType.Q4_0, tied=False)
    write_tiny(tmp_path / "qwen2.gguf", "qwen2", weights=GGMLQuantizationType.Q5_1)
    write_tiny(tmp_path / "gemma3.gguf", "gemma3", bpe=False)
    # In a process of its own, so that its memory can be limited and measured.
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "tests.app.models.damage"]
    command += [str(tmp_path), str(N_FILES), str(MEMORY)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr
    *rows, last = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(rows) == N_FILES
    for row in rows:
        assert row["outcome"] != "failed", row["said"]
        if row["outcome"] == "refused":
            assert not row["left"], row
            assert "damaged.gguf" in row["said"], row
            assert row["said"].endswith("."), row
            assert len(row["said"]) < 1000, row
        else:
            assert row["said"] == "", row
    assert last["memory"] < MEMORY
    # All damages are found that can be; what is left is of weights, names and the like.
    outcomes = Counter((row["damage"], row["outcome"]) for row in rows)
    assert all(outcomes[damage.__name__, "refused"] > 0 for damage in DAMAGES)
    assert outcomes["_cut", "converted"] == 0
    assert sum(row["outcome"] == "refused" for row in rows) > N_FILES / 2
