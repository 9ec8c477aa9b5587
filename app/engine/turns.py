"""Whose turn it is: who reads next and how much, who takes part in a decode step, and who waits for memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from app.engine import messages as m
from app.engine.admission import Admission
from app.engine.books import Need
from app.engine.chat import Chat
from app.engine.step import Chunk

# Seconds of decoding for each second of reading, while there are both. With 1, a chat kept 45 % of its steps (default
# model on two x86 cores), since the first step after a chunk has to warm up again.
DECODE_SHARE = 1.4


class Turns:
    """The queues of all chats that answer.

    Args:
        chats: All of them, by id.
        admission: Who may take memory.
        chunk: Prompt tokens that go through the model at once. The same for every chat at any time: what is coded when
            depends on it, and so, in the last digits, does the answer.
        emit: Takes events.
    """

    def __init__(
        self, chats: Mapping[int, Chat], admission: Admission, chunk: int, emit: Callable[[m.Event], None]
    ) -> None:
        self._chats, self._admission, self._chunk, self._emit = chats, admission, chunk, emit
        self._reading: deque[Chat] = deque()  # whose prompts are not through yet; the first one is next
        self._owed = 0.0  # seconds of decoding before the next chunk is read

    # ------------------------------------------------------------------ who waits
    @property
    def waiting(self) -> list[Chat]:
        """The chats that wait for memory, by the arrival of their questions."""
        return sorted((chat for chat in self._chats.values() if chat.waiting), key=lambda chat: chat.arrival)

    def need(self, chat: Chat) -> Need:
        """What a chat's next chunk or step takes."""
        left = chat.left_to_read
        need = self._admission.need(chat, min(left, self._chunk_of(chat)) if left > 0 else 1)
        floor = chat.answer.floor if chat.answer is not None else None
        return (
            need
            if floor is None
            else Need(max(need.n_k, floor.n_k), max(need.n_v, floor.n_v), max(need.n_bytes, floor.n_bytes))
        )

    def serve_waiting(self) -> None:
        """Let those who wait go on that now can, in order of arrival."""
        promised = Need()
        for i, chat in enumerate(self.waiting):
            assert chat.answer is not None
            if i == 0 and not self._is_behind(chat):
                chat.answer.floor = None  # it can take what comes back bit by bit, since nobody has asked before it
            need = self.need(chat)
            if not self._admission.make_room(promised + need):
                return
            if chat.left_to_read > 0 and self._owed > 0 and self._decodes:
                return
            self.resume(chat)
            if chat.left_to_read > 0:
                return
            promised += need

    def _is_behind(self, chat: Chat) -> bool:
        """Whether somebody who asked earlier is going on, for whom this one may have made way."""
        return any(
            other.arrival < chat.arrival
            for other in self._chats.values()
            if other.answer is not None and not other.waiting
        )

    def resume(self, chat: Chat) -> None:
        """Let a chat go on that waited."""
        assert chat.answer is not None
        chat.waiting, chat.answer.floor = False, None
        if chat.left_to_read > 0:
            self._reading.remove(chat)
            self._reading.appendleft(chat)
        self._emit(m.ChatResumed(chat.chat_id))

    def wait(self, chat: Chat, need: Need, promised: Need | None = None) -> None:
        """Let a chat wait, and say so. What is promised to others in the same step is not free for it."""
        chat.waiting = True
        free = self._admission.free_bytes()
        left = 0 if free is None else max(0, free - (promised.n_bytes if promised is not None else 0))
        self._emit(m.ChatWaiting(chat.chat_id, need.n_bytes, left, self._admission.words(need, left)))

    # ------------------------------------------------------------------ who reads
    def place(self, chat: Chat) -> None:
        """Have a chat in the queue of those who read while it has something to read."""
        if chat.answer is None:
            chat.waiting = False
        reads, is_there = chat.left_to_read > 0, chat in self._reading
        if reads and not is_there:
            self._reading.append(chat)
        elif is_there and not reads:
            self._reading.remove(chat)

    @property
    def queued(self) -> set[int]:
        """Chats whose turn to read has not come."""
        return {chat.chat_id for chat in list(self._reading)[1:]}

    def _chunk_of(self, chat: Chat) -> int:
        # Up to the next whole chunk from the conversation's beginning, wherever it was taken up.
        return self._chunk - len(chat.held) % self._chunk

    def next_chunk(self) -> Chunk | None:
        """What the next chat reads that can."""
        if self._owed > 0 and self._decodes:
            return None
        for _ in range(len(self._reading)):
            chat = self._reading[0]
            need = self.need(chat)
            if not chat.waiting and self._admission.make_room(need):
                self._reading.popleft()
                assert chat.answer is not None
                held, n = len(chat.held), min(chat.left_to_read, self._chunk_of(chat))
                return Chunk(chat.chat_id, tuple(chat.answer.tokens[held : held + n]))
            if not chat.waiting:
                self.wait(chat, need)
            self._reading.rotate(-1)
        return None

    # ------------------------------------------------------------------ who decodes
    @property
    def _decodes(self) -> bool:
        return any(chat.can_decode and not chat.waiting for chat in self._chats.values())

    def next_decoding(self) -> list[Chat]:
        """All chats that have a token to go on from and memory for it, by arrival; whoever lacks it waits."""
        ready: list[Chat] = []
        needed = Need()
        decoding = (chat for chat in self._chats.values() if chat.can_decode and not chat.waiting)
        for chat in sorted(decoding, key=lambda chat: chat.arrival):
            need = self.need(chat)
            if self._admission.make_room(needed + need):
                ready.append(chat)
                needed += need
            else:
                self.wait(chat, need, promised=needed)
        return ready

    # ------------------------------------------------------------------ how long each may go on
    def has_read(self, seconds: float) -> None:
        """A chunk took so long. Those who decode get more than that before there is another one.

        So they keep half of their speed, however slowly prompts are read here.
        """
        if self._decodes:
            self._owed += DECODE_SHARE * seconds

    def has_decoded(self, seconds: float) -> None:
        """A decode step took so long."""
        self._owed = max(0.0, self._owed - seconds)

    def owe_nothing(self) -> None:
        """Nobody decodes any more."""
        self._owed = 0.0
