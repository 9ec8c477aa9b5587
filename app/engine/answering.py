"""Answers: from a conversation to its last word, many at a time.

A chat that answers first has its prompt read, chunk by chunk, taking turns with others that read; then it takes part in
every decode step until its answer ends. What it needs of the pool it asks for before each chunk and step (`Admission`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import count

import mlx.core as mx

from app.engine import messages as m
from app.engine.admission import Admission
from app.engine.alone import ALONE_STEPS, time_alone
from app.engine.books import Need
from app.engine.chat import Answer, Chat
from app.engine.conversation import NEARLY_FULL, Prompt, TooLongError, make_prompt, room_for_answer
from app.engine.decode import Decoder, Taken
from app.engine.sampling import TokenSampler
from app.engine.writing import Writer
from app.models.errors import contained
from app.models.loading import LoadedModel
from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator

# Seconds of decoding for each second of reading, while there are both. With 1, a chat kept 45 % of its steps (default
# model on two x86 cores), since the first step after a chunk has to warm up again.
DECODE_SHARE = 1.4


class Answering:
    """All chats of one loaded model, and what they are doing.

    Args:
        loaded: The model.
        pool: Where all chats' blocks come from.
        chats: All of them, by id; the worker adds and removes.
        admission: Who may take memory.
        emit: Takes events.
        chunk: Prompt tokens that go through the model at once. The same for every chat at any time: what is coded when
            depends on it, and so, in the last digits, does the answer.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        pool: BlockPoolAllocator,
        chats: dict[int, Chat],
        admission: Admission,
        emit: Callable[[m.Event], None],
        chunk: int,
    ) -> None:
        self._loaded, self._pool, self._chats, self._admission = loaded, pool, chats, admission
        self._emit, self._chunk = emit, chunk
        admission.loaded = loaded
        self._decoder = Decoder(loaded.model, together=loaded.together)
        self._reading: deque[Chat] = deque()  # whose prompts are not through yet; the first one is next
        self._arrivals = count(1)
        self._owed = 0.0  # seconds of decoding before the next chunk is read

    # ------------------------------------------------------------------ what a person asks for
    def send(self, chat: Chat, command: m.Send) -> None:
        """Begin an answer."""
        try:
            with contained():
                self._begin(chat, command)
        except TooLongError as exc:
            self._emit(m.ContextNearlyFull(chat.chat_id, exc.used, exc.limit))
            of = self._loaded.name if exc.limit == self._loaded.context_limit else "this chat"
            it = "What can't be left out" if command.drop_oldest else "This conversation"
            advice = "Start" if command.drop_oldest else "Let the oldest messages be left out, start"
            self._fail(
                chat,
                f"{it} is {exc.used:,} tokens long, and {of} reads at most {exc.limit:,}. {advice} a new chat, or "
                f"shorten the message.",
            )
        except Exception as exc:  # noqa: BLE001  # whatever one chat's message does, the others go on
            self.fail_step(chat, exc)

    def _begin(self, chat: Chat, command: m.Send) -> None:
        sampling, loaded = command.sampling, self._loaded
        limit = min(loaded.context_limit, command.context_limit or loaded.context_limit)
        last = command.messages[-1] if command.messages else m.Message("user", "")
        goes_on = last.role == "assistant"
        text, spoken = chat.spoken
        prompt = make_prompt(
            loaded.tokenizer,
            command.messages,
            limit,
            said=spoken if goes_on and text == last.content else None,
            drop=command.drop_oldest,
            n_dropped=chat.n_dropped,
            room=room_for_answer(limit, sampling.max_tokens),
        )
        least = self._admission.least(chat.choice, len(prompt.tokens))
        if not self._admission.could_ever_fit(least):
            self._fail(chat, self._admission.refusal(least))
            return
        reused = chat.prepare(loaded.model, self._pool, prompt.tokens)
        sampler = TokenSampler(sampling)
        sampler.begin(prompt.tokens)
        said = prompt.tokens[len(prompt.tokens) - prompt.said :] if prompt.said else []
        chat.answer = Answer(
            messages=command.messages if goes_on else (*command.messages, m.Message("assistant", "")),
            tokens=prompt.tokens,
            n_prompt=len(prompt.tokens),
            reused=reused,
            sampler=sampler,
            writer=Writer(loaded.tokenizer.detokenizer, sampling.stop, said),
            arrival=next(self._arrivals),
            limit=limit,
            max_tokens=sampling.max_tokens,
            drop_oldest=command.drop_oldest,
            time_alone=command.time_alone,
            said=prompt.said,
            text=last.content if goes_on else "",
        )
        chat.used_at = time.monotonic()
        self._dropped(chat, prompt)
        self._read(chat)
        self._emit(m.PromptProgress(chat.chat_id, reused, len(prompt.tokens), reused))
        self._warn_if_nearly_full(chat)

    def stop(self, chat: Chat) -> None:
        """End an answer where it is."""
        if chat.answer is None:
            return
        try:
            with contained():
                self._end(chat, "stopped")
        except Exception as exc:  # noqa: BLE001  # a detokenizer's last words; the chat has stopped in any case
            self.fail_step(chat, exc)

    def forget(self, chat: Chat) -> None:
        """A chat is about to be closed."""
        self._leave(chat)
        chat.answer = None

    def fail_all(self, message: str) -> None:
        """The model goes away."""
        for chat in self._chats.values():
            if chat.answer is not None:
                self._fail(chat, message)

    def fork(self, chat: Chat, command: m.ForkChat) -> Chat:
        """A chat that begins as `chat` did, and shares what can be shared."""
        turns = [{"role": message.role, "content": message.content} for message in command.messages]
        asks = bool(turns) and turns[-1]["role"] == "user"
        try:
            with contained():
                tokens = self._loaded.tokenizer.apply_chat_template(turns, add_generation_prompt=asks) if turns else []
            twin = chat.fork(command.new_chat_id, tokens)
        except Exception:  # noqa: BLE001  # no room for what can't be shared, or a template that doesn't take these turns
            twin = Chat(command.new_chat_id, chat.choice)  # its first answer makes its cache, when there is room
        twin.n_dropped, twin.used_at = chat.n_dropped, time.monotonic()
        return twin

    @property
    def queued(self) -> set[int]:
        """Chats whose turn to read has not come."""
        return {chat.chat_id for chat in list(self._reading)[1:]}

    # ------------------------------------------------------------------ one round
    def advance(self) -> bool:
        """One chunk of one prompt, and one decode step of all chats. Returns whether anything could be done."""
        self._serve_waiting()
        did_read = self._read_a_chunk()
        did_decode = self._decode()
        if did_read or did_decode:
            return True
        # Nobody decodes any more, so nothing is owed to anybody, and what was put off for that can be done now.
        self._serve_waiting()
        return self._read_a_chunk() or self._decode() or self._resolve()

    @property
    def _waiting(self) -> list[Chat]:
        """The chats that wait for memory, by the arrival of their questions."""
        return sorted((chat for chat in self._chats.values() if chat.waiting), key=_arrival)

    def _need(self, chat: Chat) -> Need:
        """What a chat's next chunk or step takes."""
        left = chat.left_to_read
        need = self._admission.need(chat, min(left, self._chunk_of(chat)) if left > 0 else 1)
        floor = chat.answer.floor if chat.answer is not None else None
        return (
            need
            if floor is None
            else Need(max(need.n_k, floor.n_k), max(need.n_v, floor.n_v), max(need.n_bytes, floor.n_bytes))
        )

    def _serve_waiting(self) -> None:
        """Let those who wait go on that now can, in order of arrival."""
        promised = Need()
        for i, chat in enumerate(self._waiting):
            assert chat.answer is not None
            if i == 0 and not self._is_behind(chat):
                chat.answer.floor = None  # it can take what comes back bit by bit, since nobody has asked before it
            need = self._need(chat)
            if not self._admission.make_room(promised + need, self._chats.values()):
                return
            if chat.left_to_read > 0 and self._owed > 0 and self._decodes:
                return
            self._resume(chat)
            if chat.left_to_read > 0:
                return
            promised += need

    def _is_behind(self, chat: Chat) -> bool:
        """Whether somebody who asked earlier is going on, for whom this one may have made way."""
        return any(
            _arrival(other) < _arrival(chat)
            for other in self._chats.values()
            if other.answer is not None and not other.waiting
        )

    def _resume(self, chat: Chat) -> None:
        assert chat.answer is not None
        chat.waiting, chat.answer.floor = False, None
        if chat.left_to_read > 0:
            self._reading.remove(chat)
            self._reading.appendleft(chat)
        self._emit(m.ChatResumed(chat.chat_id))

    def _wait(self, chat: Chat, need: Need, promised: Need | None = None) -> None:
        """Let a chat wait, and say so. What is promised to others in the same step is not free for it."""
        chat.waiting = True
        free = self._pool.free_bytes()
        left = 0 if free is None else max(0, free - (promised.n_bytes if promised is not None else 0))
        message = self._admission.words(need, left, self._chats.values())
        self._emit(m.ChatWaiting(chat.chat_id, need.n_bytes, left, message))

    def _resolve(self) -> bool:
        """Nothing can go on, and somebody waits: make way for the first. Returns whether that changed anything."""
        waiting = self._waiting
        if not waiting:
            return False
        first, others = waiting[0], waiting[1:]
        need = self._need(first)
        whole = self._admission.held(first) + need
        if not self._admission.could_ever_fit(whole):
            first.release()  # or it would stand in the way of all the others
            self._fail(first, self._admission.refusal(whole))
            return True
        for chat in others:
            if self._admission.fits(self._need(chat)):
                self._resume(chat)  # it takes nothing that would be enough for the first
                return True
        for chat in reversed(others):
            if chat.held:
                assert chat.answer is not None
                chat.answer.floor = self._admission.held(chat)
                self._read_again(chat)
                self._wait(chat, self._need(chat))
                return True
        return False  # what is missing is held by chats that don't answer, and theirs to give

    # ------------------------------------------------------------------ reading prompts
    def _read(self, chat: Chat) -> None:
        if chat.left_to_read > 0 and chat not in self._reading:
            self._reading.append(chat)

    def _read_again(self, chat: Chat) -> None:
        """Give a chat's memory back in the middle of its answer; what it had is computed again from its tokens."""
        chat.release()
        answer = chat.answer
        if answer is not None:
            answer.expected = 0
            answer.sampler.begin(answer.tokens)
            chat.prepare(self._loaded.model, self._pool, answer.tokens)
            self._read(chat)

    def _chunk_of(self, chat: Chat) -> int:
        # Up to the next whole chunk from the conversation's beginning, wherever it was taken up.
        return self._chunk - len(chat.held) % self._chunk

    def _read_a_chunk(self) -> bool:
        """Let the next chat read that can. Returns whether one did."""
        if self._owed > 0 and self._decodes:
            return False
        for _ in range(len(self._reading)):
            chat = self._reading[0]
            need = self._need(chat)
            if not chat.waiting and self._admission.make_room(need, self._chats.values()):
                self._reading.popleft()
                self._read_chunk(chat)
                return True
            if not chat.waiting:
                self._wait(chat, need)
            self._reading.rotate(-1)
        return False

    def _read_chunk(self, chat: Chat) -> None:
        answer = chat.answer
        assert answer is not None
        began = time.perf_counter()
        n = min(chat.left_to_read, self._chunk_of(chat))
        tokens = answer.tokens[len(chat.held) : len(chat.held) + n]
        self._decoder.disturb()
        try:
            # The logits are never asked for, so they are never computed.
            self._loaded.model(mx.array(tokens)[None], cache=chat.caches)
            mx.eval(chat.arrays())
        except Exception as exc:  # noqa: BLE001  # one chat's chunk failed: say so there, the other chats go on
            self.fail_step(chat, exc)
            return
        chat.held += tokens
        self._read(chat)
        self._emit(m.PromptProgress(chat.chat_id, len(chat.held), len(answer.tokens), answer.reused))
        if self._decodes:
            # Those who decode get more time than the chunk took before there is another one, so that they keep half of
            # their speed, however slowly prompts are read here.
            self._owed += DECODE_SHARE * (time.perf_counter() - began)

    # ------------------------------------------------------------------ decoding
    @property
    def _decodes(self) -> bool:
        return any(chat.can_decode and not chat.waiting for chat in self._chats.values())

    def _decode(self) -> bool:
        """One step of all chats that have a token to go on from and memory for it."""
        ready, needed = [], Need()
        for chat in sorted((c for c in self._chats.values() if c.can_decode and not c.waiting), key=_arrival):
            need = self._need(chat)
            if self._admission.make_room(needed + need, self._chats.values()):
                ready.append(chat)
                needed += need
            else:
                self._wait(chat, need, promised=needed)
        if not ready and not self._decoder.busy:
            self._owed = 0.0
            return False
        began = time.perf_counter()
        taken = self._decoder.advance(ready)
        self._owed = max(0.0, self._owed - (time.perf_counter() - began))
        self._deal(taken)
        return True

    def _deal(self, taken: Taken) -> None:
        for chat, token in taken.tokens:
            try:
                self._received(chat, token)
            except Exception as exc:  # noqa: BLE001  # one chat's text failed: say so there, the other chats go on
                self.fail_step(chat, exc)
        for chat, error in taken.failed:
            if chat.answer is None:
                chat.release()
            elif isinstance(error, BlockPoolExhaustedError) and not chat.answer.was_refused:
                # It was asked for, so this is not expected; it is read again, and asks again, but once only.
                chat.answer.was_refused = True
                self._read_again(chat)
            else:
                self.fail_step(chat, error)
        for chat in taken.undone:
            self._read_again(chat)

    def _received(self, chat: Chat, token: int) -> None:
        answer, ends = chat.answer, self._loaded.tokenizer.eos_token_ids
        assert answer is not None
        if token in ends:
            self._end(chat, "stop")
            return
        self._say(chat, answer.hand_out(token))
        if answer.writer.stopped:
            self._end(chat, "stop")
        elif answer.n_generated >= answer.max_tokens:
            self._end(chat, "length")
        elif len(answer.tokens) >= answer.limit and not (answer.drop_oldest and self._make_space(chat)):
            self._end(chat, "context")
        else:
            self._warn_if_nearly_full(chat)

    def _say(self, chat: Chat, text: str) -> None:
        assert chat.answer is not None
        if text:
            chat.answer.text += text
            self._emit(m.AnswerText(chat.chat_id, text, chat.answer.n_generated))

    def _end(self, chat: Chat, reason: m.EndReason) -> None:
        answer = chat.answer
        assert answer is not None
        self._say(chat, answer.writer.end())
        self._leave(chat)
        spoken = answer.spoken
        if spoken and spoken[-1] in self._loaded.tokenizer.eos_token_ids:
            spoken = spoken[:-1]
        # A stop text was said, too, and is no part of the answer: its tokens are not those of the text.
        chat.spoken = ("", []) if answer.writer.stopped else (answer.text, spoken)
        chat.used_at = time.monotonic()
        if answer.time_alone and reason != "stopped":
            self._decoder.disturb()
            if self._admission.fits(self._admission.need(chat, ALONE_STEPS)):
                time_alone(self._loaded.model, chat)
        else:
            # The last tokens' codes are asked for by nobody until the chat goes on.
            mx.async_eval(chat.arrays())
        stats = chat.stats()
        chat.answer = None
        self._emit(m.AnswerEnded(chat.chat_id, reason, stats))

    # ------------------------------------------------------------------ the context's length
    def _warn_if_nearly_full(self, chat: Chat) -> None:
        answer = chat.answer
        if answer is not None and not answer.warned and len(answer.tokens) >= NEARLY_FULL * answer.limit:
            answer.warned = True
            self._emit(m.ContextNearlyFull(chat.chat_id, len(answer.tokens), answer.limit))

    def _dropped(self, chat: Chat, prompt: Prompt) -> None:
        if prompt.n_dropped:
            self._emit(m.TurnsDropped(chat.chat_id, prompt.n_dropped))
        chat.n_dropped = prompt.n_dropped

    def _make_space(self, chat: Chat) -> bool:
        """In the middle of an answer, leave out the oldest turns and go on. Returns whether there were any to leave."""
        answer = chat.answer
        assert answer is not None
        try:
            prompt = make_prompt(
                self._loaded.tokenizer,
                answer.messages,
                answer.limit,
                said=answer.spoken,
                drop=True,
                n_dropped=chat.n_dropped,
                room=room_for_answer(answer.limit, answer.max_tokens),
            )
        except TooLongError:
            return False
        if len(prompt.tokens) >= answer.limit - 1:
            return False
        answer.tokens, answer.n_prompt, answer.said = prompt.tokens, len(prompt.tokens), prompt.said
        answer.n_inside = answer.n_generated
        answer.reused = chat.prepare(self._loaded.model, self._pool, prompt.tokens)
        answer.sampler.begin(prompt.tokens)
        answer.warned = False
        self._dropped(chat, prompt)
        self._read(chat)
        return True

    # ------------------------------------------------------------------ when something goes wrong
    def fail_step(self, chat: Chat, exc: Exception) -> None:
        """End one chat's answer because of an error."""
        # The layers may hold different numbers of tokens now, so the caches are made again from the text.
        chat.release()
        what = f"{type(exc).__name__}: {exc}"
        self._fail(chat, f"This answer ended with an error ({what}). Try again; other chats are not affected.")

    def _fail(self, chat: Chat, message: str) -> None:
        self._leave(chat)
        chat.answer = None
        self._emit(m.ChatFailed(chat.chat_id, message))

    def _leave(self, chat: Chat) -> None:
        chat.waiting = False
        if chat in self._reading:
            self._reading.remove(chat)


def _arrival(chat: Chat) -> int:
    return chat.answer.arrival if chat.answer is not None else 0
