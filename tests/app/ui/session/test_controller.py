"""What the controller makes of commands and events; the engine is scripted, the store is real."""

from __future__ import annotations

import pytest
from pytestqt.qtbot import QtBot

from app.engine.messages import (
    BudgetSet,
    CacheChoice,
    ChatFailed,
    ChatWaiting,
    CloseChat,
    EngineStopped,
    FetchDefaultModel,
    LoadModel,
    Message,
    ModelFailed,
    ModelProgress,
    ModelReady,
    OpenChat,
    PromptProgress,
    Sampling,
    Send,
    SetBudget,
    Stop,
)
from app.store.store import Store, StoreError
from app.ui.session.controller import Controller
from app.ui.session.state import Turn, conversation_of
from tests.app.ui.conftest import INFO, ScriptedEngine, ended, report, say, text


def asked(controller: Controller, question: str = "What is a rainbow?") -> int:
    chat_id = controller.new_chat(CacheChoice("fp16"))
    assert controller.send(chat_id, question)
    return chat_id


def test_the_first_question_names_the_chat_and_opens_it(
    controller: Controller, engine: ScriptedEngine, store: Store
) -> None:
    chat_id = asked(controller)
    assert controller.chats[chat_id].title == "What is a rainbow?"
    assert store.chats()[0].title == "What is a rainbow?"
    opened, sent = engine.commands[-2:]
    assert opened == OpenChat(chat_id, CacheChoice("fp16"))
    assert isinstance(sent, Send)
    assert [m.content for m in sent.messages] == ["What is a rainbow?"]
    assert (sent.sampling.temperature, sent.sampling.top_p, sent.sampling.max_tokens) == (0.2, 0.9, 1024)


def test_an_answer_streams_ends_and_is_stored(controller: Controller, store: Store) -> None:
    chat_id = asked(controller)
    say(controller, PromptProgress(chat_id, 9, 20, 0))
    assert controller.chats[chat_id].state_words == "reading 45 %"
    say(controller, text(chat_id, "Light "), text(chat_id, "bends.", 2))
    assert controller.chats[chat_id].phase == "decode"
    say(controller, ended(chat_id))
    turn = controller.chats[chat_id].turns[-1]
    assert (turn.content, turn.kind) == ("Light bends.", "done")
    assert turn.quiet_line == "3 tokens · 14.2 tok/s · 1.0 KB cache · 4.0× smaller"
    assert store.messages(chat_id)[-1].content == "Light bends."
    assert not controller.chats[chat_id].answering


def test_text_of_one_drain_is_one_signal(controller: Controller, qtbot: QtBot) -> None:
    chat_id = asked(controller)
    heard: list[int] = []
    controller.streamed.connect(heard.append)
    say(controller, *(text(chat_id, "x", n) for n in range(50)))
    assert heard == [chat_id]


def test_a_stopped_answer_keeps_its_text(controller: Controller, engine: ScriptedEngine) -> None:
    chat_id = asked(controller)
    say(controller, text(chat_id, "Half an"))
    controller.stop(chat_id)
    assert engine.commands[-1] == Stop(chat_id)
    say(controller, ended(chat_id, "stopped"))
    assert controller.chats[chat_id].turns[-1].content == "Half an"
    assert controller.chats[chat_id].turns[-1].quiet_line.startswith("Stopped · ")


def test_a_failure_stays_in_its_chat_and_can_be_tried_again(
    controller: Controller, engine: ScriptedEngine, store: Store
) -> None:
    first, second = asked(controller), asked(controller)
    say(controller, ChatFailed(first, "The pool is full."), text(second, "fine"))
    assert controller.chats[first].turns[-1] == Turn("assistant", "", "failed", "The pool is full.")
    assert controller.chats[second].answering
    assert controller.answer_again(first)
    assert len(controller.chats[first].turns) == len(store.messages(first)) == 2
    sent = engine.commands[-1]
    assert isinstance(sent, Send)
    assert sent.chat_id == first


def test_answering_again_asks_the_same_question(controller: Controller, engine: ScriptedEngine) -> None:
    chat_id = asked(controller)
    say(controller, text(chat_id, "One"), ended(chat_id))
    before = engine.told(Send)[-1]
    controller.answer_again(chat_id)
    assert engine.told(Send)[-1] == before
    assert controller.chats[chat_id].turns[-1].content == ""


def test_nothing_is_sent_while_answering_or_without_a_model(controller: Controller, engine: ScriptedEngine) -> None:
    chat_id = asked(controller)
    assert not controller.send(chat_id, "And?")
    say(controller, ended(chat_id), ModelFailed("Broken.", False))
    assert not controller.send(chat_id, "And?")
    assert not controller.start_comparison("And?", [CacheChoice()])
    assert len(engine.told(Send)) == 1


