"""A chat's next turns: what is computed again, how answers go on, and what happens where the context ends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

from app.engine.chat import Chat
from app.engine.messages import (
    AnswerEnded,
    AnswerText,
    ChatFailed,
    ChatForked,
    CloseChat,
    ContextNearlyFull,
    EngineStopped,
    Event,
    ForkChat,
    Message,
    PromptProgress,
    Sampling,
    Send,
    Stop,
    TurnsDropped,
)
from app.engine.runner import Runner
from app.engine.step import Done, Step
from tests.app.engine.driver import Driver, conversation

QUESTION = "Tell me about the river Seine."
LONG = "Tell me everything about the history of the bicycle. " * 12
SYSTEM = Message("system", "You speak like a pirate, and always of the sea.")
FIVE = ("one two three four five " * 4, "six seven " * 6, "eight nine ten " * 5, "eleven " * 12, "Go on counting.")


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Any:
    return load_tokenizer(default_model_dir)


class Told:
    """What every chat's model is given, and what it says, read where it happens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prompts: list[list[int]] = []
        self.tokens: list[int] = []
        self.most_held = 0
        common, run, ends = Chat.common, Runner.run, (2,)

        def watch_prompt(chat: Chat, tokens: list[int]) -> int:
            self.prompts.append(list(tokens))
            return common(chat, tokens)

        def watch_run(runner: Runner, step: Step) -> Done:
            done = run(runner, step)
            self.tokens += [token for _, token in done.tokens if token not in ends]
            held = (runner._sequences[row.chat_id].n_held for row in step.rows or ())
            self.most_held = max([self.most_held, *held])
            return done

        monkeypatch.setattr(Chat, "common", watch_prompt)
        monkeypatch.setattr(Runner, "run", watch_run)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def send(driver: Driver, chat_id: int, messages: Sequence[Message], **settings: Any) -> AnswerEnded | ChatFailed:
    """Send any conversation and wait for its answer's end."""
    driver.engine.submit(Send(chat_id, tuple(messages), **settings))
    end = driver.until(lambda e: isinstance(e, (AnswerEnded, ChatFailed)) and e.chat_id == chat_id)
    assert isinstance(end, (AnswerEnded, ChatFailed))
    return end


def prompt_of(tokenizer: Any, *texts: str) -> list[int]:
    plain = [{"role": message.role, "content": message.content} for message in conversation(*texts)]
    tokens: list[int] = tokenizer.apply_chat_template(plain, add_generation_prompt=True)
    return tokens


