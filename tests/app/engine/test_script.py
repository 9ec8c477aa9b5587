"""The engine as a script uses it: load, open, ask, stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.engine import CacheChoice, Engine, EngineError, Message, Sampling, default_budget
from tests.app.engine.driver import Driver

SHORT = Sampling(max_tokens=12)


@pytest.fixture
def engine(tiny_model_dir: Path) -> Iterator[Engine]:
    with Engine() as engine:
        engine.load(str(tiny_model_dir))
        yield engine


def answers(engine: Engine) -> dict[int, str]:
    said: dict[int, str] = {}
    for chat_id, text in engine.stream():
        said[chat_id] = said.get(chat_id, "") + text
    return said


def test_three_chats_with_a_method_each(default_model_dir: Path) -> None:
    with Engine() as engine:
        info = engine.load(str(default_model_dir))
        assert info.n_layers == 30
        assert info.folder == str(default_model_dir)
        for chat_id, choice in enumerate((None, CacheChoice("fp16"), CacheChoice("turboquant_mse", 2, 2))):
            engine.open(chat_id, choice)
            engine.ask(chat_id, "What is the capital of France?", Sampling(max_tokens=20))
        said = answers(engine)
        assert sorted(said) == [0, 1, 2]
        assert all("Paris" in text for text in said.values())
        assert not list(engine.stream())  # nothing else was asked


def test_it_says_what_the_events_say(engine: Engine, tiny: Driver) -> None:
    tiny.open(1)
    expected = tiny.ask(1, "Hello", max_tokens=12)
    engine.open(1, CacheChoice("fp16"))
    engine.ask(1, "Hello", SHORT)
    assert answers(engine) == {1: expected}


def test_a_whole_conversation_is_answered(engine: Engine, tiny: Driver) -> None:
    texts = ("Hello", "Hi, who are you?", "Ann")
    tiny.open(1)
    expected = tiny.ask(1, *texts, max_tokens=12)
    engine.open(1, CacheChoice("fp16"))
    roles = ("user", "assistant", "user")
    conversation = [Message(role, text) for role, text in zip(roles, texts, strict=True)]  # type: ignore[arg-type]
    engine.ask(1, conversation, SHORT)
    assert answers(engine) == {1: expected}
    engine.ask(1, (Message("system", "Be brief."), *conversation), SHORT)
    assert answers(engine)[1] != expected


def test_two_questions_to_one_chat_have_two_ends(engine: Engine) -> None:
    """The second one ends the answer to the first, and has one of its own."""
    engine.open(1, CacheChoice("fp16"))
    engine.ask(1, "Hello", SHORT)
    expected = answers(engine)[1]
    engine.ask(1, "Something long", Sampling(max_tokens=1_500))
    engine.ask(1, "Hello", SHORT)
    assert answers(engine)[1].endswith(expected)


def test_a_chat_that_fails_says_which_and_why_and_the_others_can_be_heard_out(engine: Engine) -> None:
    engine.open(1)
    engine.ask(1, "Hello", Sampling(max_tokens=40))
    engine.ask(2, "Hello")  # was never opened
    with pytest.raises(EngineError, match=r"^Chat 2: This chat is closed"):
        answers(engine)
    assert answers(engine)[1]


def test_a_model_that_cant_be_loaded_raises_and_the_engine_serves_on(
    engine: Engine, tmp_path: Path, tiny_model_dir: Path
) -> None:
    with pytest.raises(EngineError, match=r"no model folder: it has no config\.json"):
        engine.load(str(tmp_path))
    engine.open(1)
    engine.ask(1, "Hello")
    with pytest.raises(EngineError, match=r"^Chat 1: No model is loaded"):
        answers(engine)
    assert engine.load(str(tiny_model_dir)).folder == str(tiny_model_dir)
    engine.ask(1, "Hello", SHORT)
    assert answers(engine)[1]


def test_what_ends_while_another_model_is_loaded_is_not_waited_for_in_vain(
    engine: Engine, tiny_model_dir: Path
) -> None:
    engine.open(1)
    engine.ask(1, "Hello", Sampling(max_tokens=1_500))
    engine.load(str(tiny_model_dir))
    with pytest.raises(EngineError, match=r"^Chat 1: .*The model was changed"):
        answers(engine)
    assert not list(engine.stream())


def test_the_default_model_missing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VELOXQUANT_MODELS_DIR", str(tmp_path))
    with Engine() as engine, pytest.raises(EngineError, match="not on this computer yet"):
        engine.load()


def test_an_engine_that_has_stopped_says_so_however_often_it_is_asked(engine: Engine, tiny_model_dir: Path) -> None:
    engine.open(1)
    engine.ask(1, "Hello", Sampling(max_tokens=1_500))
    assert engine.shutdown(60)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"has stopped \(it was asked to\)"):
            answers(engine)
        with pytest.raises(EngineError, match="has stopped"):
            engine.load(str(tiny_model_dir))


def test_an_engine_that_died_says_of_what(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.engine.worker import Worker

    def report(self: Worker, *, now: bool = False) -> None:
        raise RuntimeError("the ground opened")

    monkeypatch.setattr(Worker, "_report", report)
    engine.open(1)
    engine.ask(1, "Hello")
    for _ in range(2):
        with pytest.raises(EngineError, match=r"has stopped .*RuntimeError: the ground opened.* Make another one"):
            answers(engine)


def test_an_engine_that_was_not_started_says_how() -> None:
    engine = Engine()
    with pytest.raises(EngineError, match="with Engine"):
        engine.load()
    engine.ask(1, "Hello")
    with pytest.raises(EngineError, match="with Engine"):
        answers(engine)


def test_a_quarter_of_the_memory_is_the_budget_where_nobody_said_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.engine.engine.installed_memory", lambda: 16_000_000_000)
    assert default_budget() == 4_000_000_000
    monkeypatch.setattr("app.engine.engine.installed_memory", lambda: None)
    assert 1_000_000_000 < default_budget() < 4_000_000_000


def test_a_chat_that_is_closed_or_opened_again_is_not_waited_for(engine: Engine) -> None:
    from app.engine.messages import CloseChat

    for chat_id in (1, 2, 3):
        engine.open(chat_id)
        engine.ask(chat_id, "Hello", Sampling(max_tokens=400 if chat_id < 3 else 12))
    engine.submit(CloseChat(1))
    engine.open(2)
    assert answers(engine).keys() >= {3}
