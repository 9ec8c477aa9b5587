"""Several chats at once, as a person would have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.engine.chat import Answer
from app.engine.messages import (
    METHODS,
    AnswerEnded,
    AnswerText,
    ChatFailed,
    CloseChat,
    ModelReady,
    PromptProgress,
    Stop,
)
from tests.app.engine.driver import Driver

LONG = "Tell me everything about the history of the bicycle. " * 12


# ---------------------------------------------------------------- with the real model
def test_three_chats_with_different_methods_stream_at_the_same_time(real: Driver) -> None:
    questions = ["What is the capital of France?", "Write a poem about the sea.", "How do I make bread?"]
    for chat_id, (method, bits) in enumerate([("fp16", 4), ("turboquant_mse", 4), ("turboquant_mse", 2)]):
        real.open(chat_id, method, bits)
        real.send(chat_id, questions[chat_id], max_tokens=24)
    ends = real.finish(0, 1, 2)
    assert all(isinstance(end, AnswerEnded) for end in ends.values())
    assert "Paris" in real.text(0)
    pieces = [e.chat_id for e in real.log if isinstance(e, AnswerText)]
    assert {0, 1, 2} <= set(pieces[: pieces.index(pieces[-1]) + 12])  # taking turns from the start, not one by one
    held = real.memory(lambda report: all(chat.state == "idle" for chat in report.chats))
    assert [chat.memory_bytes > 0 for chat in held.chats] == [True] * 3
    assert held.pool.blocks_in_use == sum(chat.blocks_held for chat in held.chats)
    for chat_id in range(3):
        real.engine.submit(CloseChat(chat_id))
    assert real.memory(lambda report: not report.chats).pool.blocks_in_use == 0


def test_every_method_answers_with_the_real_model_at_the_same_time(real: Driver) -> None:
    """A prompt long enough that each method codes most of it; and every block comes back."""
    story = "The capital of France is Paris, and the river there is the Seine. " * 9
    for chat_id, method in enumerate(METHODS):
        real.open(chat_id, method)
        real.send(chat_id, f"{story} What is the capital of France?", max_tokens=8)
    ends = real.finish(*range(len(METHODS)))
    assert all(isinstance(end, AnswerEnded) for end in ends.values())
    for chat_id, method in enumerate(METHODS):
        assert "Paris" in real.text(chat_id), method
    report = real.memory(lambda report: all(chat.state == "idle" for chat in report.chats))
    held = {chat.chat_id: chat.memory_bytes for chat in report.chats}
    plain = held[list(METHODS).index("fp16")]
    for chat_id, method in enumerate(METHODS):
        if method != "fp16":
            assert held[chat_id] < plain * 0.75, method
        real.engine.submit(CloseChat(chat_id))
    assert real.memory(lambda report: not report.chats).pool.blocks_in_use == 0


def test_the_second_question_only_computes_what_is_new(real: Driver) -> None:
    real.open(10, "turboquant_mse", 4)
    first = real.ask(10, "Name three planets.")
    second = real.ask(10, "Name three planets.", first, "And three rivers.")
    stats = [e.stats for e in real.log if isinstance(e, AnswerEnded) and e.chat_id == 10]
    assert stats[1].reused_tokens >= stats[0].prompt_tokens + stats[0].tokens - 1
    real.open(11, "fp16")
    assert second.split()[:3] == real.ask(11, "Name three planets.", first, "And three rivers.").split()[:3]


# ---------------------------------------------------------------- with a tiny one
def test_a_chat_answers_the_same_alone_and_among_others(tiny: Driver) -> None:
    tiny.open(1, "turboquant_mse", 4)
    alone = tiny.ask(1, LONG, max_tokens=40)
    for chat_id in (2, 3, 4):
        tiny.open(chat_id, "turboquant_mse", 4)
        tiny.send(chat_id, LONG if chat_id == 3 else f"Something else, number {chat_id}.", max_tokens=40)
    tiny.finish(2, 3, 4)
    assert tiny.text(3) == alone


def test_stopping_one_answer_keeps_its_text_and_leaves_the_others_alone(tiny: Driver) -> None:
    for chat_id in (1, 2):
        tiny.open(chat_id)
        tiny.send(chat_id, "Hello", max_tokens=400 if chat_id == 1 else 60)
    tiny.until(lambda e: isinstance(e, AnswerText) and e.chat_id == 1)
    tiny.engine.submit(Stop(1))
    ends = tiny.finish(1, 2)
    stopped = ends[1]
    assert isinstance(stopped, AnswerEnded)
    assert stopped.reason == "stopped"
    assert tiny.text(1)
    assert 0 < stopped.stats.tokens < 400
    assert isinstance(ends[2], AnswerEnded)


def test_a_stopped_answer_can_be_followed_by_another_question(tiny: Driver) -> None:
    tiny.open(1, "turboquant_mse", 2)
    tiny.send(1, "Hello", max_tokens=400)
    tiny.until(lambda e: isinstance(e, AnswerText))
    tiny.engine.submit(Stop(1))
    tiny.finish(1)
    assert tiny.ask(1, "Hello", tiny.text(1), "Go on")


def test_stopping_a_chat_that_is_not_answering_does_nothing(tiny: Driver) -> None:
    tiny.open(1)
    tiny.engine.submit(Stop(1))
    tiny.engine.submit(Stop(99))
    assert tiny.ask(1, "Hello")


def test_closing_a_chat_at_any_moment_gives_every_block_back(tiny: Driver) -> None:
    tiny.open(1)
    tiny.send(1, LONG)
    tiny.until(lambda e: isinstance(e, PromptProgress) and 0 < e.done < e.total - 1)  # while reading
    tiny.engine.submit(CloseChat(1))
    tiny.open(2)
    tiny.send(2, "Hello", max_tokens=400)
    tiny.until(lambda e: isinstance(e, AnswerText) and e.chat_id == 2)  # while answering
    tiny.engine.submit(CloseChat(2))
    assert tiny.memory(lambda report: not report.chats).pool.blocks_in_use == 0


def test_a_long_prompt_reports_progress_up_to_its_end(tiny: Driver) -> None:
    tiny.open(1)
    tiny.ask(1, LONG)
    steps = [e for e in tiny.log if isinstance(e, PromptProgress)]
    assert [e.done for e in steps] == sorted(e.done for e in steps)
    assert steps[0].done == 0
    assert steps[-1].done == steps[-1].total - 1  # the last token makes the first word of the answer
    assert len(steps) > 2


# ---------------------------------------------------------------- things that go wrong in one chat
def test_words_that_can_not_be_written_out_end_that_answer_only(tiny: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token outside the tokenizer's vocabulary took the engine down, and every chat with it."""
    real = Answer.hand_out

    def hand_out(self: Answer, token: int) -> str:
        if "number 1" in self.messages[0].content:
            raise IndexError("list index out of range")
        return real(self, token)

    monkeypatch.setattr(Answer, "hand_out", hand_out)
    for chat_id in (1, 2):
        tiny.open(chat_id)
        tiny.send(chat_id, f"Hello, number {chat_id}", max_tokens=40)
    ends = tiny.finish(1, 2)
    assert isinstance(ends[1], ChatFailed)
    assert isinstance(ends[2], AnswerEnded)


