"""Numbers as people read them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtGui import QFont, QFontMetrics
from PySide6.QtWidgets import QApplication

from app.ui.look import words
from app.ui.look.small import elided
from tests.app.ui.conftest import stats

SIZES = [(0, "0 B"), (950, "950 B"), (999, "999 B"), (1000, "1.0 KB"), (999_499, "999 KB"), (999_950, "1.0 MB")]
SIZES += [(12_400_000, "12.4 MB"), (99_960_000, "100 MB"), (1_030_000_000, "1.0 GB"), (-5, "0 B")]


@pytest.mark.parametrize(("n_bytes", "said"), SIZES)
def test_size(n_bytes: int, said: str) -> None:
    assert words.size(n_bytes) == said


@pytest.mark.parametrize(
    ("fraction", "said"), [(0, "0 %"), (0.004, "< 1 %"), (0.12, "12 %"), (0.999, "99 %"), (1, "100 %")]
)
def test_percent(fraction: float, said: str) -> None:
    assert words.percent(fraction) == said


@pytest.mark.parametrize(
    ("ratio", "said"), [(1.0, "uncompressed size"), (3.26, "3.3× smaller"), (0.5, "2.0× larger"), (0, "")]
)
def test_smaller(ratio: float, said: str) -> None:
    assert words.smaller(ratio) == said


def test_answer_note() -> None:
    assert words.answer_note(stats(128, 3_100_000, 13_020_000)) == (
        "128 tokens · 14.2 tok/s · 3.1 MB cache · 4.2× smaller"
    )
    assert words.answer_note(stats(1, 1000, 1000)) == "1 token · 14.2 tok/s · 1.0 KB cache"


def test_an_answer_of_one_token_is_not_said_to_have_come_at_no_speed() -> None:
    assert words.answer_note(replace(stats(1, 1000, 1000), tokens_per_s=0.0)) == "1 token · 1.0 KB cache"


def test_the_prompts_tokens_that_were_in_memory() -> None:
    assert words.prompt_tip(412, 380) == "Prompt: 412 tokens, 380 of them still in memory"
    assert words.prompt_tip(1412, 0) == "Prompt: 1,412 tokens"
    assert words.prompt_tip(0, 0) == ""


@pytest.mark.parametrize(
    ("title", "taken", "fork"),
    [
        ("Rain", {"Rain"}, "Rain (2)"),
        ("Rain", {"Rain", "Rain (2)"}, "Rain (3)"),
        ("Rain (2)", {"Rain", "Rain (2)"}, "Rain (3)"),
        ("Rain (3)", {"Rain (3)"}, "Rain (2)"),
        ("Rain(2)", set(), "Rain(2) (2)"),
        ("(2)", set(), "(2) (2)"),
        ("What? (yes)", set(), "What? (yes) (2)"),
    ],
)
def test_forks_have_the_next_number_that_is_free(title: str, taken: set[str], fork: str) -> None:
    assert words.fork_title(title, taken) == fork


def test_the_number_of_a_fork_is_seen_however_long_its_title_is(qapp: QApplication) -> None:
    metrics = QFontMetrics(QFont())
    width = metrics.horizontalAdvance("A rainbow and its (22)")
    shown = elided(metrics, "A rainbow and its colours in the evening (2)", width)
    assert shown.startswith("A rain")
    assert shown.endswith("… (2)")
    assert metrics.horizontalAdvance(shown) <= width
    assert elided(metrics, "Short (2)", width) == "Short (2)"
    assert elided(metrics, "A rainbow and its colours in the evening", width).endswith("…")


def test_title_is_the_first_line_that_says_something() -> None:
    assert words.title_from("\n  What   is\tthis?\nMore") == "What is this?"
    assert len(words.title_from("word " * 40)) <= 60
    assert words.title_from("  ") == "New chat"
