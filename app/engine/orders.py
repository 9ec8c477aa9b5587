"""What is to become of chats' caches, collected for the next step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.engine.chat import Chat
from app.engine.step import Alone, Fork, Open, Rewind, Sample, Step


class Orders:
    """Orders of one step, and the chats' own account of them: a chat is said to hold what it will hold then.

    Attributes:
        releases: Chats that give everything back, in the order in which that was decided. What they hold is as good as
            free: the runner does this before anything else.
    """

    def __init__(self) -> None:
        self.releases: dict[int, None] = {}
        self._opens: dict[int, Open] = {}
        self._rewinds: dict[int, Rewind] = {}
        self._forks: dict[int, Fork] = {}
        self._samples: dict[int, Sample] = {}
        self._settles: dict[int, None] = {}
        self._alone: dict[int, Alone] = {}

    def __bool__(self) -> bool:
        return any(self._parts)

    def release(self, chat: Chat) -> None:
        """Give every block and array back; the tokens are computed again when they are next needed."""
        is_only_ordered = chat.chat_id in self._opens or chat.chat_id in self._forks
        for orders in self._parts:
            if orders is not self.releases:
                orders.pop(chat.chat_id, None)
        if chat.has_caches and not is_only_ordered:
            self.releases[chat.chat_id] = None
        chat.has_caches, chat.held = False, []

    def open(self, chat: Chat) -> None:
        """Make caches where there are none."""
        if not chat.has_caches:
            self._opens[chat.chat_id] = Open(chat.chat_id, chat.choice)
            chat.has_caches = True

    def rewind(self, chat: Chat, keep: int) -> None:
        """Forget all but `keep` tokens at most; how many stay is known when it is done (`Done.kept`)."""
        self._rewinds[chat.chat_id] = Rewind(chat.chat_id, keep)

    def fork(self, parent: Chat, child: Chat, keep: int) -> None:
        """Let `child` begin with `keep` tokens of the parent's at most; how many is known when it is done."""
        self._forks[child.chat_id] = Fork(parent.chat_id, child.chat_id, keep)

    def sample(self, chat: Chat) -> None:
        """Sample what comes behind the tokens of the chat's answer as they are now."""
        answer = chat.answer
        assert answer is not None
        sampling = answer.sampling
        looks_back = sampling.repetition_penalty != 1
        recent = tuple(answer.tokens[-sampling.repetition_window :]) if looks_back else ()
        self._samples[chat.chat_id] = Sample(chat.chat_id, replace(sampling, stop=()), len(answer.tokens), recent)

    def settle(self, chat: Chat) -> None:
        """Compute what the caches of a chat whose answer has ended have still to compute."""
        if chat.has_caches:
            self._settles[chat.chat_id] = None

    def time_alone(self, chat: Chat, token: int, n_steps: int) -> None:
        """See how fast the chat is alone, from `token` on."""
        self._alone[chat.chat_id] = Alone(chat.chat_id, token, n_steps)

    def take(self) -> Step:
        """All of them as a step; there are none then."""
        step = Step(
            releases=tuple(self.releases),
            opens=tuple(self._opens.values()),
            rewinds=tuple(self._rewinds.values()),
            forks=tuple(self._forks.values()),
            samples=tuple(self._samples.values()),
            settles=tuple(self._settles),
            alone=tuple(self._alone.values()),
        )
        for orders in self._parts:
            orders.clear()
        return step

    @property
    def _parts(self) -> tuple[dict[int, Any], ...]:
        return self.releases, self._opens, self._rewinds, self._forks, self._samples, self._settles, self._alone
