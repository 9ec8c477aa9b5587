"""What the scheduler decides, without a model: who reads, who decodes, who waits, what is dropped."""

from __future__ import annotations

from itertools import groupby

import pytest

from app.engine.messages import (
    AnswerEnded,
    AnswerText,
    BudgetSet,
    CacheDropped,
    ChatFailed,
    ChatForked,
    ChatResumed,
    ChatWaiting,
    ContextNearlyFull,
    PromptProgress,
    Sampling,
    TurnsDropped,
)
from app.engine.step import Row, Step
from tests.app.engine.plain import BLOCK, BLOCK_BYTES, CHUNK, Room, answer

LONG = "a long question " * 6  # 102 tokens with what stands around it: 26 blocks of keys and as many of values


def rows(room: Room) -> list[tuple[Row, ...]]:
    return [step.rows for step in room.runner.steps if step.rows is not None]


# ---------------------------------------------------------------- reading
def test_an_answer_is_what_the_model_says_to_the_conversation() -> None:
    room = Room()
    room.open(1)
    room.send(1, "Who?", "Me.", "Why?", n=12)
    assert room.run()
    assert room.text(1) == answer("Who?", "Me.", "Why?", n=12)
    (ended,) = room.of(AnswerEnded)
    assert isinstance(ended, AnswerEnded)
    assert (ended.reason, ended.stats.tokens, ended.stats.reused_tokens) == ("length", 12, 0)


def test_those_who_read_take_turns() -> None:
    room = Room()
    room.open(1, 2, 3)
    for chat_id in (1, 2, 3):
        room.send(chat_id, LONG)
    room.until(AnswerText, 1)
    assert [chat_id for chat_id, _ in room.chunks()][:9] == [1, 2, 3] * 3
    assert room.state(3) == "queued" or room.state(2) == "queued"


def test_a_chunk_goes_up_to_the_next_whole_one_wherever_reading_was_taken_up() -> None:
    """What is coded when depends on where chunks end."""
    room = Room()
    room.open(1)
    room.send(1, "Tell me", n=5)
    room.run()
    first = room.text(1)
    n_before = len(room.runner.steps)
    room.send(1, "Tell me", first, LONG, n=5)
    kept = len(room.scheduler.chats[1].held)
    assert kept % CHUNK  # the premise: it goes on inside a chunk
    room.run()
    ends, at = [], kept
    for step in room.runner.steps[n_before:]:
        if step.chunk is not None:
            at += len(step.chunk.tokens)
            ends.append(at)
    assert all(end % CHUNK == 0 for end in ends[:-1])
    assert ends[0] - kept < CHUNK
    assert room.text(1) == first + answer("Tell me", first, LONG, n=5)


def test_the_next_turn_reads_what_is_new_only() -> None:
    room = Room()
    room.open(1)
    room.send(1, LONG, n=9)
    room.run()
    n_before = len(room.chunks())
    first = room.text(1)
    room.send(1, LONG, first, "More?", n=9)
    room.run()
    assert sum(n for _, n in room.chunks()[n_before:]) < len("More?") + 2 * BLOCK + 6
    assert room.text(1) == first + answer(LONG, first, "More?", n=9)


# ---------------------------------------------------------------- decoding
def test_those_who_decode_get_their_share_between_two_chunks() -> None:
    room = Room()
    room.runner.chunk_seconds, room.runner.step_seconds = 1.0, 0.5
    room.open(1, 2)
    room.send(1, "Hi", n=60)
    room.until(AnswerText, 1)
    n_before = len(room.runner.steps)
    room.send(2, LONG)
    room.until(AnswerText, 2)
    kinds = [
        "read" if step.chunk is not None else "decode"
        for step in room.runner.steps[n_before:]
        if step.rows or step.chunk
    ]
    runs = [(kind, len(list(run))) for kind, run in groupby(kinds)]
    # 1.4 seconds of decoding for each of reading
    assert {n for kind, n in runs if kind == "read"} == {1}
    assert {n for kind, n in runs[1:-1] if kind == "decode"} == {3}


def test_where_nobody_decodes_prompts_are_read_at_once() -> None:
    room = Room()
    room.open(1)
    room.send(1, LONG)
    room.until(AnswerText, 1)
    assert [step.chunk is None for step in room.runner.steps[1:]].index(True) == len(room.chunks()) > 10