def test_the_speed_of_an_answer_that_ends_by_itself_counts_its_words_only(real: Driver) -> None:
    """The step that finds the end of the answer hands nothing out, and is in no interval between two tokens."""
    real.open(20)
    real.send(20, "What is the capital of France?", max_tokens=60)
    ended = real.finish(20)[20]
    assert isinstance(ended, AnswerEnded)
    assert ended.reason == "stop"
    stats = ended.stats
    # Alone in the engine, what a person sees can't be slower than the chat's own steps by much.
    assert stats.tokens_per_s > 0.8 * stats.own_tokens_per_s


def test_a_conversation_longer_than_the_model_reads_is_refused_with_both_numbers(tiny: Driver) -> None:
    tiny.open(1)
    tiny.send(1, "word " * 3_000)
    failed = tiny.finish(1)[1]
    assert isinstance(failed, ChatFailed)
    assert "2,048" in failed.message
    assert tiny.ask(1, "Hello")


def test_an_answer_ends_where_the_models_context_is_full(tiny: Driver) -> None:
    tiny.open(1)
    tiny.send(1, "word " * 1_900, max_tokens=1_000)
    end = tiny.finish(1)[1]
    assert isinstance(end, AnswerEnded)
    assert end.reason in ("context", "stop")
    assert end.stats.prompt_tokens + end.stats.tokens <= 2_048


def test_sending_before_a_model_is_there_says_so(tiny_model_dir: Path) -> None:
    driver = Driver()
    driver.open(1)
    driver.send(1, "Hello")
    failed = driver.finish(1)[1]
    assert isinstance(failed, ChatFailed)
    assert "No model is loaded" in failed.message
    assert isinstance(driver.load(tiny_model_dir), ModelReady)
    assert driver.ask(1, "Hello")
    driver.end()


def test_sending_to_a_closed_chat_says_so(tiny: Driver) -> None:
    tiny.send(77, "Hello")
    failed = tiny.finish(77)[77]
    assert isinstance(failed, ChatFailed)
    assert "closed" in failed.message
