"""Colours can be read, the style sheet has no gaps, and the small drawings add up."""

from __future__ import annotations

import re
import time
from dataclasses import fields

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.ui.look.assets import resource, sample_prompts
from app.ui.look.icons import pixmap
from app.ui.look.theme import style_sheet, theme
from app.ui.look.tokens import DARK, LIGHT, PAIRS, Tokens, contrast
from app.ui.memory.memory_chart import MemoryChart, nice_ceiling, short, stacked
from app.ui.memory.pool_gauge import LEAST_PX, Share, widths
from app.ui.session.state import HISTORY_SECONDS, Memory, Sample
from tests.app.ui.conftest import report

BOTH = pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])


@BOTH
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_meets_wcag_aa(tokens: Tokens, text: str, ground: str) -> None:
    assert contrast(getattr(tokens, text), getattr(tokens, ground)) >= 4.5


@BOTH
def test_chat_colours_can_be_told_from_the_ground(tokens: Tokens) -> None:
    for colour in tokens.chats:
        assert contrast(colour, tokens.panel) >= 3
    assert len(set(tokens.chats)) == len(tokens.chats) == 8


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@BOTH
def test_the_style_sheet_knows_all_its_tokens(tokens: Tokens) -> None:
    sheet = style_sheet(tokens, 13)
    assert "$" not in sheet
    assert tokens.accent in sheet


def test_every_colour_is_a_full_one() -> None:
    for tokens in (LIGHT, DARK):
        for field in fields(tokens):
            value = getattr(tokens, field.name)
            if isinstance(value, str) and field.name != "mono":
                assert re.fullmatch(r"#[0-9a-f]{6}", value), field.name


def test_every_icon_is_drawn(qapp: QApplication) -> None:
    paths = sorted(resource("icons").glob("*.svg"))
    assert len(paths) > 10
    for path in paths:
        image = pixmap(path.stem, "#ff0000").toImage()
        colours = {image.pixelColor(x, y).alpha() for x in range(image.width()) for y in range(image.height())}
        assert max(colours) > 200, path.name


def test_the_theme_can_be_chosen(qapp: QApplication) -> None:
    theme().set_name("dark")
    assert theme().tokens.dark
    theme().set_name("light")
    assert not theme().tokens.dark
    with pytest.raises(ValueError, match="choose one of: system, light, dark"):
        theme().set_name("blue")


def test_sample_prompts() -> None:
    assert len(sample_prompts()) == 3


def test_gauge_segments_are_visible_and_fit() -> None:
    assert widths([Share(0, 1)], 100_000, 280) == [LEAST_PX]
    assert widths([Share(0, 50), Share(1, 0)], 100, 280) == [140, 0]
    crowded = widths([Share(i % 8, 1) for i in range(200)], 200_000, 280)
    assert sum(crowded) == pytest.approx(280)
    assert widths([Share(0, 5)], 0, 280) == [0]


def test_the_chart_stacks_chats_in_steps_up_to_now() -> None:
    history = [Sample(10.0, {1: 4}), Sample(11.0, {1: 4, 2: 6})]
    times, totals = stacked(history, [1, 2], 15.0)
    assert list(times) == [-5, -5, -4, -4, 0, 0]
    assert list(totals[0]) == [4, 4, 4, 4, 4, 4]
    assert list(totals[1]) == [4, 4, 4, 10, 10, 10]


def test_an_empty_chart_has_nothing_to_draw() -> None:
    times, totals = stacked([], [], 1.0)
    assert len(times) == 0
    assert totals == []


def test_a_chart_just_opened_has_the_scale_of_its_blocks(qtbot: QtBot) -> None:
    chart = MemoryChart(lambda: [Sample(time.monotonic() - 1, {1: 3600})], lambda _: 0)
    qtbot.addWidget(chart)
    chart.show()
    assert chart._lines[-1].value() == 4000


@pytest.mark.parametrize(("value", "top"), [(0, 10), (10, 10), (11, 20), (3600, 4000), (4001, 10_000)])
def test_nice_ceiling(value: float, top: float) -> None:
    assert nice_ceiling(value) == top


def test_short_numbers() -> None:
    assert [short(n) for n in (0, 500, 1500, 20_000)] == ["0", "500", "1.5k", "20k"]


def test_memory_history_is_thin_and_forgets() -> None:
    memory = Memory()
    for tick in range(10 * 200):
        memory.holders = list(report(tick / 10, c1=100).chats)
        memory.remember(tick / 10)
    assert len(memory.history) < HISTORY_SECONDS * 5.1
    assert memory.history[1].time >= memory.history[-1].time - HISTORY_SECONDS