def test_the_model_says_how_far_it_is(engine: ScriptedEngine, store: Store, qtbot: QtBot) -> None:
    controller = Controller(engine, store)
    controller.start("/models/x")
    assert engine.commands == [LoadModel("/models/x")]
    assert not controller.can_send
    say(controller, ModelProgress("reading weights", 0.6))
    assert controller.model.words == "Loading model: reading weights… 60 %"
    say(controller, ModelFailed("No model.", True))
    controller.fetch_default_model()
    assert engine.commands[-1] == FetchDefaultModel()
    assert controller.model.phase == "loading"
    controller.save_all()


def test_closing_a_chat_forgets_it_everywhere(controller: Controller, engine: ScriptedEngine, store: Store) -> None:
    chat_id = asked(controller)
    controller.close_chat(chat_id)
    assert engine.commands[-1] == CloseChat(chat_id)
    assert store.chats() == []
    say(controller, text(chat_id, "late"), ended(chat_id), report(1.0, c1=5))  # nobody is there to hear it


def test_a_chat_never_asked_is_unknown_to_the_engine(controller: Controller, engine: ScriptedEngine) -> None:
    controller.close_chat(controller.new_chat())
    assert engine.commands == []


def test_chats_come_back_after_a_start(controller: Controller, engine: ScriptedEngine, store: Store) -> None:
    chat_id = asked(controller)
    say(controller, text(chat_id, "Light."), ended(chat_id))
    other = asked(controller, "Second")
    say(controller, text(other, "Half"))
    controller.save_all()
    again = Controller(ScriptedEngine(), store)
    assert [turn.content for turn in again.chats[chat_id].turns] == ["What is a rainbow?", "Light."]
    assert again.chats[chat_id].turns[-1].quiet_line == controller.chats[chat_id].turns[-1].quiet_line
    assert again.chats[other].turns[-1] == Turn("assistant", "Half", "stopped", "")
    assert again.chats[chat_id].colour == controller.chats[chat_id].colour


def test_the_method_can_change_until_the_first_question(controller: Controller, store: Store) -> None:
    chat_id = controller.new_chat(CacheChoice("fp16"))
    controller.set_choice(chat_id, CacheChoice("turboquant_mse", 2, 2))
    assert store.chats()[0].key_bits == 2
    controller.send(chat_id, "Hello")
    controller.set_choice(chat_id, CacheChoice("fp16"))
    assert controller.chats[chat_id].choice.key_bits == 2


def test_the_tour_can_have_the_same_answers_every_time(controller: Controller, engine: ScriptedEngine) -> None:
    controller.sampling = Sampling(max_tokens=64)
    chat_id = asked(controller)
    assert engine.commands[-1] == Send(chat_id, (Message("user", "What is a rainbow?"),), Sampling(max_tokens=64))


def test_the_last_choice_is_remembered(controller: Controller, store: Store) -> None:
    controller.last_choice = CacheChoice("turboquant_mse", 3, 2)
    assert Controller(ScriptedEngine(), store).last_choice == CacheChoice("turboquant_mse", 3, 2)


@pytest.mark.parametrize("written", ["", "gone/4/4", "turboquant_mse/x/4", "turboquant_mse/99/4"])
def test_a_choice_that_cannot_be_read_is_the_default(controller: Controller, written: str) -> None:
    controller.remember("choice", written)
    assert controller.last_choice == CacheChoice()


def test_chats_have_colours_of_their_own(controller: Controller) -> None:
    colours = {controller.chats[controller.new_chat()].colour for _ in range(8)}
    assert colours == set(range(8))


def test_memory_is_shared_out(controller: Controller) -> None:
    first, second = asked(controller), asked(controller)
    assert (first, second) == (1, 2)
    say(controller, report(1.0, c1=100, c2=300))
    assert controller.memory.total_bytes == 400
    assert controller.memory.uncompressed_bytes == 1600
    memory = controller.chats[second].memory
    assert memory is not None
    assert memory.memory_bytes == 300


def test_lanes_run_greedily_side_by_side(controller: Controller, engine: ScriptedEngine) -> None:
    choices = (CacheChoice("fp16"), CacheChoice())
    assert controller.start_comparison("Why?", choices)
    first, second = controller.comparison.lanes
    assert (first.id, second.id) == (-1, -2)
    sends = [command for command in engine.commands if isinstance(command, Send)]
    assert [(s.chat_id, s.sampling.temperature, s.sampling.max_tokens) for s in sends] == [
        (-1, 0.0, 128),
        (-2, 0.0, 128),
    ]
    assert all(s.time_alone for s in sends), "together, all share each step"
    say(controller, text(-1, "Because of light."), text(-2, "Because of rain."))
    say(controller, ended(-1, "length"), ended(-2))
    difference = controller.comparison.difference(second)
    assert difference is not None
    assert difference.words == 2
    assert controller.comparison.difference(first) is None
    assert not controller.comparison.running


