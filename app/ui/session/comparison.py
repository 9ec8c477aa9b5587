"""The comparison's state: lanes that answer one prompt at the same time, each a chat of its own in the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.engine.messages import AnswerEnded, CacheChoice, CloseChat, Command, Message, OpenChat, Sampling, Send, Stop
from app.ui.session.state import N_COLOURS, Lane, State
from app.ui.session.textdiff import Difference, first_difference

MAX_TOKENS = 128


@dataclass
class Comparison:
    """Lanes have negative ids, never used twice, so a late event of an old lane finds nobody and does no harm."""

    state: State
    submit: Callable[[Command], None]
    prompt: str = ""
    _next_id: int = -1

    @property
    def lanes(self) -> list[Lane]:
        return self.state.lanes

    @property
    def running(self) -> bool:
        return any(lane.answering for lane in self.lanes)

    def start(self, prompt: str, choices: Sequence[CacheChoice], max_tokens: int = MAX_TOKENS) -> None:
        """Close the old lanes and let new ones answer `prompt`, all greedy, so that only the cache differs."""
        self.clear()
        self.prompt = prompt
        for index, choice in enumerate(choices):
            # Colours from the far end of the list, which chats reach last.
            lane = Lane(self._next_id, choice, (N_COLOURS - 1 - index) % N_COLOURS, number=index + 1)
            self._next_id -= 1
            self.lanes.append(lane)
            self.submit(OpenChat(lane.id, choice))
            lane.opened = True
        for lane in self.lanes:
            lane.begin()
            # All lanes share each step of the model, so how fast one is can only be measured alone.
            messages = (Message("user", prompt),)
            self.submit(Send(lane.id, messages, Sampling(max_tokens=max_tokens), time_alone=True))

    def stop(self) -> None:
        for lane in self.lanes:
            if lane.answering:
                self.submit(Stop(lane.id))

    def clear(self) -> None:
        """Give the lanes' memory back and forget their answers."""
        for lane in self.lanes:
            if lane.opened:
                self.submit(CloseChat(lane.id))
        self.lanes.clear()
        self.prompt = ""

    def ended(self, lane: Lane, event: AnswerEnded) -> None:
        lane.phase = "idle"
        lane.ending = "done" if event.reason == "stop" else event.reason

    def failed(self, lane: Lane, message: str) -> None:
        lane.phase, lane.ending, lane.error = "idle", "failed", message

    def difference(self, lane: Lane) -> Difference | None:
        """How the lane's text compares with the first lane's; None for the first lane and where there is no text."""
        if not self.lanes or lane is self.lanes[0] or lane.error or self.lanes[0].error:
            return None
        first = self.lanes[0]
        if not lane.text or not first.text:
            return None
        return first_difference(first.text, lane.text, _finished(first), _finished(lane))


def _finished(lane: Lane) -> bool:
    """A stopped answer might have gone on, so what it lacks says nothing."""
    return not lane.answering and lane.ending != "stopped"