def same_beginning(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def text_of(tokenizer: Any, tokens: list[int]) -> str:
    detokenizer = tokenizer.detokenizer
    for token in tokens:
        detokenizer.add_token(token)
    detokenizer.finalize()
    text: str = detokenizer.text
    return text.rstrip("\ufffd")


def since(driver: Driver, n: int, kind: type[Event]) -> list[Any]:
    return [event for event in driver.log[n:] if isinstance(event, kind)]


# ---------------------------------------------------------------- only what is new is computed
def test_the_next_turn_computes_the_new_question_only_and_says_so(real: Driver, tokenizer: Any) -> None:
    real.open(1)
    answer = real.ask(1, QUESTION, max_tokens=30)
    asked = prompt_of(tokenizer, QUESTION)
    assert real.ended(1).stats.prompt_tokens == len(asked)
    assert real.ended(1).stats.reused_tokens == 0
    n = len(real.log)
    real.ask(1, QUESTION, answer, "And the Nile?", max_tokens=3)
    stats, progress = real.ended(1).stats, since(real, n, PromptProgress)
    both = prompt_of(tokenizer, QUESTION, answer, "And the Nile?")
    assert stats.prompt_tokens == len(both)
    assert stats.computed_tokens == len(both) - stats.reused_tokens
    # All of the first turn but its last token, which was never in the model.
    new = len(both) - len(asked) - len(tokenizer.encode(answer, add_special_tokens=False))
    assert stats.computed_tokens <= new + 1
    assert progress[0] == PromptProgress(1, stats.reused_tokens, len(both), stats.reused_tokens)
    assert progress[-1].done == len(both) - 1
    assert {e.reused for e in progress} == {stats.reused_tokens}


@pytest.mark.parametrize("method", ["fp16", "turboquant_mse"])
def test_the_same_question_again_computes_its_last_token_only(tiny: Driver, method: str) -> None:
    tiny.open(1, method)
    first = tiny.ask(1, QUESTION)
    assert tiny.ask(1, QUESTION) == first
    assert tiny.ended(1).stats.computed_tokens == 1
    assert tiny.ask(1, QUESTION, sampling=Sampling(temperature=1.0, seed=4, max_tokens=16)) != first


def test_an_edited_message_computes_from_the_edit_on(tiny: Driver, tokenizer: Any) -> None:
    before = ("Hello, my name is Ann.", "Hi!", "Where is Rome?", "In Italy.", "And Paris?")
    after = (*before[:2], "Where is Oslo?", "In Norway.", "And Bergen?")
    tiny.open(1)
    tiny.ask(1, *before)
    answer = tiny.ask(1, *after)
    same = same_beginning(prompt_of(tokenizer, *before), prompt_of(tokenizer, *after))
    assert tiny.ended(1).stats.reused_tokens == same > len(prompt_of(tokenizer, *before[:1]))
    tiny.open(2)
    assert tiny.ask(2, *after) == answer


# ---------------------------------------------------------------- answers that go on
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, seed=3, repetition_penalty=1.1)])
def test_a_stopped_answer_and_the_rest_of_it_are_the_answer_in_one_go(real: Driver, sampling: Sampling) -> None:
    whole_sampling = replace(sampling, max_tokens=70)
    for chat_id in (10, 11):
        real.open(chat_id)
    whole = real.ask(10, QUESTION, sampling=whole_sampling)
    n_whole = real.ended(10).stats.tokens
    before = len(real.text(11))
    real.send(11, QUESTION, sampling=whole_sampling)
    real.until(lambda e: isinstance(e, AnswerText) and e.chat_id == 11 and e.n_tokens >= 15)
    real.engine.submit(Stop(11))
    real.finish(11)
    assert real.ended(11).reason == "stopped"
    n_first = real.ended(11).stats.tokens
    assert n_first < n_whole  # the premise: it was stopped in the middle
    first = real.text(11)[before:]
    rest = real.ask(11, QUESTION, first, sampling=replace(sampling, max_tokens=70 - n_first))
    assert first + rest == whole
    assert real.ended(11).stats.computed_tokens == 1
    assert real.ended(11).stats.tokens == n_whole - n_first


def test_an_answer_goes_on_token_by_token_as_in_one_go(tiny: Driver) -> None:
    """A random model says anything: half characters, single spaces, special tokens."""
    sampling = Sampling(temperature=1.0, seed=11, max_tokens=60)
    tiny.open(1)
    whole, n_whole = tiny.ask(1, QUESTION, sampling=sampling), tiny.ended(1).stats.tokens
    tiny.open(2)
    text = tiny.ask(2, QUESTION, sampling=Sampling(temperature=1.0, seed=11, max_tokens=1))
    for _ in range(n_whole - 1):
        text += tiny.ask(2, QUESTION, text, sampling=Sampling(temperature=1.0, seed=11, max_tokens=1))
        assert tiny.ended(2).stats.computed_tokens == 1
    assert text == whole


@pytest.mark.parametrize("said", ["The Seine is", "  The Seine", "\n\n- The", "The Seine is a river \n", " ", "é"])
def test_the_model_is_told_an_answers_beginning_to_the_letter(
    real: Driver, tokenizer: Any, told: Told, said: str
) -> None:
    """And goes on from there as mlx-lm would; a space that the rest begins with is not lost."""
    real.open(12)
    rest = real.ask(12, QUESTION, said, max_tokens=12)
    prompt = told.prompts[-1]
    assert tokenizer.decode(prompt) == tokenizer.decode(prompt_of(tokenizer, QUESTION)) + said
    whole = tokenizer.decode(prompt + told.tokens[-12:]).removesuffix("<|im_end|>")
    assert whole == tokenizer.decode(prompt) + rest
    if said == "The Seine is":
        assert rest.startswith(" ")


