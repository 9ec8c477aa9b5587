"""The memory panel with a budget, forks that share memory, and chats that wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from PySide6.QtWidgets import QApplication, QLabel, QPushButton
from pytestqt.qtbot import QtBot

from app.engine.messages import CacheChoice, ChatMemory, MemoryReport, ModelFailed, PoolReport
from app.ui.look.small import ElidedLabel
from app.ui.look.theme import theme
from app.ui.look.tokens import DARK, LIGHT, Tokens, contrast
from app.ui.memory.memory_panel import HolderRow, MemoryPanel, part_of
from app.ui.memory.pool_gauge import PoolGauge
from app.ui.session.controller import Controller
from tests.app.ui.conftest import say
from tests.app.ui.shell.test_window import press, visible_words

POOL = PoolReport(
    16,
    2000,
    1240,
    0.01,
    1300,
    60,
    1240,
    500_000_000,
    bytes_in_use=41_200_000,
    max_bytes=400_000_000,
    cache_bytes=41_200_000,
)
FIRST = ChatMemory(1, "decode", 412, 620, 30_900_000, 123_600_000)
SECOND = ChatMemory(2, "decode", 100, 620, 10_300_000, 41_200_000)

Show = Callable[..., None]


def sharing(chat: ChatMemory) -> ChatMemory:
    return replace(chat, shared_blocks=80, shared_bytes=8_000_000)


@pytest.fixture
def panel(controller: Controller, qtbot: QtBot) -> MemoryPanel:
    theme().set_name("light")
    for title in ("Rainbows", "Rainbows (2)"):
        chat_id = controller.new_chat(CacheChoice("turboquant_mse", 4, 2))
        controller.rename_chat(chat_id, title)
    made = MemoryPanel(controller)
    qtbot.addWidget(made)
    made.resize(made.width(), 900)
    made.show()
    return made


@pytest.fixture
def show(controller: Controller, panel: MemoryPanel) -> Show:
    def report(*chats: ChatMemory, **pool: Any) -> None:
        say(controller, MemoryReport(1.0, chats, replace(POOL, **pool)))
        QApplication.processEvents()

    return report


def line(panel: MemoryPanel, part: str) -> QLabel:
    found = [made for made in panel.findChildren(QLabel) if made.isVisible() and part in made.text()]
    assert len(found) == 1, part
    return found[0]


def drawn(panel: MemoryPanel) -> dict[str, float]:
    """Which part of the gauge has which colour."""
    gauge = panel.findChild(PoolGauge)
    assert isinstance(gauge, PoolGauge)
    image = gauge.grab().toImage()
    colours = Counter(image.pixelColor(x, image.height() // 2).name() for x in range(image.width()))
    return {colour: n / image.width() for colour, n in colours.items()}


# ------------------------------------------------------------ the whole
def test_what_forks_share_counts_once_and_is_said(panel: MemoryPanel, show: Show) -> None:
    show(sharing(FIRST), sharing(SECOND), cache_bytes=33_200_000, shared_blocks=80)
    assert line(panel, "33.2 MB").text() == "33.2 MB"
    # 41.2 MB in all are 4 times less than 165 MB; 8 MB less again, because they are there only once.
    assert "uncompressed 165 MB · 4.0× smaller\n8.0 MB shared by forks" in visible_words(panel)


def test_without_forks_nothing_is_said_of_them(panel: MemoryPanel, show: Show) -> None:
    show(FIRST, SECOND, cache_bytes=41_100_000)  # what is counted a moment apart need not be the same
    said = visible_words(panel)
    assert "41.1 MB" in said
    assert "uncompressed 165 MB · 4.0× smaller" in said
    assert "shared" not in said.lower()


def test_a_pool_that_does_not_know_the_whole_leaves_it_to_the_chats(panel: MemoryPanel, show: Show) -> None:
    show(FIRST, replace(SECOND, memory_bytes=20_300_000), cache_bytes=0)
    assert "51.2 MB" in visible_words(panel)


def test_a_chat_that_is_gone_leaves_nothing_to_compare(panel: MemoryPanel, show: Show) -> None:
    show(FIRST)
    assert "No chat holds memory yet." not in visible_words(panel)
    show(bytes_in_use=0, cache_bytes=0, blocks_in_use=0)
    said = visible_words(panel)
    assert "No chat holds memory yet." in said
    assert "0 % of the 400 MB budget · 0 blocks" in said


# ------------------------------------------------------------ the budget
def test_the_budget_and_how_much_of_it_is_in_use(panel: MemoryPanel, show: Show) -> None:
    show(FIRST, SECOND)
    assert "10 % of the 400 MB budget · 1,240 blocks" in visible_words(panel)
    show(FIRST, SECOND, max_bytes=None)
    said = visible_words(panel)
    assert "No budget · 1,240 blocks of 16 tokens" in said
    assert "400 MB" not in said


@pytest.mark.parametrize("budget", [6_300_000_000, None], ids=["budget", "no budget"])
def test_two_sums_that_differ_are_never_both_shown_as_bytes(panel: MemoryPanel, show: Show, budget: int | None) -> None:
    """A person saw "Cache memory 14.1 MB" beside "13.3 MB of 6.3 GB", and wondered which it was."""
    chat = replace(FIRST, memory_bytes=14_100_000)
    show(chat, cache_bytes=14_100_000, bytes_in_use=13_300_000, max_bytes=budget)
    said = visible_words(panel)
    assert said.count("14.1 MB") == 2, "all chats take as much as the only one"
    assert "13.3" not in said


@pytest.mark.parametrize("budget", [6_300_000_000, None], ids=["budget", "no budget"])
def test_where_both_sums_are_told_each_says_what_it_counts(panel: MemoryPanel, show: Show, budget: int | None) -> None:
    show(FIRST, cache_bytes=14_100_000, bytes_in_use=13_300_000, max_bytes=budget)
    for name in ("14.1 MB", "Cache memory"):
        assert line(panel, name).toolTip().startswith("What the caches of all chats take: every array in them")
        assert "room they keep ready" in line(panel, name).toolTip()
    counts = line(panel, " · 1,240 blocks").toolTip()
    in_blocks = "13.3 MB of 6.3 GB in 1,240 blocks of 16 tokens. " if budget else "13.3 MB in blocks. "
    assert counts.startswith(f"{in_blocks}The budget counts whole blocks, but not the room that caches keep ready")
    assert "13.3" not in line(panel, "14.1 MB").toolTip()


@pytest.mark.parametrize("in_use", [0, 41_200_000, 410_000_000])
def test_the_budget_line_is_never_cut_off(panel: MemoryPanel, show: Show, in_use: int) -> None:
    for budget in (1_000_000, 99_900_000, 999_000_000_000, None):
        show(FIRST, SECOND, bytes_in_use=in_use, max_bytes=budget, blocks_in_use=30_720)
        assert "…" not in line(panel, "30,720 blocks").text()


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (41_200_000, 400_000_000, "41.2 of 400 MB"),
        (950_000, 400_000_000, "950 KB of 400 MB"),
        (500_000_000, 400_000_000, "500 of 400 MB"),
        (0, 400_000_000, "0 B of 400 MB"),
    ],
)
def test_a_unit_is_said_once(part: int, whole: int, said: str) -> None:
    assert part_of(part, whole) == said


def test_a_budget_nearly_used_up_warns_and_stops_to(panel: MemoryPanel, show: Show) -> None:
    show(FIRST, SECOND, bytes_in_use=359_000_000)
    said = line(panel, " · 1,240 blocks")
    quiet = said.fontMetrics().height()
    assert said.property("voice") == "3"
    for bytes_in_use, voice in (
        (360_000_000, "warn"),
        (410_000_000, "warn"),
        (359_000_000, "3"),
        (360_000_000, "warn"),
    ):
        show(FIRST, SECOND, bytes_in_use=bytes_in_use)
        assert said.property("voice") == voice
        assert said.fontMetrics().height() == quiet  # it is the same line, only in another colour
    show(FIRST, SECOND, bytes_in_use=360_000_000, max_bytes=None)
    assert said.property("voice") == "3"


def test_the_gauge_is_the_budget_with_a_part_per_chat(panel: MemoryPanel, show: Show) -> None:
    first, second = (theme().chat_colour(panel._controller.colours[chat_id]).name() for chat_id in (1, 2))
    show(FIRST, SECOND, bytes_in_use=200_000_000)
    parts = drawn(panel)
    assert parts[first] == pytest.approx(0.375, abs=0.02)
    assert parts[second] == pytest.approx(0.125, abs=0.02)
    assert parts[theme().tokens.track] == pytest.approx(0.5, abs=0.02)
    show(FIRST, SECOND, bytes_in_use=200_000_000, max_bytes=None)
    parts = drawn(panel)
    assert parts[first] == pytest.approx(0.75, abs=0.02)
    assert parts[second] == pytest.approx(0.25, abs=0.02)


def test_more_than_the_budget_in_use_fills_the_gauge_and_no_more(panel: MemoryPanel, show: Show) -> None:
    second = theme().chat_colour(panel._controller.colours[2]).name()
    show(FIRST, SECOND, bytes_in_use=800_000_000)
    assert drawn(panel)[second] == pytest.approx(0.25, abs=0.02)


def test_the_budget_can_be_asked_for_once_it_is_known(
    panel: MemoryPanel, show: Show, controller: Controller, qtbot: QtBot
) -> None:
    link = next(b for b in panel.findChildren(QPushButton) if b.text() == "Budget…")
    assert not link.isEnabled()
    show(FIRST)
    with qtbot.waitSignal(panel.budget_asked):
        press(panel, "Budget…")
    say(controller, ModelFailed("No such folder."))
    assert not link.isEnabled()


# ------------------------------------------------------------ figures and rows
def test_shared_blocks_are_a_figure_from_the_first_fork_on(panel: MemoryPanel, show: Show) -> None:
    show(FIRST, SECOND)
    assert "Shared blocks" not in visible_words(panel)
    show(FIRST, SECOND, shared_blocks=1080)
    said = visible_words(panel)
    assert "Shared blocks" in said
    assert "1,080" in said
    show(FIRST, SECOND)
    assert "Shared blocks" in visible_words(panel)
    assert "1,080" not in visible_words(panel)


def test_a_chat_that_waits_says_so_instead_of_its_method(panel: MemoryPanel, show: Show) -> None:
    show(FIRST, replace(SECOND, state="waiting"))
    waits = line(panel, "waiting for memory")
    assert waits.property("voice") == "warn"
    assert visible_words(panel).count("TurboQuant K4 V2") == 1
    size = waits.fontMetrics().height()
    show(FIRST, SECOND)
    assert visible_words(panel).count("TurboQuant K4 V2") == 2
    assert waits.property("voice") == "3"
    assert waits.fontMetrics().height() == size


def test_a_chat_that_waits_for_its_first_memory_has_a_row(panel: MemoryPanel, show: Show) -> None:
    show(FIRST, ChatMemory(2, "waiting", 0, 0, 0, 0))
    assert "waiting for memory" in visible_words(panel)
    assert "0 blocks · 0 tokens" in visible_words(panel)
    show(FIRST, ChatMemory(2, "idle", 0, 0, 0, 0))
    assert "0 blocks · 0 tokens" not in visible_words(panel)


def test_a_row_says_which_blocks_are_shared(panel: MemoryPanel, show: Show) -> None:
    show(sharing(replace(FIRST, blocks_held=96)), SECOND)
    said = visible_words(panel)
    assert "96 blocks (80 shared) · 412 tokens" in said
    assert "620 blocks · 100 tokens" in said
    shared, alone = panel.findChildren(HolderRow)
    assert "8.0 MB of it other forks hold, too" in shared.toolTip()
    assert "forks" not in alone.toolTip()


@pytest.mark.parametrize("height", [900, 300])  # with a scroll bar there are ten pixels less
def test_nothing_of_a_row_is_cut_off(panel: MemoryPanel, show: Show, height: int) -> None:
    panel.resize(panel.width(), height)
    full = replace(FIRST, tokens=8190, blocks_held=30_720, shared_blocks=28_800, shared_bytes=1)
    show(full, replace(SECOND, tokens=8190, blocks_held=30_720, state="waiting"))
    for row in panel.findChildren(HolderRow):
        named = [made for made in row.findChildren(QLabel) if "Rainbows" not in made.text()]
        assert len(named) == 3
        for made in named:
            assert made.width() >= made.fontMetrics().horizontalAdvance(made.text())
            assert made.mapTo(panel, made.rect().topRight()).x() < panel.width() - 8
            assert "…" not in made.text()
            assert not isinstance(made, ElidedLabel) or not made.toolTip()


def test_what_fits_on_one_line_stands_on_one(panel: MemoryPanel, show: Show) -> None:
    show(sharing(replace(FIRST, blocks_held=96)), SECOND)
    shared, alone = panel.findChildren(HolderRow)
    assert shared.height() > alone.height()


@pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])
def test_the_warning_can_be_read_on_the_panel(tokens: Tokens) -> None:
    assert contrast(tokens.warn_text, tokens.panel) >= 4.5
