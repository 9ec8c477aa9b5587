"""The list of chats keeps its place and its selection, whatever comes, goes or moves in it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QModelIndex, QPoint, Qt
from PySide6.QtTest import QAbstractItemModelTester, QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.engine.messages import CacheChoice
from app.ui.session.controller import Controller
from app.ui.sidebar.chat_list import ChatList, ChatListModel
from app.ui.sidebar.row_changes import that_stay

N = 300
HEIGHT = 500

Order = list[int]
orders = st.lists(st.integers(1, 12), unique=True, max_size=12)


# ------------------------------------------------------------ the model
def listed(model: ChatListModel) -> Order:
    return [chat_id for row in range(model.rowCount()) if (chat_id := model.id_at(row)) is not None]


class Follower:
    """Does to a list of its own what the model says it does to its rows."""

    def __init__(self, model: ChatListModel) -> None:
        self.ids, self.changes, self._model = listed(model), 0, model
        model.rowsInserted.connect(self._inserted)
        model.rowsRemoved.connect(self._removed)
        model.rowsMoved.connect(self._moved)
        model.modelReset.connect(self._reset)

    def _inserted(self, _: QModelIndex, first: int, last: int) -> None:
        self.changes += 1
        self.ids[first:first] = [self._model.id_at(row) or 0 for row in range(first, last + 1)]

    def _removed(self, _: QModelIndex, first: int, last: int) -> None:
        self.changes += 1
        del self.ids[first : last + 1]

    def _moved(self, _: QModelIndex, first: int, last: int, __: QModelIndex, to: int) -> None:
        self.changes += 1
        moved = self.ids[first : last + 1]
        self.ids[to:to] = moved
        start = first + (len(moved) if to < first else 0)
        del self.ids[start : start + len(moved)]

    def _reset(self) -> None:
        raise AssertionError("a reset takes the view's place and selection away")


@given(old=orders, new=orders)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_becomes_any_other_by_the_fewest_changes(controller: Controller, old: Order, new: Order) -> None:
    model = ChatListModel(controller)
    model.show_order(old)
    tester = QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    follower = Follower(model)
    stayed = model.show_order(new)
    assert listed(model) == new == follower.ids
    common = set(old) & set(new)
    assert stayed <= common
    assert follower.changes == len(set(old) ^ set(new)) + len(common - stayed)
    assert len(stayed) == most_in_order(old, new)
    del tester


def most_in_order(old: Sequence[int], new: Sequence[int]) -> int:
    """How many of `old` are in the same order in `new`, found the slow way."""
    places = [new.index(chat_id) for chat_id in old if chat_id in new]
    best: list[int] = []
    for index, place in enumerate(places):
        best.append(1 + max((best[i] for i in range(index) if places[i] < place), default=0))
    return max(best, default=0)


def test_what_stays_is_in_order() -> None:
    assert that_stay([5, 4, 3, 2, 1], [2, 5, 4, 3, 1]) == {5, 4, 3, 1}
    assert that_stay([], [1]) == that_stay([1], []) == set()
    kept = that_stay([1, 2, 3, 4, 5, 6], [6, 1, 3, 2, 5, 4])
    assert len(kept) == 3
    assert all([6, 1, 3, 2, 5, 4].index(a) < [6, 1, 3, 2, 5, 4].index(b) for a, b in combinations(sorted(kept), 2))


# ------------------------------------------------------------ the view
@pytest.fixture
def chats(controller: Controller, qtbot: QtBot) -> ChatList:
    """Three hundred chats, scrolled to the middle, one selected that is far away."""
    for _ in range(N):
        controller.new_chat(CacheChoice())
    made = ChatList(controller)
    qtbot.addWidget(made)
    made.resize(248, HEIGHT)
    made.show()
    made.show_current(280)
    bar = made.verticalScrollBar()
    QApplication.processEvents()
    bar.setValue(bar.maximum() // 2 + 17)
    return made


def on_screen(chats: ChatList) -> list[tuple[int, int]]:
    """Whose rows one sees, and where."""
    QApplication.processEvents()
    model, seen, y = chats.model(), [], 0
    while y < HEIGHT:
        index = chats.indexAt(QPoint(100, y))
        if not index.isValid():
            break
        rect = chats.visualRect(index)
        seen.append((model.data(index, Qt.ItemDataRole.UserRole).id, rect.top()))
        y = rect.bottom() + 1
    return seen


def selected(chats: ChatList) -> list[int]:
    return [index.data(Qt.ItemDataRole.UserRole).id for index in chats.selectionModel().selectedIndexes()]


def show_order(chats: ChatList, monkeypatch: pytest.MonkeyPatch, order: Order) -> None:
    monkeypatch.setattr(ChatListModel, "_order", lambda _: order)
    chats._reload()


def test_a_new_chat_moves_nothing_one_looks_at(chats: ChatList, controller: Controller) -> None:
    before = on_screen(chats)
    controller.new_chat()
    assert on_screen(chats) == before
    assert selected(chats) == [280]


def test_a_rename_moves_nothing(chats: ChatList, controller: Controller) -> None:
    before = on_screen(chats)
    controller.rename_chat(before[2][0], "Another name")
    controller.rename_chat(290, "Another name")
    assert on_screen(chats) == before
    assert chats.indexAt(QPoint(100, before[2][1] + 5)).data() == "Another name"
    assert selected(chats) == [280]


def test_a_fork_moves_nothing(chats: ChatList, controller: Controller) -> None:
    before = on_screen(chats)
    assert controller.fork_chat(before[1][0], 0) == N + 1
    assert on_screen(chats) == before
    assert selected(chats) == [280]


@pytest.mark.parametrize("gone", [299, 2])
def test_deleting_one_out_of_sight_moves_nothing(chats: ChatList, controller: Controller, gone: int) -> None:
    before = on_screen(chats)
    controller.close_chat(gone)
    assert on_screen(chats) == before
    assert selected(chats) == [280]


def test_what_was_below_a_deleted_one_takes_its_place(chats: ChatList, controller: Controller) -> None:
    before = on_screen(chats)
    controller.close_chat(before[3][0])
    ids = [chat_id for chat_id, _ in before]
    assert on_screen(chats)[:-1] == list(zip(ids[:3] + ids[4:], [top for _, top in before], strict=False))
    first = on_screen(chats)
    controller.close_chat(first[0][0])
    assert first[1] in on_screen(chats), "the first one that is left stays"
    assert selected(chats) == [280]


@pytest.mark.parametrize("moved", [280, 150, 1])
def test_one_that_moves_to_the_top_leaves_the_others_in_place(
    chats: ChatList, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    before = on_screen(chats)
    rest = [chat_id for chat_id in range(N, 0, -1) if chat_id != moved]
    show_order(chats, monkeypatch, [moved, *rest])
    left = [(chat_id, top) for chat_id, top in before if chat_id != moved]
    assert on_screen(chats)[0] == left[0]
    assert selected(chats) == [280]


def test_the_first_one_in_sight_moves_away_and_the_next_one_stays(
    chats: ChatList, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = on_screen(chats)
    moved = before[0][0]
    show_order(chats, monkeypatch, [moved, *(i for i in range(N, 0, -1) if i != moved)])
    assert before[1] in on_screen(chats)


def test_the_selected_one_moves_out_of_sight_and_the_list_stays(
    chats: ChatList, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = on_screen(chats)[4][0]
    chats.show_current(chosen)
    before = on_screen(chats)
    show_order(chats, monkeypatch, [chosen, *(i for i in range(N, 0, -1) if i != chosen)])
    assert on_screen(chats)[:4] == before[:4]
    assert selected(chats) == [chosen]
    assert chats.currentIndex().row() == 0


def test_a_wholly_other_order_keeps_the_selection(chats: ChatList, monkeypatch: pytest.MonkeyPatch) -> None:
    show_order(chats, monkeypatch, list(range(1, N + 1)))
    assert selected(chats) == [280]
    assert chats.currentIndex().row() == 279


def test_at_the_top_one_sees_the_newest(chats: ChatList, controller: Controller) -> None:
    chats.scrollToTop()
    controller.new_chat()
    assert on_screen(chats)[0] == (N + 1, 0)


def test_at_the_end_one_stays_there(chats: ChatList, controller: Controller) -> None:
    chats.scrollToBottom()
    before = on_screen(chats)
    controller.new_chat()
    assert on_screen(chats) == before
    controller.close_chat(200)
    assert on_screen(chats) == before


def test_deleting_the_selected_one_selects_no_other_by_itself(
    chats: ChatList, controller: Controller, qtbot: QtBot
) -> None:
    before = on_screen(chats)
    with qtbot.assertNotEmitted(chats.chosen):
        controller.close_chat(280)
    assert selected(chats) == []
    assert on_screen(chats) == before


def test_nothing_is_chosen_by_what_moves(chats: ChatList, controller: Controller, qtbot: QtBot) -> None:
    with qtbot.assertNotEmitted(chats.chosen):
        controller.new_chat()
        controller.close_chat(3)
    with qtbot.waitSignal(chats.chosen) as chosen:
        QTest.keyClick(chats, Qt.Key.Key_Down)
    assert chosen.args == [279], "the keyboard goes on from the selected one"


def test_the_pointer_stays_on_its_row(chats: ChatList, controller: Controller) -> None:
    chat_id, top = on_screen(chats)[2]
    QTest.mouseMove(chats.viewport(), QPoint(100, top + 20))
    controller.new_chat()
    assert chats.indexAt(QPoint(100, top + 20)).data(Qt.ItemDataRole.UserRole).id == chat_id


def test_a_thousand_rows_are_not_each_asked_for_their_size(chats: ChatList) -> None:
    assert chats.uniformItemSizes()
