"""Answers: from a conversation to its tokens, and from the model's tokens to text and the answer's end.

One chat at a time, with no look at the others: who reads and decodes when is the scheduler's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from app.engine import messages as m
from app.engine.admission import Admission
from app.engine.books import Books
from app.engine.chat import Answer, Chat
from app.engine.conversation import NEARLY_FULL, Prompt, TooLongError, make_prompt, room_for_answer
from app.engine.orders import Orders
from app.engine.step import Timed, in_words
from app.engine.writing import Writer
from app.models.errors import contained
from app.models.plain_text import chat_tokens

ALONE_STEPS = 6  # by which a chat's own speed is measured; the first two only fill the pipeline


@dataclass(frozen=True, slots=True)
class Model:
    """What has to be known of a model to talk with it.

    Attributes:
        name: For people.
        tokenizer: As mlx-lm wraps it.
        context_limit: Tokens it was made for.
    """

    name: str
    tokenizer: Any
    context_limit: int


class Answers:
    """Begins, writes and ends the answers of one loaded model.

    Args:
        model: What answers.
        admission: Knows what could ever fit.
        books: For what an answer has cost.
        orders: Takes what is to become of caches.
        emit: Takes events.
    """

    def __init__(
        self, model: Model, admission: Admission, books: Books, orders: Orders, emit: Callable[[m.Event], None]
    ) -> None:
        self._loaded, self._admission, self._books = model, admission, books
        self._orders, self._emit = orders, emit
        self._arrivals = count(1)
        self._timed: dict[int, tuple[Answer, m.EndReason]] = {}  # ended, and still timed alone

    # ------------------------------------------------------------------ its beginning
    def begin(self, chat: Chat, command: m.Send) -> None:
        """Begin an answer. Its prompt is there to be read once `ready` has been called."""
        try:
            with contained():
                self._begin(chat, command)
        except TooLongError as exc:
            self._emit(m.ContextNearlyFull(chat.chat_id, exc.used, exc.limit))
            of = self._loaded.name if exc.limit == self._loaded.context_limit else "this chat"
            it = "What can't be left out" if command.drop_oldest else "This conversation"
            advice = "Start" if command.drop_oldest else "Let the oldest messages be left out, start"
            self.fail(
                chat,
                f"{it} is {exc.used:,} tokens long, and {of} reads at most {exc.limit:,}. {advice} a new chat, or "
                f"shorten the message.",
            )
        except Exception as exc:  # noqa: BLE001  # whatever one chat's message does, the others go on
            self.fail_step(chat, in_words(exc))

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
            self.fail(chat, self._admission.refusal(least))
            return
        said = prompt.tokens[len(prompt.tokens) - prompt.said :] if prompt.said else []
        chat.answer = Answer(
            messages=command.messages if goes_on else (*command.messages, m.Message("assistant", "")),
            tokens=prompt.tokens,
            n_prompt=len(prompt.tokens),
            # Drawn here where it is none, and for good: a chat that is read again goes on with the same numbers.
            sampling=sampling if sampling.seed is not None else replace(sampling, seed=random.getrandbits(63)),
            writer=Writer(loaded.tokenizer.detokenizer, sampling.stop, said),
            arrival=next(self._arrivals),
            limit=limit,
            drop_oldest=command.drop_oldest,
            time_alone=command.time_alone,
            said=prompt.said,
            text=last.content if goes_on else "",
        )
        self._prepare(chat)
        chat.used_at = time.monotonic()
        self._dropped(chat, prompt)

    def _prepare(self, chat: Chat) -> None:
        """Let the caches hold a beginning of the answer's tokens, at most all but the last one."""
        assert chat.answer is not None
        self._orders.open(chat)
        self._orders.rewind(chat, chat.common(chat.answer.tokens))
        self._orders.sample(chat)

    def ready(self, chat: Chat, kept: int) -> None:
        """The caches hold the first `kept` of the tokens that the answer in progress begins with."""
        del chat.held[kept:]
        answer = chat.answer
        if answer is None:
            return
        is_new, answer.reused = answer.reused is None, kept
        if is_new:
            self._emit(m.PromptProgress(chat.chat_id, kept, len(answer.tokens), kept))
            self._warn_if_nearly_full(chat)

    # ------------------------------------------------------------------ its text
    def received(self, chat: Chat, token: int) -> None:
        """A token has come; it stands at the end of the answer's tokens already."""
        try:
            self._received(chat, token)
        except Exception as exc:  # noqa: BLE001  # one chat's text failed: say so there, the other chats go on
            self.fail_step(chat, in_words(exc))

    def _received(self, chat: Chat, token: int) -> None:
        answer, ends = chat.answer, self._loaded.tokenizer.eos_token_ids
        assert answer is not None
        if token in ends:
            self._end(chat, "stop")
            return
        self._say(chat, answer.hand_out(token))
        if answer.writer.stopped:
            self._end(chat, "stop")
        elif answer.n_generated >= answer.sampling.max_tokens:
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

    # ------------------------------------------------------------------ its end
    def stop(self, chat: Chat) -> None:
        """End an answer where it is."""
        if chat.answer is None:
            return
        try:
            with contained():
                self._end(chat, "stopped")
        except Exception as exc:  # noqa: BLE001  # a detokenizer's last words; the chat has stopped in any case
            self.fail_step(chat, in_words(exc))

    def _end(self, chat: Chat, reason: m.EndReason) -> None:
        answer = chat.answer
        assert answer is not None
        self._say(chat, answer.writer.end())
        spoken = answer.spoken
        if spoken and spoken[-1] in self._loaded.tokenizer.eos_token_ids:
            spoken = spoken[:-1]
        # A stop text was said, too, and is no part of the answer: its tokens are not those of the text.
        chat.spoken = ("", []) if answer.writer.stopped else (answer.text, spoken)
        chat.used_at = time.monotonic()
        chat.answer = None
        if not answer.time_alone or reason == "stopped":
            self._orders.settle(chat)
        elif self._admission.fits(self._admission.need(chat, ALONE_STEPS)):
            self._orders.time_alone(chat, answer.tokens[-1], ALONE_STEPS)
            self._timed[chat.chat_id] = answer, reason
            return
        self._emit(m.AnswerEnded(chat.chat_id, reason, answer.stats(self._books.holding(chat.chat_id))))

    def timed(self, chat: Chat, timed: Timed) -> None:
        """How fast a chat was alone whose answer has ended. Only now is that said."""
        answer, reason = self._timed.pop(chat.chat_id)
        answer.alone_seconds, answer.alone_steps = timed.seconds, timed.n_steps
        if not timed.kept:
            chat.has_caches, chat.held = False, []
        self._emit(m.AnswerEnded(chat.chat_id, reason, answer.stats(self._books.holding(chat.chat_id))))

    def release(self, chat: Chat) -> None:
        """Give a chat's memory back; one that was to be timed can't be any more."""
        if chat.chat_id in self._timed:
            self.timed(chat, Timed(chat.chat_id))
        self._orders.release(chat)

    def fail_step(self, chat: Chat, what: str) -> None:
        """End one chat's answer because of an error."""
        # The layers may hold different numbers of tokens now, so the caches are made again from the text.
        self.release(chat)
        self.fail(chat, f"This answer ended with an error ({what}). Try again; other chats are not affected.")

    def fail(self, chat: Chat, message: str) -> None:
        """End one chat's answer and say why."""
        chat.answer = None
        self._emit(m.ChatFailed(chat.chat_id, message))

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
                room=room_for_answer(answer.limit, answer.sampling.max_tokens),
            )
        except TooLongError:
            return False
        if len(prompt.tokens) >= answer.limit - 1:
            return False
        answer.tokens, answer.n_prompt, answer.said = prompt.tokens, len(prompt.tokens), prompt.said
        answer.n_inside = answer.n_generated
        self._prepare(chat)
        answer.warned = False
        self._dropped(chat, prompt)
        return True

    # ------------------------------------------------------------------ forks
    def fork(self, chat: Chat, twin: Chat, command: m.ForkChat) -> bool:
        """Let `twin` begin as `chat` did and share what can be shared. Returns whether that was ordered."""
        turns = [{"role": message.role, "content": message.content} for message in command.messages]
        asks = bool(turns) and turns[-1]["role"] == "user"
        try:
            with contained():
                tokens = chat_tokens(self._loaded.tokenizer, turns, add_generation_prompt=asks) if turns else []
            common = chat.common([*tokens, -1])
        except Exception:  # noqa: BLE001  # a template that doesn't take these turns
            return False  # its first answer makes its cache
        if not chat.has_caches or not common:
            return False
        self._orders.fork(chat, twin, common)
        return True