def test_a_step_goes_on_from_tokens_that_nobody_has_seen_yet() -> None:
    """It is submitted before the tokens of the one before are read; only a chat's first token is given to it."""
    room = Room()
    room.open(1, 2)
    room.send(1, "Hi", n=6)
    room.send(2, "Ho", n=6)
    room.run()
    for chat_id in (1, 2):
        its = [row.token for step in rows(room) for row in step if row.chat_id == chat_id]
        assert its == [ord(">"), None, None, None, None, None]
    assert rows(room)[-1] == ()  # the last tokens are only read


def test_chats_that_come_and_go_say_what_they_would_alone() -> None:
    room = Room()
    room.open(1, 2, 3)
    room.send(1, "One", n=40)
    room.until(AnswerText, 1)
    room.send(2, LONG, n=10)
    room.until(AnswerText, 2)
    room.send(3, "Three", n=3)
    room.run()
    assert [room.text(chat_id) for chat_id in (1, 2, 3)] == [
        answer("One", n=40),
        answer(LONG, n=10),
        answer("Three", n=3),
    ]


def test_an_answer_without_a_seed_is_given_one_and_keeps_it() -> None:
    """Also where its cache had to be made again: whoever runs the step draws the same numbers."""
    room = Room(40)
    room.budget(40, drop_idle=True)
    room.open(1, 2)
    for chat_id in (1, 2):
        room.send(chat_id, LONG, sampling=Sampling(temperature=1.0, max_tokens=50))
    assert room.run()
    samples = [sample for step in room.runner.steps for sample in step.samples]
    seeds = {(sample.chat_id, sample.sampling.seed) for sample in samples}
    assert len(samples) > 2  # the premise: one was read again
    assert len(seeds) == 2
    for chat_id, seed in seeds:
        assert room.text(chat_id) == answer(LONG, n=50, sampling=Sampling(temperature=1.0, seed=seed))


# ---------------------------------------------------------------- memory is short
def test_a_chat_waits_and_goes_on_by_itself_when_another_is_closed() -> None:
    room = Room(40)
    room.open(1, 2)
    room.send(1, LONG)
    assert room.run()
    room.send(2, LONG)
    assert room.run()  # nothing can go on
    assert room.state(2) == "waiting"
    assert room.scheduler.plan() is None
    (waiting,) = room.of(ChatWaiting)
    assert isinstance(waiting, ChatWaiting)
    assert waiting.needed_bytes > waiting.free_bytes
    assert "freeing the memory of chats you don't need now or closing a chat" in waiting.message
    room.close(1)
    assert room.run()
    assert room.of(ChatResumed) == [ChatResumed(2)]
    assert room.text(2) == answer(LONG, n=10)


def test_those_who_wait_go_on_in_the_order_in_which_they_asked() -> None:
    room = Room(40)
    room.open(1, 2, 3)
    room.send(1, LONG)
    room.run()
    room.send(3, LONG)
    room.run()
    room.send(2, LONG)
    room.run()
    room.close(1)
    room.until(AnswerEnded, 3)
    assert not room.text(2)
    room.close(3)
    assert room.run()
    assert room.text(2) == answer(LONG, n=10)


def test_the_one_that_came_last_makes_way_and_is_read_again() -> None:
    room = Room(40)
    room.budget(40, drop_idle=True)
    room.open(1, 2)
    for chat_id in (2, 1):
        room.send(chat_id, LONG, n=40)
    assert room.run()
    assert room.ends() == [2, 1]
    assert room.text(1) == room.text(2) == answer(LONG, n=40)
    # Once; and then the one before it is not needed any more.
    assert [chat_id for step in room.runner.steps for chat_id in step.releases] == [1, 2]
    assert room.of(CacheDropped) == [CacheDropped(2)]
    room.all_is_in_order()


def test_of_several_the_one_that_came_last_makes_way_first() -> None:
    room = Room(62)
    room.open(1, 2, 3)
    for chat_id in (2, 3, 1):
        room.send(chat_id, LONG, n=30)
    room.until(AnswerText, 2)
    assert [chat_id for step in room.runner.steps for chat_id in step.releases] == [1]
    assert room.scheduler.chats[3].held
    assert room.state(1) == "waiting"


