"""The window with the real engine and the default model: what a person does with several chats at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.engine.engine import Engine
from app.engine.messages import CacheChoice, Sampling
from app.store.store import Store
from app.ui.chat.context_bar import DROPPED
from app.ui.session.settings import ChatSettings
from app.ui.shell.main_window import MainWindow, build_window
from tests.app.ui.shell.test_window import visible_words

PATIENCE_MS = 180_000  # only a hang ever waits that long

FP16, FOUR, TWO = CacheChoice("fp16"), CacheChoice("turboquant_mse", 4, 4), CacheChoice("turboquant_mse", 2, 2)


@pytest.fixture(scope="module")
def live(qapp: QApplication, default_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MainWindow]:
    """One window on one real engine for all tests, since loading the model takes seconds."""
    engine = Engine()
    store = Store(tmp_path_factory.mktemp("store") / "chats.sqlite3")
    window = build_window(engine, store)
    window.show()
    window.controller.sampling = Sampling(max_tokens=1024)  # greedy: the same answers in every run
    window.controller.start(str(default_model_dir))
    yield window
    window.close()
    store.close()
    assert engine.shutdown(30)
    window.deleteLater()
    QCoreApplication.sendPostedEvents(window, QEvent.Type.DeferredDelete)


@pytest.fixture
def window(live: MainWindow, qtbot: QtBot) -> Iterator[MainWindow]:
    qtbot.waitUntil(lambda: live.controller.can_send, timeout=PATIENCE_MS)
    yield live
    for chat_id in list(live.controller.chats):
        live.controller.close_chat(chat_id)
    live.controller.clear_comparison()
    live.controller.set_budget(None, False)


def ask(window: MainWindow, question: str, choice: CacheChoice) -> int:
    chat_id = window.controller.new_chat(choice)
    assert window.controller.send(chat_id, question)
    return chat_id


def answer(window: MainWindow, chat_id: int) -> str:
    return window.controller.chats[chat_id].turns[-1].content


def has_written(window: MainWindow, *chat_ids: int, tokens: int) -> Callable[[], bool]:
    chats = window.controller.chats
    return lambda: all(chats[i].n_tokens >= tokens or not chats[i].answering for i in chat_ids)


def test_three_chats_stream_at_once_and_answer_their_own_questions(window: MainWindow, qtbot: QtBot) -> None:
    questions = ("What is the capital of France?", "Write a haiku about the sea.", "Count from one to twenty.")
    ids = [ask(window, question, choice) for question, choice in zip(questions, (FP16, FOUR, TWO), strict=True)]
    chats = window.controller.chats
    qtbot.waitUntil(lambda: sum(chats[i].phase == "decode" for i in ids) >= 2, timeout=PATIENCE_MS)
    qtbot.waitUntil(has_written(window, *ids, tokens=8), timeout=PATIENCE_MS)
    answers = [answer(window, chat_id) for chat_id in ids]
    assert len(set(answers)) == 3
    assert "Paris" in answers[0]
    panel = visible_words(window.memory_panel)
    assert all(choice.label in panel for choice in (FP16, FOUR, TWO))


def test_a_new_chat_works_while_others_are_answering(window: MainWindow, qtbot: QtBot) -> None:
    first = ask(window, "Write a long story about a ship.", FOUR)
    qtbot.waitUntil(has_written(window, first, tokens=4), timeout=PATIENCE_MS)
    window.new_chat()
    second = window.chat_view.chat_id
    assert second is not None
    assert second != first
    window.controller.send(second, "What is the capital of France?")
    qtbot.waitUntil(has_written(window, second, tokens=8), timeout=PATIENCE_MS)
    before = len(answer(window, first))
    qtbot.waitUntil(lambda: len(answer(window, first)) > before, timeout=PATIENCE_MS)
    assert "Paris" in answer(window, second)


def test_stopping_keeps_the_text_and_the_chat_goes_on_from_there(window: MainWindow, qtbot: QtBot) -> None:
    chat_id = ask(window, "Write a long story about a lighthouse.", TWO)
    window.show_chat(chat_id)
    qtbot.waitUntil(has_written(window, chat_id, tokens=4), timeout=PATIENCE_MS)
    window.stop()
    chat = window.controller.chats[chat_id]
    qtbot.waitUntil(lambda: not chat.answering, timeout=PATIENCE_MS)
    kept = answer(window, chat_id)
    assert kept
    assert chat.turns[-1].kind == "stopped"
    assert "Stopped" in visible_words(window.chat_view)
    assert window.controller.send(chat_id, "What is the capital of Spain?")
    qtbot.waitUntil(has_written(window, chat_id, tokens=4), timeout=PATIENCE_MS)
    assert chat.turns[1].content == kept


def test_closing_chats_gives_all_their_blocks_back(window: MainWindow, qtbot: QtBot) -> None:
    ids = [ask(window, "Write a long story about a train.", choice) for choice in (FP16, TWO)]
    qtbot.waitUntil(has_written(window, *ids, tokens=2), timeout=PATIENCE_MS)
    memory = window.controller.memory
    qtbot.waitUntil(lambda: memory.pool is not None and memory.pool.blocks_in_use > 0, timeout=PATIENCE_MS)
    for chat_id in ids:
        window.controller.close_chat(chat_id)
    qtbot.waitUntil(lambda: memory.pool is not None and memory.pool.blocks_in_use == 0, timeout=PATIENCE_MS)
    assert memory.total_bytes == 0


def test_a_chat_goes_on_after_its_memory_was_freed(window: MainWindow, qtbot: QtBot) -> None:
    controller = window.controller
    chat_id = ask(window, "What is the capital of France?", FOUR)
    chat, memory = controller.chats[chat_id], controller.memory

    def stop_after(tokens: int) -> None:
        qtbot.waitUntil(has_written(window, chat_id, tokens=tokens), timeout=PATIENCE_MS)
        controller.stop(chat_id)
        qtbot.waitUntil(lambda: not chat.answering, timeout=PATIENCE_MS)

    stop_after(4)
    assert chat.stats is not None
    first = chat.stats.prompt_tokens
    controller.free_memory(chat_id)
    qtbot.waitUntil(lambda: memory.pool is not None and memory.pool.blocks_in_use == 0, timeout=PATIENCE_MS)
    assert len(chat.turns) == 2
    assert controller.send(chat_id, "And of Spain?")
    stop_after(2)
    assert chat.turns[-1].content
    assert chat.stats.reused_tokens == 0
    assert chat.stats.prompt_tokens > first


def test_a_comparison_finishes_and_says_what_each_method_cost(window: MainWindow, qtbot: QtBot) -> None:
    window.show_compare()
    comparison = window.controller.comparison
    assert window.controller.start_comparison("What is the capital of France?", (FP16, FOUR, TWO), max_tokens=8)
    qtbot.waitUntil(lambda: not comparison.running, timeout=PATIENCE_MS)
    assert all(lane.text and lane.stats is not None for lane in comparison.lanes)
    said = visible_words(window.compare_view)
    assert said.count("fp16") >= 3
    assert said.count("tok/s alone") == 3
    window.show_chats()


def test_a_chat_that_waits_for_memory_goes_on_once_others_are_freed(window: MainWindow, qtbot: QtBot) -> None:
    controller, memory = window.controller, window.controller.memory
    first = ask(window, "What is the capital of France?", FP16)
    qtbot.waitUntil(has_written(window, first, tokens=8), timeout=PATIENCE_MS)
    controller.stop(first)
    qtbot.waitUntil(lambda: controller.chats[first].can_free, timeout=PATIENCE_MS)
    assert memory.pool is not None
    controller.set_budget(memory.pool.bytes_in_use + 1000, False)
    qtbot.waitUntil(lambda: controller.budget is not None, timeout=PATIENCE_MS)
    second = ask(window, "What is the capital of France?", FP16)
    window.show_chat(second)
    qtbot.waitUntil(lambda: controller.chats[second].phase == "waiting", timeout=PATIENCE_MS)
    assert "Waiting for memory" in visible_words(window.chat_view)
    controller.free_idle()
    qtbot.waitUntil(has_written(window, second, tokens=2), timeout=PATIENCE_MS)
    controller.set_budget(None, False)
    qtbot.waitUntil(has_written(window, second, tokens=8), timeout=PATIENCE_MS)
    assert "Paris" in answer(window, second)


def test_a_fork_shares_what_was_said_and_goes_its_own_way(window: MainWindow, qtbot: QtBot) -> None:
    controller = window.controller
    parent = ask(window, "What is the capital of France? Answer in one sentence.", FP16)
    qtbot.waitUntil(lambda: not controller.chats[parent].answering, timeout=PATIENCE_MS)
    fork = controller.fork_chat(parent, 2)
    assert fork is not None
    memory = controller.memory
    qtbot.waitUntil(lambda: memory.pool is not None and memory.pool.shared_blocks > 0, timeout=PATIENCE_MS)
    before = answer(window, parent)
    assert controller.send(fork, "And of Spain?")
    qtbot.waitUntil(has_written(window, fork, tokens=4), timeout=PATIENCE_MS)
    controller.stop(fork)
    qtbot.waitUntil(lambda: not controller.chats[fork].answering, timeout=PATIENCE_MS)
    stats = controller.chats[fork].stats
    assert stats is not None
    assert stats.reused_tokens > 0
    assert [turn.content for turn in controller.chats[fork].turns[:2]] == [
        turn.content for turn in controller.chats[parent].turns
    ]
    assert answer(window, parent) == before


def test_a_stopped_answer_goes_on_as_if_it_had_not_been_stopped(window: MainWindow, qtbot: QtBot) -> None:
    controller = window.controller
    whole, parts = (ask(window, "Count from one to ten.", FP16) for _ in range(2))
    qtbot.waitUntil(has_written(window, parts, tokens=4), timeout=PATIENCE_MS)
    controller.stop(parts)
    qtbot.waitUntil(lambda: not any(controller.chats[i].answering for i in (whole, parts)), timeout=PATIENCE_MS)
    begun = answer(window, parts)
    assert controller.continue_answer(parts)
    qtbot.waitUntil(lambda: not controller.chats[parts].answering, timeout=PATIENCE_MS)
    assert answer(window, parts).startswith(begun)
    assert len(answer(window, parts)) > len(begun)
    assert len(controller.chats[parts].turns) == 2


def test_a_question_asked_differently_keeps_what_came_before_in_memory(window: MainWindow, qtbot: QtBot) -> None:
    controller = window.controller
    chat_id = ask(window, "What is the capital of France? Answer in one sentence.", FOUR)
    for question in ("And of Spain?", "And of Italy?"):
        qtbot.waitUntil(lambda: not controller.chats[chat_id].answering, timeout=PATIENCE_MS)
        assert controller.send(chat_id, question)
        qtbot.waitUntil(has_written(window, chat_id, tokens=2), timeout=PATIENCE_MS)
        controller.stop(chat_id)
    qtbot.waitUntil(lambda: not controller.chats[chat_id].answering, timeout=PATIENCE_MS)
    assert controller.edit_message(chat_id, 2, "And of Portugal?")
    qtbot.waitUntil(has_written(window, chat_id, tokens=8), timeout=PATIENCE_MS)
    controller.stop(chat_id)
    qtbot.waitUntil(lambda: not controller.chats[chat_id].answering, timeout=PATIENCE_MS)
    chat = controller.chats[chat_id]
    assert [turn.content for turn in chat.turns if turn.role == "user"][1:] == ["And of Portugal?"]
    assert chat.stats is not None
    assert chat.stats.reused_tokens > 0


def test_a_full_context_leaves_the_oldest_messages_out_once_that_is_chosen(window: MainWindow, qtbot: QtBot) -> None:
    controller = window.controller
    chat_id = ask(window, "What is the capital of France? Answer in one sentence.", FOUR)
    chat = controller.chats[chat_id]
    window.show_chat(chat_id)
    qtbot.waitUntil(lambda: not chat.answering, timeout=PATIENCE_MS)
    controller.set_settings(chat_id, ChatSettings(context_limit=100))
    controller.send(chat_id, "Write a long story about a lighthouse.")
    qtbot.waitUntil(lambda: not chat.answering, timeout=PATIENCE_MS)
    assert chat.turns[-1].kind == "context"
    assert "This chat takes all of the 100 tokens it may have." in visible_words(window.chat_view)
    begun = answer(window, chat_id)
    assert not controller.continue_answer(chat_id)
    controller.set_drop_oldest(chat_id, True)
    qtbot.waitUntil(lambda: chat.dropped == 2, timeout=PATIENCE_MS)
    qtbot.waitUntil(lambda: len(answer(window, chat_id)) > len(begun), timeout=PATIENCE_MS)
    assert answer(window, chat_id).startswith(begun)
    assert DROPPED in visible_words(window.chat_view)