def test_an_answer_that_a_stop_text_ended_goes_on_behind_what_was_shown(
    real: Driver, tokenizer: Any, told: Told
) -> None:
    """The model had said the stop text; nobody was shown it, so it is no part of the answer that goes on."""
    real.open(13)
    whole = real.ask(13, QUESTION, max_tokens=40)
    stop = whole[60:66]
    real.open(14)
    shown = real.ask(14, QUESTION, sampling=Sampling(max_tokens=40, stop=(stop,)))
    assert shown == whole[: whole.index(stop)]
    real.ask(14, QUESTION, shown, max_tokens=4)
    assert tokenizer.decode(told.prompts[-1]) == tokenizer.decode(prompt_of(tokenizer, QUESTION)) + shown


# ---------------------------------------------------------------- where the context ends
def test_a_context_that_fills_up_is_told_of_once_and_before_the_end(tiny: Driver) -> None:
    tiny.open(1)
    n = len(tiny.log)
    end = send(tiny, 1, conversation(QUESTION), sampling=Sampling(max_tokens=500), context_limit=100)
    assert isinstance(end, AnswerEnded)
    assert end.reason == "context"
    assert end.stats.prompt_tokens + end.stats.tokens == 100
    (warning,) = since(tiny, n, ContextNearlyFull)
    assert warning == ContextNearlyFull(1, 85, 100)
    after = since(tiny, tiny.log.index(warning), AnswerText)
    assert len(after) > 5
    assert not since(tiny, n, TurnsDropped)


def test_an_answer_at_a_limit_ends_there_with_nothing_left_out(tiny: Driver, told: Told) -> None:
    tiny.open(1)
    n = len(tiny.log)
    end = send(tiny, 1, conversation(*FIVE), sampling=Sampling(max_tokens=500), context_limit=200)
    assert isinstance(end, AnswerEnded)
    assert end.reason == "context"
    assert not since(tiny, n, TurnsDropped)
    assert len(told.prompts) == 1
    assert told.most_held < 200
    assert end.stats.prompt_tokens + end.stats.tokens == 200


def test_with_leave_the_oldest_turns_are_left_out_in_the_middle_of_an_answer(
    tiny: Driver, tokenizer: Any, told: Told
) -> None:
    tiny.open(1)
    n = len(tiny.log)
    messages = (SYSTEM, *conversation(*FIVE))
    sampling = Sampling(temperature=1.0, seed=5, max_tokens=70)
    end = send(tiny, 1, messages, sampling=sampling, context_limit=160, drop_oldest=True)
    assert isinstance(end, AnswerEnded)
    (dropped,) = since(tiny, n, TurnsDropped)
    assert dropped.n_messages in (2, 4)
    whole, shorter = told.prompts
    said = shorter[len(shorter) - (160 - len(whole)) :]
    assert said == told.tokens[: len(said)]  # all that had been said, and from there on
    kept = (SYSTEM, *messages[1 + dropped.n_messages :])
    plain = [{"role": message.role, "content": message.content} for message in kept]
    assert shorter[: -len(said)] == tokenizer.apply_chat_template(plain, add_generation_prompt=True)
    before, after = (
        "".join(e.text for e in since(tiny, n, AnswerText) if (e.n_tokens <= len(said)) == is_before)
        for is_before in (True, False)
    )
    assert before
    assert after
    # Neither a gap nor anything twice.
    assert before + after == text_of(tokenizer, told.tokens[: end.stats.tokens])
    assert end.stats.tokens > len(said) + 10
    assert told.most_held <= 160


def test_with_leave_turns_are_left_out_on_the_next_question(tiny: Driver, tokenizer: Any, told: Told) -> None:
    tiny.open(1)
    texts: list[str] = []
    counts = []
    for i in range(7):
        texts.append(f"Question {i}: " + "tell me more " * 8)
        n = len(tiny.log)
        end = send(
            tiny,
            1,
            (SYSTEM, *conversation(*texts)),
            sampling=Sampling(max_tokens=5),
            context_limit=200,
            drop_oldest=True,
        )
        assert isinstance(end, AnswerEnded)
        counts.append(sum(e.n_messages for e in since(tiny, n, TurnsDropped)))
        assert len(told.prompts[-1]) + 5 <= 200
        assert tokenizer.decode(told.prompts[-1]).endswith(f"{texts[-1]}<|im_end|>\n<|im_start|>assistant\n")
        texts.append(text_of(tokenizer, told.tokens[-end.stats.tokens :]))
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] > 0
    assert len(set(counts)) < len(counts) - 2  # each beginning serves several turns
    for a, b in pairwise(range(7)):
        if counts[a] == counts[b]:
            assert told.prompts[b][: len(told.prompts[a])] == told.prompts[a]