def test_running_again_closes_the_old_lanes_and_ignores_their_late_words(
    controller: Controller, engine: ScriptedEngine
) -> None:
    controller.start_comparison("Why?", [CacheChoice("fp16"), CacheChoice()])
    controller.start_comparison("How?", [CacheChoice("fp16"), CacheChoice()])
    assert engine.told(CloseChat) == [CloseChat(-1), CloseChat(-2)]
    say(controller, text(-1, "late"))
    assert [lane.id for lane in controller.comparison.lanes] == [-3, -4]
    assert all(not lane.text for lane in controller.comparison.lanes)
    controller.clear_comparison()
    assert engine.told(CloseChat)[2:] == [CloseChat(-3), CloseChat(-4)]


def test_a_stopped_engine_can_be_replaced(engine: ScriptedEngine, store: Store, qtbot: QtBot) -> None:
    fresh = ScriptedEngine()
    controller = Controller(engine, store, lambda: fresh)
    say(controller, ModelReady(INFO))
    chat_id = asked(controller)
    say(controller, text(chat_id, "Half"), EngineStopped("RuntimeError: no memory"))
    assert controller.model.phase == "stopped"
    turn = controller.chats[chat_id].turns[-1]
    assert (turn.content, turn.kind) == ("Half", "failed")
    controller.restart_engine()
    assert fresh.started == 1
    assert fresh.commands == [LoadModel(None)]
    say(controller, ModelReady(INFO))
    controller.answer_again(chat_id)
    assert [type(command) for command in fresh.commands[1:]] == [OpenChat, Send]
    controller.save_all()


def test_after_the_worker_died_nothing_said_is_lost(engine: ScriptedEngine, store: Store, qtbot: QtBot) -> None:
    fresh = ScriptedEngine()
    controller = Controller(engine, store, lambda: fresh)
    controller.start()
    say(controller, ModelReady(INFO))
    controller.set_budget(60_000_000, True)
    idle, busy, waits = asked(controller, "One"), asked(controller, "Two"), asked(controller, "Three")
    say(controller, text(idle, "Answer."), ended(idle), text(busy, "Half an"), BudgetSet(60_000_000, True))
    say(controller, ChatWaiting(waits, 2, 1, "No memory."), EngineStopped("RuntimeError: no memory"))
    assert not any(chat.answering or chat.opened for chat in controller.chats.values())
    assert [[turn.content for turn in chat.turns] for chat in controller.chats.values()] == [
        ["One", "Answer."],
        ["Two", "Half an"],
        ["Three", ""],
    ]
    failed = Turn("assistant", "Half an", "failed", "The engine stopped while answering.")
    assert controller.chats[busy].turns[-1] == failed
    assert [m.content for m in store.messages(busy)] == ["Two", "Half an"]
    assert Controller(ScriptedEngine(), store).chats[busy].turns[-1] == failed
    controller.restart_engine()
    assert fresh.commands == [SetBudget(60_000_000, True), LoadModel(None)]
    say(controller, ModelReady(INFO))
    controller.continue_answer(busy)
    opened, sent = fresh.commands[2:]
    assert opened == OpenChat(busy, CacheChoice("fp16"))
    assert isinstance(sent, Send)
    assert [m.content for m in sent.messages] == ["Two", "Half an"]
    assert controller.fork_chat(idle, 2) is not None
    assert len(fresh.commands) == 4, "a chat that is not open is not forked in the engine"
    controller.send(idle, "And?")
    assert fresh.commands[4] == OpenChat(idle, CacheChoice("fp16"))
    controller.save_all()


def test_a_full_disk_does_not_end_a_chat(controller: Controller, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StoreError("The disk is full.")

    for name in ("add_chat", "add_message", "replace_last_message", "rename_chat"):
        monkeypatch.setattr(store, name, full)
    chat_id = asked(controller)
    say(controller, text(chat_id, "still here"), ended(chat_id))
    assert controller.chats[chat_id].turns[-1].content == "still here"
    assert controller.save_error == "The disk is full."


def test_the_model_is_told_what_was_said_and_not_why_it_failed() -> None:
    turns = [
        Turn("user", "One"),
        Turn("assistant", "", "failed", "Pool full."),
        Turn("user", "Two"),
        Turn("assistant", "Half", "stopped"),
        Turn("user", "Three"),
        Turn("assistant", "Broken off", "failed", "Pool full."),
        Turn("user", "Four"),
    ]
    assert [(m.role, m.content) for m in conversation_of(turns)] == [
        ("user", "One\n\nTwo"),
        ("assistant", "Half"),
        ("user", "Three"),
        ("assistant", "Broken off"),
        ("user", "Four"),
    ]
