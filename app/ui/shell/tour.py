"""The tour: the real window goes through its own paces, takes pictures of them and writes down what they cost.

Three chats with three methods answer at once; then one prompt is compared under three methods; then all is closed.
Everything goes through the controller and the window, as a person's clicks would.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication, QWidget

from app.engine.messages import CacheChoice, Sampling
from app.ui.look.assets import resource
from app.ui.look.words import size
from app.ui.session.controller import Controller
from app.ui.session.state import Chat, Lane
from app.ui.shell.main_window import MainWindow

METHODS = (CacheChoice("fp16"), CacheChoice("turboquant_mse", 4, 4), CacheChoice("turboquant_mse", 2, 2))
ANSWER_TOKENS = 48
PICTURES_AT = (4, 40)  # tokens every chat has when pictures are taken; the later ones, if no answer ends before
FILES = ("chat.png", "memory.png", "compare.png", "tour.json")
SAMPLED_AT_MOST = 256
COMPARE_TOKENS = 64
PATIENCE_S = 300.0  # of one step; only reached when something hangs
POLL_MS = 25


class TourError(Exception):
    """The tour could not be finished; the message says where it ended."""


class TourClosed(Exception):  # noqa: N818  # not an error: the person has seen enough
    """The window was closed while the tour ran."""


def run_tour(app: QApplication, window: MainWindow, folder: Path) -> int:
    """Run the tour and write chat.png, memory.png, compare.png and tour.json to `folder`. Returns the exit code."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        report = _Tour(app, window, folder).run()
        (folder / "tour.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except TourClosed:
        return 0
    except (TourError, OSError) as error:
        print(f"The tour ended early: {error}", file=sys.stderr)
        return 1
    print(f"Wrote {', '.join(FILES)} to {folder}")
    return 0


class _Tour:
    def __init__(self, app: QApplication, window: MainWindow, folder: Path) -> None:
        self._app, self._window, self._folder = app, window, folder
        self._controller: Controller = window.controller
        self._controller.sampling = Sampling(max_tokens=SAMPLED_AT_MOST)  # greedy: the same tour every time
        self._table = _Table()

    def run(self) -> dict[str, Any]:
        script = json.loads(resource("tour.json").read_text(encoding="utf-8"))
        model = self._wait_for_model()
        chats, pool = self._chat(script["questions"])
        lanes = self._compare(script["compare"])
        return {
            "model": model,
            "chats": chats,
            "pool": pool,
            "after_close": {"blocks_in_use": self._close_everything()},
            "compare": {"lanes": lanes},
        }

    # ------------------------------------------------------------ the steps
    def _wait_for_model(self) -> str:
        model = self._controller.model
        self._until(lambda: self._controller.model.phase != "loading", "the model to load")
        model = self._controller.model
        if model.phase != "ready":
            raise TourError(model.error or "the engine stopped while it loaded the model")
        return model.name

    def _chat(self, questions: list[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        ids = []
        for question, choice in zip(questions, METHODS, strict=True):
            ids.append(self._controller.new_chat(choice))
            self._controller.send(ids[-1], question)
        chats = [self._controller.chats[chat_id] for chat_id in ids]
        self._window.show_chat(ids[0])
        for n_tokens in PICTURES_AT:
            self._until(partial(_picture_time, chats, n_tokens), "three chats to stream", chats)
            if _streaming(chats, PICTURES_AT[0]):
                self._picture(self._window, "chat.png")
                self._picture(self._window.memory_panel, "memory.png")
        if not (self._folder / "chat.png").exists():
            raise TourError("a chat ended before all three were streaming, so there was nothing to take a picture of")
        self._until(lambda: all(_enough(chat) for chat in chats), "the answers", chats)
        for chat_id in ids:
            self._controller.stop(chat_id)
        self._until(lambda: self._settled(chats), "the chats to stop", chats)
        self._table.end()
        pool = self._controller.memory.pool
        assert pool is not None
        return [_chat_report(chat) for chat in chats], {
            "block_size": pool.block_size,
            "n_blocks": pool.n_blocks,
            "blocks_in_use": pool.blocks_in_use,
            "fragmentation": pool.fragmentation,
            "allocations": pool.allocations,
            "reused": pool.reused,
            "peak_blocks_in_use": pool.peak_blocks_in_use,
        }

    def _compare(self, prompt: str) -> list[dict[str, Any]]:
        self._window.show_compare()
        self._controller.start_comparison(prompt, METHODS, COMPARE_TOKENS)
        lanes = self._controller.comparison.lanes
        self._until(lambda: not self._controller.comparison.running and self._settled(lanes), "the comparison", lanes)
        self._table.end()
        self._picture(self._window, "compare.png")
        return [_lane_report(lane) for lane in lanes]

    def _close_everything(self) -> int:
        self._window.show_chats()
        self._controller.clear_comparison()
        for chat_id in list(self._controller.chats):
            self._controller.close_chat(chat_id)
        memory = self._controller.memory
        self._until(lambda: memory.pool is not None and not memory.holders, "the chats to close")
        assert memory.pool is not None
        return memory.pool.blocks_in_use

    # ------------------------------------------------------------ helpers
    def _settled(self, holders: list[Chat] | list[Lane]) -> bool:
        """No answer is running, and the memory report that came after the last of them is here."""
        memory = self._controller.memory
        reported = {held.chat_id: held for held in memory.holders}
        return all(
            not holder.answering and holder.id in reported and reported[holder.id].state == "idle" for holder in holders
        )

    def _until(self, done: Callable[[], bool], what: str, holders: list[Chat] | list[Lane] | None = None) -> None:
        """Let the application run until `done`, as if a person watched."""
        deadline = time.monotonic() + PATIENCE_S
        loop = QEventLoop()
        timer = QTimer()

        def look() -> None:
            if holders:
                self._table.show(holders)
            if done() or time.monotonic() > deadline or not self._window.isVisible():
                loop.quit()

        timer.timeout.connect(look)
        timer.start(POLL_MS)
        loop.exec()
        timer.stop()
        if not self._window.isVisible():
            raise TourClosed
        if done():
            return
        failed = [chat.turns[-1].note for chat in holders or () if isinstance(chat, Chat) and chat.turns]
        raise TourError(f"waited in vain for {what}. {' '.join(failed)}".strip())

    def _picture(self, widget: QWidget, name: str) -> None:
        self._app.processEvents()
        if not widget.grab().save(str(self._folder / name)):
            raise TourError(f"{self._folder / name} can't be written; choose another folder")


def _streaming(chats: list[Chat], n_tokens: int) -> bool:
    return all(chat.phase == "decode" and chat.n_tokens >= n_tokens for chat in chats)


def _picture_time(chats: list[Chat], n_tokens: int) -> bool:
    """All stream with so much text each, or one has ended and it can't get better."""
    return _streaming(chats, n_tokens) or any(chat.turns[-1].kind != "pending" for chat in chats)


def _enough(chat: Chat) -> bool:
    return not chat.answering or chat.n_tokens >= ANSWER_TOKENS


def _chat_report(chat: Chat) -> dict[str, Any]:
    question, answer = chat.turns[0], chat.turns[-1]
    if answer.kind == "failed":
        raise TourError(f"the chat with {chat.choice.label} failed: {answer.note}")
    assert chat.memory is not None
    assert chat.stats is not None
    return {
        "method": chat.choice.method,
        "bits": chat.choice.bits,
        "question": question.content,
        "answer": answer.content,
        "prompt_tokens": chat.stats.prompt_tokens,
        "tokens": chat.stats.tokens,
        "tokens_per_s": round(chat.stats.tokens_per_s, 2),
        "blocks_held": chat.memory.blocks_held,
        "memory_bytes": chat.memory.memory_bytes,
    }


def _lane_report(lane: Lane) -> dict[str, Any]:
    if lane.stats is None:
        raise TourError(f"the comparison's lane with {lane.choice.label} failed: {lane.error}")
    return {
        "method": lane.choice.method,
        "bits": lane.choice.bits,
        "memory_bytes": lane.stats.memory_bytes,
        "ratio": round(lane.stats.ratio, 3),
        "tokens_per_s": round(lane.stats.own_tokens_per_s, 2),
        "answer": lane.text,
    }


class _Table:
    """A small live table on the terminal; a new one every few seconds where the terminal can't go back."""

    HEAD = f"{'method':<18}{'state':>9}{'tokens':>8}{'tok/s':>8}{'blocks':>9}{'memory':>10}"

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._every = 0.2 if self._live else 4.0
        self._shown_at = 0.0
        self._lines = 0
        self._holders: list[Chat] | list[Lane] = []

    def show(self, holders: list[Chat] | list[Lane]) -> None:
        self._holders = holders
        if time.monotonic() - self._shown_at >= self._every:
            self._print()

    def end(self) -> None:
        """Show the last state, and let what follows be a table of its own."""
        self._print()
        self._lines = 0
        print()

    def _print(self) -> None:
        self._shown_at = time.monotonic()
        lines = [self.HEAD, *(self._row(holder) for holder in self._holders)]
        if self._live and self._lines:
            print(f"\x1b[{self._lines}F", end="")
        print(*lines, sep="\n", flush=True)
        self._lines = len(lines)

    @staticmethod
    def _row(holder: Chat | Lane) -> str:
        memory = holder.memory
        rate = f"{holder.rate:.1f}" if holder.rate else "-"
        blocks, held = (f"{memory.blocks_held:,}", size(memory.memory_bytes)) if memory else ("-", "-")
        state = holder.phase if holder.answering else "done"
        return f"{holder.choice.label:<18}{state:>9}{holder.n_tokens:>8}{rate:>8}{blocks:>9}{held:>10}"