def test_who_made_way_does_not_come_back_for_every_block_that_comes_free() -> None:
    room = Room(40)
    room.open(1, 2, 3)
    room.send(3, "Hi", n=10)
    room.run()
    for chat_id in (1, 2):
        room.send(chat_id, LONG, n=30)
    room.until(AnswerText, 1)
    assert not room.scheduler.chats[2].held  # the premise: it has made way
    room.close(3)  # as much as a chunk takes, and not as much as it had
    for _ in range(10):
        room.step()
    assert room.state(2) == "waiting"
    assert room.state(1) == "decode"
    room.run()
    room.close(1)
    assert room.run()
    assert room.text(2) == answer(LONG, n=30)


@pytest.mark.parametrize("allowed", [True, False])
def test_idle_caches_are_dropped_if_that_is_allowed_the_one_used_longest_ago_first(allowed: bool) -> None:
    room = Room(62)
    room.open(1, 2, 3)
    room.send(1, LONG)
    room.run()
    first = room.text(1)
    room.send(2, LONG)
    room.run()
    room.send(1, LONG, first, "", n=1)  # so 2 is the one used longest ago
    room.run()
    room.budget(62, drop_idle=allowed)
    room.send(3, LONG)
    assert room.run()
    assert room.of(CacheDropped) == ([CacheDropped(2)] if allowed else [])
    assert room.state(3) == ("idle" if allowed else "waiting")
    if allowed:
        assert not room.of(ChatWaiting)
        room.send(2, LONG)  # read again from its text
        room.run()
        assert room.text(2) == 2 * answer(LONG, n=10)


def test_what_is_dropped_for_a_step_is_part_of_it() -> None:
    room = Room(40)
    room.open(1, 2)
    room.send(1, LONG)
    room.run()
    room.budget(40, drop_idle=True)
    room.send(2, LONG)
    room.run()
    (step,) = (step for step in room.runner.steps if step.releases)
    assert step.releases == (1,)
    assert step.chunk is not None
    assert step.chunk.chat_id == 2


