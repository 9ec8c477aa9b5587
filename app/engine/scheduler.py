"""The scheduler: who reads, who decodes, who waits, and whose memory is given back. It decides, and does nothing.

    step = scheduler.plan()          # what is to be done next, in plain data
    done = runner.run(step)          # wherever the model is
    scheduler.take(step, done)       # what came of it

A chat that answers first has its prompt read, chunk by chunk, taking turns with others that read; then it takes part in
every decode step until its answer ends. What it needs of the pool is asked for before each chunk and step
(`Admission`). Neither MLX nor a model is needed for any of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from app.engine import messages as m
from app.engine.admission import Admission
from app.engine.answers import Answers, Model
from app.engine.books import Books
from app.engine.chat import Answer, Chat
from app.engine.orders import Orders
from app.engine.step import Chunk, Done, Fork, Row, Step
from app.engine.turns import Turns
from app.engine.values import CacheChoice
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator

NO_MODEL = "No model is loaded yet. Wait until it is ready, then send the message again."


class Scheduler:
    """All chats, and what they are doing.

    Args:
        pool: Where all chats' blocks come from. The runner's caches take and return them; here they are only counted.
        chunk: Prompt tokens that go through the model at once (see `Turns`).
        emit: Takes events.

    Attributes:
        chats: By id.
    """

    def __init__(self, pool: BlockPoolAllocator, chunk: int, emit: Callable[[m.Event], None]) -> None:
        self._pool, self._emit = pool, emit
        self.chats: dict[int, Chat] = {}
        self._orders = Orders()
        self._admission = Admission(pool, self.chats, self._orders.releases, self._drop)
        self._answers: Answers | None = None  # where a model is loaded
        self._turns = Turns(self.chats, self._admission, chunk, emit)
        self._flying: dict[int, Answer] = {}  # whose tokens the latest decode step computes, by chat
        self._submitted: dict[int, Answer] = {}  # the same of the step that is planned, and not done yet
        self._has_read = False  # a chunk, so that it is the others' turn to decode

    # ------------------------------------------------------------------ the model
    def load(self, model: Model, books: Books) -> None:
        """From now on there is a model; `books` are those of its caches."""
        self._admission.books = books
        self._answers = Answers(model, self._admission, books, self._orders, self._emit)

    def unload(self) -> None:
        """The model goes away, and all caches with it."""
        for chat in self.chats.values():
            if self._answers is not None and chat.answer is not None:
                message = "The model was changed while this chat was answering. Send the message again."
                self._answers.fail(chat, message)
                self._turns.place(chat)
            self._orders.release(chat)
            chat.spoken = ("", [])  # another model has other tokens
        self._flying, self._has_read = {}, False
        self._turns.owe_nothing()
        self._answers = self._admission.books = None

    # ------------------------------------------------------------------ what a person asks for
    def open(self, chat_id: int, choice: CacheChoice) -> None:
        """Make a chat; one that has this id already is closed."""
        self.close(chat_id)
        self.chats[chat_id] = Chat(chat_id, choice)

    def close(self, chat_id: int) -> None:
        """Forget a chat."""
        chat = self.chats.pop(chat_id, None)
        if chat is not None:
            chat.answer = None
            self._turns.place(chat)
            self._orders.release(chat)

    def send(self, command: m.Send) -> None:
        """Begin an answer; one that is in progress ends."""
        chat = self.chats.get(command.chat_id)
        if chat is None:
            self._emit(m.ChatFailed(command.chat_id, "This chat is closed. Open a new one."))
        elif self._answers is None:
            self._emit(m.ChatFailed(command.chat_id, NO_MODEL))
        else:
            self.stop(chat.chat_id)
            self._answers.begin(chat, command)
            self._turns.place(chat)

    def stop(self, chat_id: int) -> None:
        """End a chat's answer where it is, if it is answering."""
        chat = self.chats.get(chat_id)
        if chat is not None and self._answers is not None:
            self._answers.stop(chat)
            self._turns.place(chat)

    def fork(self, command: m.ForkChat) -> None:
        """Make a chat that begins as another did, and shares what can be shared."""
        self.close(command.new_chat_id)
        parent = self.chats.get(command.chat_id)
        if parent is None:
            self._emit(m.ChatFailed(command.new_chat_id, "The chat to fork is closed. Open a new one."))
            return
        twin = Chat(command.new_chat_id, parent.choice, n_dropped=parent.n_dropped, used_at=time.monotonic())
        self.chats[twin.chat_id] = twin
        if self._answers is None or not self._answers.fork(parent, twin, command):
            self._emit(m.ChatForked(parent.chat_id, twin.chat_id, 0))

    def set_budget(self, command: m.SetBudget) -> None:
        """Limit the bytes of all chats' blocks, and say whether idle caches may be dropped for others."""
        self._pool.limit_bytes(command.max_bytes)
        self._admission.drop_idle = command.drop_idle
        self._admission.keep_to_budget()
        self._emit(m.BudgetSet(command.max_bytes, command.drop_idle))

    # ------------------------------------------------------------------ what they are doing
    @property
    def busy(self) -> bool:
        """Whether any chat is answering."""
        return any(chat.answer is not None for chat in self.chats.values())

    @property
    def has_orders(self) -> bool:
        """Whether something was ordered for caches that is not planned yet."""
        return bool(self._orders)

    def states(self) -> dict[int, tuple[m.ChatState, int]]:
        """For each chat what it is doing, and how many tokens its caches hold."""
        queued = self._turns.queued
        return {
            chat_id: ("queued" if chat_id in queued and not chat.waiting else chat.state, len(chat.held))
            for chat_id, chat in self.chats.items()
        }

    # ------------------------------------------------------------------ the next step
    def plan(self) -> Step | None:
        """What is to be done next, or None where nothing can be until a command changes that.

        What was ordered for caches comes first, since it changes what is free. Then by turns one chunk of one prompt
        and one decode step of all chats.
        """
        while not self._orders and self._answers is not None:
            if not self._has_read:
                self._turns.serve_waiting()
                if (chunk := self._turns.next_chunk()) is not None:
                    return self._step(chunk=chunk)
            if (rows := self._next_rows()) is not None:
                return self._step(rows=rows)
            if self._has_read:
                self._has_read = False
                continue
            # Nobody decodes any more, so nothing is owed to anybody, and what was put off for that can be done now.
            self._turns.serve_waiting()
            if (chunk := self._turns.next_chunk()) is not None:
                return self._step(chunk=chunk)
            if (rows := self._next_rows()) is not None:
                return self._step(rows=rows)
            if not self._resolve():
                break
        return self._orders.take() if self._orders else None

    def _step(self, *, chunk: Chunk | None = None, rows: tuple[Row, ...] | None = None) -> Step:
        self._has_read = chunk is not None
        return replace(self._orders.take(), chunk=chunk, rows=rows)

    def _resolve(self) -> bool:
        """Nothing can go on, and somebody waits: make way for the first. Returns whether that changed anything."""
        waiting = self._turns.waiting
        if not waiting:
            return False
        first, others = waiting[0], waiting[1:]
        need = self._turns.need(first)
        whole = self._admission.held(first) + need
        if not self._admission.could_ever_fit(whole):
            self._release(first)  # or it would stand in the way of all the others
            self._fail(first, self._admission.refusal(whole))
            return True
        for chat in others:
            if self._admission.fits(self._turns.need(chat)):
                self._turns.resume(chat)  # it takes nothing that would be enough for the first
                return True
        for chat in reversed(others):
            if chat.held:
                assert chat.answer is not None
                chat.answer.floor = self._admission.held(chat)
                self._read_again(chat)
                self._turns.wait(chat, self._turns.need(chat))
                return True
        return False  # what is missing is held by chats that don't answer, and theirs to give

    def _drop(self, chat: Chat) -> None:
        """Give back the cache of a chat that is not answering."""
        self._orders.release(chat)
        self._emit(m.CacheDropped(chat.chat_id))

    # ------------------------------------------------------------------ who decodes
    def _next_rows(self) -> tuple[Row, ...] | None:
        """One step of all chats that have a token to go on from and memory for it; None where there is nothing to do.

        Nobody may be left, and the tokens of the step before still be there to be read.
        """
        ready = self._turns.next_decoding()
        if not ready and not self._flying:
            self._turns.owe_nothing()
            return None
        rows = []
        for chat in ready:
            answer = chat.answer
            assert answer is not None
            token = None if answer.expected else answer.tokens[-1]
            if token is not None:  # it is known, and in the caches from here on
                chat.held.append(token)
            answer.expected += 1
            rows.append(Row(chat.chat_id, token))
            self._submitted[chat.chat_id] = answer
        return tuple(rows)

    # ------------------------------------------------------------------ what came of a step
    def take(self, step: Step, done: Done) -> None:
        """Take in what came of the step that was planned last."""
        if self._answers is None:
            return
        kept = dict(done.kept)
        for rewind in step.rewinds:
            chat = self.chats.get(rewind.chat_id)
            if chat is not None and rewind.chat_id in kept:
                self._answers.ready(chat, kept[rewind.chat_id])
                self._turns.place(chat)
        for fork in step.forks:
            self._forked(fork, kept.get(fork.child, 0))
        for timed in done.timed:
            if (chat := self.chats.get(timed.chat_id)) is not None:
                self._answers.timed(chat, timed)
        if step.rows is not None:
            self._take_rows(done)
        else:
            for failure in done.failed:
                chat = self.chats.get(failure.chat_id)
                if chat is not None and chat.answer is not None:
                    self._fail_step(chat, failure.what)
                elif chat is not None:
                    self._release(chat)
        if step.chunk is not None and all(failure.chat_id != step.chunk.chat_id for failure in done.failed):
            self._take_chunk(step.chunk, done.seconds)

    def _forked(self, fork: Fork, kept: int) -> None:
        parent, twin = self.chats.get(fork.parent), self.chats.get(fork.child)
        if parent is not None and twin is not None:
            twin.has_caches, twin.held = kept > 0, parent.held[:kept]
            self._emit(m.ChatForked(fork.parent, fork.child, kept))

    def _take_chunk(self, chunk: Chunk, seconds: float) -> None:
        chat = self.chats.get(chunk.chat_id)
        if chat is None or chat.answer is None:
            return
        chat.held += chunk.tokens
        self._turns.place(chat)
        reused = chat.answer.reused or 0
        self._emit(m.PromptProgress(chat.chat_id, len(chat.held), len(chat.answer.tokens), reused))
        self._turns.has_read(seconds)

    def _take_rows(self, done: Done) -> None:
        failed = {failure.chat_id for failure in done.failed}
        before, submitted, self._submitted = self._flying, self._submitted, {}
        # The rows of this step rest on the tokens of the step before.
        self._flying = {} if done.lost else {i: answer for i, answer in submitted.items() if i not in failed}
        self._turns.has_decoded(done.seconds)
        for chat_id, token in done.tokens:
            chat = self._wanted(chat_id, before)
            if chat is not None:
                self._received(chat, token, done.alone_seconds)
        for failure in done.failed:
            chat = self._wanted(failure.chat_id, submitted)
            if chat is None:
                self._undo(failure.chat_id)
            elif failure.exhausted and not submitted[failure.chat_id].was_refused:
                # It was asked for, so this is not expected; it is read again, and asks again, but once only.
                submitted[failure.chat_id].was_refused = True
                self._read_again(chat)
            else:
                self._fail_step(chat, failure.what)
        if done.lost:
            # Chats whose caches went through it, or through a step that rests on it, while their answers need nothing
            # of it: nothing of their own went wrong.
            undone = [i for i in {**before, **submitted} if i not in failed and self._wanted(i, before) is None]
            for chat_id in before:
                if (chat := self._wanted(chat_id, before)) is not None:
                    self._fail_step(chat, done.lost)
            for chat_id in undone:
                self._undo(chat_id)

    def _wanted(self, chat_id: int, answers: dict[int, Answer]) -> Chat | None:
        """The chat, if it is still at the answer that took part in a step."""
        chat = self.chats.get(chat_id)
        return chat if chat is not None and chat.answer is not None and chat.answer is answers.get(chat_id) else None

    def _received(self, chat: Chat, token: int, alone_seconds: float) -> None:
        answer = chat.answer
        assert answer is not None
        assert self._answers is not None
        answer.expected -= 1
        answer.tokens.append(token)
        if self._flying.get(chat.chat_id) is answer:
            chat.held.append(token)
        if alone_seconds:
            answer.alone_seconds += alone_seconds
            answer.alone_steps += 1
        self._answers.received(chat, token)
        self._turns.place(chat)

    # ------------------------------------------------------------------ when something goes wrong
    def _undo(self, chat_id: int) -> None:
        if (chat := self.chats.get(chat_id)) is not None:
            self._read_again(chat)

    def _read_again(self, chat: Chat) -> None:
        """Give a chat's memory back in the middle of its answer; what it had is computed again from its tokens."""
        self._release(chat)
        if chat.answer is not None:
            chat.answer.expected = 0
            self._orders.open(chat)
            self._orders.sample(chat)
            self._turns.place(chat)

    def _release(self, chat: Chat) -> None:
        assert self._answers is not None
        self._answers.release(chat)

    def _fail(self, chat: Chat, message: str) -> None:
        assert self._answers is not None
        self._answers.fail(chat, message)
        self._turns.place(chat)

    def _fail_step(self, chat: Chat, what: str) -> None:
        assert self._answers is not None
        self._answers.fail_step(chat, what)
        self._turns.place(chat)