@pytest.mark.parametrize("drop_oldest", [False, True])
def test_a_conversation_that_is_too_long_is_refused_with_both_numbers(tiny: Driver, drop_oldest: bool) -> None:
    """With leave to leave out, only where the last question alone is too long."""
    tiny.open(1)
    long = "word " * 150
    messages = conversation("Hi", "Hello", long) if drop_oldest else conversation(long, "Hello", "Hi")
    n = len(tiny.log)
    failed = send(tiny, 1, messages, context_limit=120, drop_oldest=drop_oldest)
    assert isinstance(failed, ChatFailed)
    (full,) = since(tiny, n, ContextNearlyFull)
    assert full.limit == 120 <= full.used
    assert f"{full.used:,} tokens" in failed.message
    assert "at most 120" in failed.message
    assert not since(tiny, n, TurnsDropped)
    assert ("Let the oldest" in failed.message) != drop_oldest  # advice that has been taken is none
    assert tiny.ask(1, "Hi")
    assert isinstance(
        send(tiny, 1, conversation("word " * 150, "Hello", "Hi"), sampling=Sampling(max_tokens=3)), AnswerEnded
    )


def test_the_model_is_never_given_a_conversation_without_its_system_message(
    tiny: Driver, tokenizer: Any, told: Told
) -> None:
    """Through turns left out between answers and in the middle of them, and answers that go on."""
    beginning = tokenizer.apply_chat_template([{"role": "system", "content": SYSTEM.content}])
    tiny.open(1)
    texts: list[str] = []
    for i in range(6):
        texts.append(f"Question {i}: " + "more " * 5)
        for goes_on in (False, True):
            end = send(
                tiny,
                1,
                (SYSTEM, *conversation(*texts)),
                sampling=Sampling(max_tokens=15 if goes_on else 80, temperature=1.0, seed=i),
                context_limit=220,
                drop_oldest=True,
            )
            assert isinstance(end, AnswerEnded)
            new = text_of(tokenizer, told.tokens[-end.stats.tokens :])
            texts = [*texts[:-1], texts[-1] + new] if goes_on else [*texts, new]
    assert since(tiny, 0, TurnsDropped)
    assert len(told.prompts) > 12  # in the middle of an answer, too
    for prompt in told.prompts:
        assert prompt[: len(beginning)] == beginning
    assert told.most_held <= 220


# ---------------------------------------------------------------- forks
def test_a_template_that_refuses_a_forks_messages_does_not_take_the_engine_down(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = (
        "{% if messages[-1].role != 'user' %}{{ raise_exception('The last message must be a question.') }}{% endif %}"
        + config["chat_template"]
    )
    path.write_text(json.dumps(config))
    driver = Driver()
    driver.load(folder)
    driver.open(1)
    answer = driver.ask(1, "Hello")
    driver.engine.submit(ForkChat(1, 2, conversation("Hello", answer)))
    event = driver.until(lambda e: isinstance(e, (ChatForked, EngineStopped)))
    assert event == ChatForked(1, 2, 0)
    assert driver.ask(2, "Hello") == answer
    driver.end()


def test_a_fork_that_runs_out_of_memory_does_not_take_the_engine_down(
    tiny: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arrays: object) -> None:
        raise RuntimeError("[malloc] Unable to allocate 4294967296 bytes.")

    tiny.open(1, "turboquant_mse")
    answer = tiny.ask(1, LONG)
    with monkeypatch.context() as patch:
        patch.setattr("app.engine.sequence.mx.eval", fail)
        tiny.engine.submit(ForkChat(1, 2, conversation(LONG, answer)))
        event = tiny.until(lambda e: isinstance(e, (ChatForked, EngineStopped)))
    assert event == ChatForked(1, 2, 0)
    assert tiny.ask(2, LONG) == answer
    for chat_id in (1, 2):
        tiny.engine.submit(CloseChat(chat_id))
    assert tiny.memory(lambda report: not report.chats).pool.blocks_in_use == 0