def test_idle_caches_are_not_dropped_in_vain() -> None:
    """What a fork shares stays in use without its parent."""
    room = Room()
    room.open(1, 3)
    room.send(1, LONG, n=1)
    room.run()
    room.fork(1, 2, LONG)
    room.send(2, LONG, n=40)
    room.until(AnswerText, 2)
    while len(room.scheduler.chats[2].held) % BLOCK != 1:
        room.step()  # so that it needs no block for a while
    room.budget(room.pool.bytes_in_use // (2 * BLOCK_BYTES), drop_idle=True)
    room.send(3, LONG)  # a chunk takes two blocks of both kinds, and 26 are held by the idle chat; it shares 25
    assert room.step()
    assert room.state(3) == "waiting"
    assert not room.of(CacheDropped)
    room.all_is_in_order()


def test_a_smaller_budget_drops_idle_caches_if_that_is_allowed() -> None:
    room = Room()
    room.open(1, 2)
    for chat_id in (1, 2):
        room.send(chat_id, LONG)
        room.run()
    room.budget(30)
    assert not room.of(CacheDropped)
    room.budget(30, drop_idle=True)
    assert room.log[-2:] == [CacheDropped(1), BudgetSet(30 * 200, True)]
    room.all_is_in_order()


def test_what_could_never_fit_is_refused_at_once() -> None:
    room = Room(20)
    room.open(1)
    room.send(1, LONG)
    (failed,) = room.of(ChatFailed)
    assert isinstance(failed, ChatFailed)
    assert "more memory than all chats may have together" in failed.message
    assert "Set a larger memory budget" in failed.message
    assert room.step() is None
    assert not room.chunks()


def test_an_answer_that_outgrows_everything_ends_and_the_next_in_line_goes_on() -> None:
    room = Room(30)
    room.open(1, 2)
    room.send(1, LONG, n=200)
    room.send(2, LONG, n=10)
    assert room.run()
    assert room.of(ChatFailed, 1)
    assert answer(LONG, n=200).startswith(room.text(1))
    assert room.text(2) == answer(LONG, n=10)
    room.all_is_in_order()


# ---------------------------------------------------------------- ends, stops, forks
def test_a_stop_in_the_middle_keeps_the_text_and_the_next_question_what_was_read() -> None:
    room = Room()
    room.open(1, 2)
    room.send(1, LONG, n=100)
    room.send(2, "Hi", n=30)
    room.until(AnswerText, 1)
    room.step()
    room.stop(1)
    said = room.text(1)
    (ended,) = room.of(AnswerEnded, 1)
    assert isinstance(ended, AnswerEnded)
    assert (ended.reason, ended.stats.tokens) == ("stopped", len(said))
    assert 0 < len(said) < 100
    room.run()
    assert room.text(1) == said == answer(LONG, n=len(said))
    assert room.text(2) == answer("Hi", n=30)
    n_before = len(room.chunks())
    room.send(1, LONG, said, "And?", n=4)
    room.run()
    assert room.text(1) == said + answer(LONG, said, "And?", n=4)
    assert sum(n for _, n in room.chunks()[n_before:]) < 30


def test_a_second_question_ends_the_answer_to_the_first() -> None:
    """A token of the first is still being computed, and is nobody's."""
    room = Room()
    room.open(1)
    room.send(1, "One", n=50)
    room.until(AnswerText, 1)
    said = room.text(1)
    room.send(1, "One", n=5)  # the same beginning, so that it decodes at once
    room.run()
    assert room.text(1) == said + answer("One", n=5)
    assert [event.reason for event in room.log if isinstance(event, AnswerEnded)] == ["stopped", "length"]


def test_a_chat_that_is_closed_while_it_reads_or_decodes_leaves_nothing() -> None:
    room = Room()
    room.open(1, 2)
    for chat_id in (1, 2):
        room.send(chat_id, LONG, n=50)
    room.step()
    room.close(2)
    room.until(AnswerText, 1)
    room.close(1)
    assert not room.scheduler.busy
    assert room.pool.stats.snapshot().blocks_in_use() == 0
    room.open(1)
    room.send(1, "Hi")
    room.run()
    assert room.text(1).endswith(answer("Hi", n=10))


def test_a_fork_shares_what_it_begins_with_and_goes_its_own_way() -> None:
    room = Room()
    room.open(1)
    room.send(1, LONG, n=12)
    room.run()
    said = room.text(1)
    before = room.pool.bytes_in_use
    forked = room.fork(1, 2, LONG, said)
    assert forked.tokens > 90
    assert room.pool.bytes_in_use == before
    n_before = len(room.chunks())
    room.send(2, LONG, said, "Or else?", n=7)
    room.send(1, LONG, said, "And then?", n=7)
    room.run()
    assert room.text(2) == answer(LONG, said, "Or else?", n=7)
    assert room.text(1) == said + answer(LONG, said, "And then?", n=7)
    assert sum(n for _, n in room.chunks()[n_before:]) < 60
    room.close(1)
    room.all_is_in_order()


def test_a_fork_of_what_the_template_refuses_begins_without_a_cache() -> None:
    room = Room()
    room.open(1)
    room.send(1, LONG)
    room.run()
    assert room.fork(1, 2, "Oh!") == ChatForked(1, 2, 0)
    room.send(2, "Hi")
    room.run()
    assert room.text(2) == answer("Hi", n=10)


def test_a_chat_timed_alone_ends_when_that_is_known() -> None:
    room = Room()
    room.open(1, 2)
    room.send(1, "One", sampling=Sampling(max_tokens=50, stop=(answer("One", n=20)[12:15],)), time_alone=True)
    room.send(2, "Two", n=50)
    room.run()
    (ended,) = room.of(AnswerEnded, 1)
    assert isinstance(ended, AnswerEnded)
    assert ended.stats.own_tokens_per_s == 2.0  # the runner's half a second for each
    (alone,) = (alone for step in room.runner.steps for alone in step.alone)
    assert alone.chat_id == 1
    assert room.text(2) == answer("Two", n=50)
    room.all_is_in_order()


# ---------------------------------------------------------------- where the context ends
def test_turns_are_left_out_in_the_middle_of_an_answer_and_it_goes_on() -> None:
    room = Room()
    room.open(1)
    room.send(1, "b" * 60, "c" * 20, "Go on", n=120, limit=160, drop_oldest=True)
    room.run()
    (dropped,) = room.of(TurnsDropped)
    assert dropped == TurnsDropped(1, 2)
    said = room.text(1)
    assert len(said) == 120
    whole = answer("b" * 60, "c" * 20, "Go on", n=120)
    n = next(i for i, (a, b) in enumerate(zip(said, whole, strict=True)) if a != b)
    assert n >= 50  # up to the limit it is the answer to all of it
    assert said[60:] != whole[60:]
    assert room.of(ContextNearlyFull)
    (ended,) = room.of(AnswerEnded)
    assert isinstance(ended, AnswerEnded)
    assert ended.stats.prompt_tokens == len("<u>Go on<a>")  # what was said before is no part of it
    room.all_is_in_order()


def test_without_leave_an_answer_ends_where_the_context_does() -> None:
    room = Room()
    room.open(1)
    room.send(1, LONG, n=100, limit=120)
    room.run()
    (ended,) = room.of(AnswerEnded)
    assert isinstance(ended, AnswerEnded)
    assert ended.reason == "context"
    assert ended.stats.prompt_tokens + ended.stats.tokens == 120
    assert room.text(1) == answer(LONG, n=ended.stats.tokens)


# ---------------------------------------------------------------- when something goes wrong
def three_that_decode() -> Room:
    room = Room()
    room.open(1, 2, 3)
    for chat_id in (1, 2, 3):
        room.send(chat_id, f"Number {chat_id}", n=20)
    for chat_id in (1, 2, 3):
        room.until(AnswerText, chat_id)
    return room


def others_go_on(room: Room, failed: int) -> None:
    assert room.run()
    for chat_id in {1, 2, 3} - {failed}:
        assert room.text(chat_id) == answer(f"Number {chat_id}", n=20)
    room.all_is_in_order()
    room.send(failed, "Again", n=5)
    room.run()
    assert room.text(failed).endswith(answer("Again", n=5))


def test_a_row_that_fails_ends_that_chat_only() -> None:
    room = three_that_decode()
    room.runner.failing = {2: False}
    others_go_on(room, 2)
    (failed,) = room.of(ChatFailed)
    assert isinstance(failed, ChatFailed)
    assert failed.chat_id == 2
    assert "RuntimeError: broken" in failed.message


def test_a_chunk_that_fails_ends_that_chat_only() -> None:
    room = three_that_decode()
    room.stop(3)
    room.send(3, LONG)
    room.step()
    room.runner.failing = {3: False}
    assert room.run()
    assert [event.chat_id for event in room.log if isinstance(event, ChatFailed)] == [3]
    assert room.text(1) == answer("Number 1", n=20)
    room.all_is_in_order()


def test_a_block_that_was_promised_and_is_not_there_is_asked_for_once_more() -> None:
    room = three_that_decode()
    room.runner.failing = {2: True}
    assert room.run()
    assert not room.of(ChatFailed)
    assert room.text(2) == answer("Number 2", n=20)


def test_a_block_that_is_refused_twice_ends_the_chat() -> None:
    room = three_that_decode()
    room.runner.failing = {2: True}
    n = len(room.text(2))
    while len(room.text(2)) < n + 3:
        room.step()
    room.runner.failing = {2: True}
    others_go_on(room, 2)
    assert len(room.of(ChatFailed, 2)) == 1


def test_lost_tokens_end_the_answers_they_belong_to_and_no_other() -> None:
    """One that only joined behind them, and one that was stopped: nothing of their own went wrong."""
    room = three_that_decode()
    room.stop(3)
    said = room.text(3)
    room.send(3, "Number 3", n=20)  # at once in the step that rests on the lost one
    room.runner.loses = True
    assert room.run()
    assert sorted(event.chat_id for event in room.log if isinstance(event, ChatFailed)) == [1, 2]
    assert room.text(3) == said + answer("Number 3", n=20)
    room.all_is_in_order()


def test_another_model_ends_all_answers_and_takes_all_caches() -> None:
    room = three_that_decode()
    room.scheduler.unload()
    room.obey()
    assert [event.chat_id for event in room.log if isinstance(event, ChatFailed)] == [1, 2, 3]
    assert room.pool.stats.snapshot().blocks_in_use() == 0
    assert not room.runner.chats
    room.send(1, "Hi")
    assert "No model is loaded" in getattr(room.log[-1], "message", "")
    assert room.scheduler.plan() is None


def test_progress_is_told_up_to_the_prompts_end() -> None:
    room = Room()
    room.open(1)
    room.send(1, LONG, n=1)
    room.run()
    done = [event.done for event in room.log if isinstance(event, PromptProgress)]
    assert done == [*range(0, 101, CHUNK), 101]  # the last token makes the first of the answer


def test_nothing_is_planned_where_nothing_was_asked() -> None:
    room = Room()
    room.open(1)
    assert room.scheduler.plan() is None
    room.send(1, "Hi", n=2)
    room.run()
    assert room.scheduler.plan() in (None, Step(rows=()))
