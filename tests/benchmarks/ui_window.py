"""Measures the real window off screen. `python -m tests.benchmarks.ui_window PART...` prints a line of JSON per figure.

Each part runs in a process of its own, so that one window's widgets don't slow another one's. All but `lateness` use
the tests' scripted engine, so what is measured is the window alone.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Sequence
from itertools import cycle, pairwise
from time import perf_counter
from typing import Any

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QApplication, QScrollBar

from app.engine import Engine
from app.engine.messages import METHODS, AnswerText, CacheChoice, ModelReady, Sampling
from app.store.store import Store
from app.ui.shell.main_window import MainWindow, build_window
from tests.app.ui.conftest import INFO, ScriptedEngine

WIDTH, HEIGHT = 1240, 800
CHARS_PER_TOKEN = 4
ROUNDS = 2  # of the event loop: what is laid out in one asks for being painted in the next
TOKENS_PER_UPDATE = 3  # 33 ms at 90 tokens a second
UPDATES = 300
STRETCHES, STEPS, STEP_PX = 40, 25, 120
LATENESS_S, CHATS = 12.0, 8
ENOUGH_S = 8.0  # for one figure: a slow window gives fewer samples, not a longer benchmark

MARKDOWN = """A rainbow is *sunlight* that was bent and mirrored in drops of water, each colour at an angle of its own,
so that every drop sends one colour to one's eye. Three things have to come together for it:

1. the sun stands **low and behind** whoever looks,
2. it rains, or a fountain throws `drops` in front of them,
3. nothing stands in the light's way.

- The first bow is seen at 42 degrees.
- The second one is fainter, at 51 degrees, and its colours are the other way round.

```python
def angle(n: float) -> float:
    \"\"\"Where the bow of a drop with refractive index n is seen.\"\"\"
    incidence = acos(sqrt((n * n - 1) / 3))
    return degrees(4 * asin(sin(incidence) / n) - 2 * incidence)
```

| colour | index | angle |
| --- | ---: | ---: |
| red | 1.331 | 42.4 |
| violet | 1.343 | 40.5 |

See [the article](https://example.org/rainbow) for more. The sky between both bows is darker than the rest of it.

"""
TEXTS = {
    "1 MB": (MARKDOWN * (1_000_000 // len(MARKDOWN) + 1))[:1_000_000],
    "10,000 lines": "\n".join(f"Line {i} of a long list of things" for i in range(10_000)),
    "a line of 200,000 characters": "a" * 200_000,
    "60,000 asterisks": "*" * 60_000,
    "500 nested quotes": "\n".join(">" * depth + " quoted" for depth in range(1, 501)),
}


def tell(name: str, **figures: Any) -> None:
    print(json.dumps({"name": name, **figures}), flush=True)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(1000 * one for one in seconds)
    at = {"p50": 0.5, "p99": 0.99}
    return {key: ordered[min(int(part * len(ordered)), len(ordered) - 1)] for key, part in at.items()} | {
        "max": ordered[-1],
        "n": len(ordered),
    }


def timed(act: Callable[[], object]) -> float:
    """Seconds until what `act` does is laid out and painted."""
    start = perf_counter()
    act()
    for _ in range(ROUNDS):
        QApplication.processEvents()
    return perf_counter() - start


def until(enough: float, acts: Sequence[Callable[[], object]]) -> list[float]:
    """How long each took, as many as there is time for."""
    times: list[float] = []
    begin = perf_counter()
    for act in acts:
        times.append(timed(act))
        if perf_counter() - begin > enough:
            break
    return times


def made(store: Store, engine: ScriptedEngine | Engine) -> MainWindow:
    window = build_window(engine, store, None)
    window.set_theme("light")
    window.show()
    window.resize(WIDTH, HEIGHT)
    settle()
    return window


def settle() -> None:
    for _ in range(5):
        QApplication.processEvents()


def with_chat(n_messages: int, store: Store) -> int:
    """A chat of questions and answers in the store."""
    chat = store.add_chat(f"{n_messages:,} messages", "turboquant_mse", 4, 4)
    for n in range(n_messages // 2):
        store.add_message(chat.id, "user", f"Question {n}: what is a rainbow, and what has to come together for it?")
        store.add_message(chat.id, "assistant", MARKDOWN, "done: 260 tokens · 14.2 tok/s · 3.1 MB cache")
    return chat.id


def bar_of(window: MainWindow) -> QScrollBar:
    view: Any = window.chat_view
    bar: QScrollBar = view.conversation.verticalScrollBar()
    return bar


def ready(window: MainWindow, engine: ScriptedEngine) -> None:
    engine.queue.append(ModelReady(INFO))
    window.controller.drain()
    settle()


# ------------------------------------------------------------ the parts
def streaming(n_tokens: str) -> None:
    """One update of an answer that is n_tokens long already."""
    engine = ScriptedEngine()
    window = made(Store(":memory:"), engine)
    ready(window, engine)
    controller = window.controller
    chat_id = controller.new_chat()
    window.show_chat(chat_id)
    controller.send(chat_id, "What is a rainbow?")
    length = int(n_tokens) * CHARS_PER_TOKEN
    engine.queue.append(AnswerText(chat_id, (MARKDOWN * (length // len(MARKDOWN) + 1))[:length], int(n_tokens)))
    timed(controller.drain)
    settle()
    size = TOKENS_PER_UPDATE * CHARS_PER_TOKEN
    at = length % len(MARKDOWN)
    rest = cycle(MARKDOWN[at:] + MARKDOWN[:at])

    def update() -> None:
        nonlocal length
        length += size
        piece = "".join(next(rest) for _ in range(size))
        engine.queue.append(AnswerText(chat_id, piece, length // CHARS_PER_TOKEN))
        controller.drain()

    tell(f"streaming {n_tokens}", **spread(until(ENOUGH_S, [update] * UPDATES)))


def first_picture(window: MainWindow, chat_id: int) -> float:
    """Seconds from asking for a chat until what is seen of it changes no more."""
    spent, shown = timed(lambda: window.show_chat(chat_id)), []
    for _ in range(20):
        shown.append((spent, window.grab().toImage()))
        spent += timed(lambda: None)
    return next(seconds for seconds, image in shown if image == shown[-1][1])


def opening(n_messages: str) -> None:
    store = Store(":memory:")
    chat_id = with_chat(int(n_messages), store)
    with_chat(2, store)  # the newest, which a start shows
    window = made(store, ScriptedEngine())
    other = max(window.controller.chats)
    times: list[float] = []
    for _ in range(5):
        times.append(first_picture(window, chat_id))
        if sum(times) > ENOUGH_S:
            break
        window.show_chat(other)
        settle()
    # The first one of all also reads the chat from the store.
    tell(f"opening {n_messages}", first=1000 * times[0], **spread(times))


def long_chat(n_messages: str) -> None:
    """Opening, scrolling, resizing and the memory of one long chat."""
    store = Store(":memory:")
    chat_id = with_chat(int(n_messages), store)
    with_chat(2, store)
    window = made(store, ScriptedEngine())
    before = peak_mb()
    tell(f"opening {n_messages}", **spread([first_picture(window, chat_id)]))
    tell(f"memory {n_messages}", opened=peak_mb() - before)
    bar, frames = bar_of(window), list[float]()
    begin = perf_counter()
    for stretch in range(STRETCHES):
        bar.setValue(round(bar.maximum() * (1 - stretch / (STRETCHES - 1))))
        settle()
        frames += [timed(lambda: bar.setValue(bar.value() - STEP_PX)) for _ in range(STEPS)]
        if perf_counter() - begin > 2 * ENOUGH_S:
            break
    tell(f"scrolling {n_messages}", **spread(frames))
    bar.setValue(bar.maximum())
    widths = [*range(WIDTH - 8, WIDTH - 168, -8), *range(WIDTH - 160, WIDTH, 8)]
    tell(f"resizing {n_messages}", **spread(until(ENOUGH_S, [resizer(window, width) for width in widths])))
    tell(f"memory {n_messages}", scrolled=peak_mb() - before)


def resizer(window: MainWindow, width: int) -> Callable[[], None]:
    return lambda: window.resize(width, HEIGHT)


def peak_mb() -> float:
    """The most memory the process had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3 / 1.024)


def text(name: str) -> None:
    """The longest block of the event loop while such a text is sent, shown as message and answer, and scrolled."""
    engine, store = ScriptedEngine(), Store(":memory:")
    chat = store.add_chat("Long", "turboquant_mse", 4, 4)
    store.add_message(chat.id, "user", TEXTS[name])
    store.add_message(chat.id, "assistant", TEXTS[name], "done: ")
    with_chat(2, store)
    window = made(store, engine)
    ready(window, engine)
    edit = window.chat_view.input.edit
    sent = [timed(lambda: edit.setPlainText(TEXTS[name])), *rounds(), timed(edit.submitted.emit), *rounds()]
    tell(f"text {name}", sent=1000 * max(sent))
    opened = [timed(lambda: window.show_chat(chat.id)), *rounds()]
    tell(f"text {name}", opened=1000 * max(opened))
    bar = bar_of(window)
    places = [bar.maximum() * part // 8 for part in (7, 6, 4, 2, 1, 0)]
    scrolled = until(ENOUGH_S, [mover(bar, place - step * STEP_PX) for place in places for step in range(5)])
    tell(f"text {name}", scrolled=1000 * max(scrolled))


def rounds() -> list[float]:
    return [timed(lambda: None) for _ in range(5)]


def mover(bar: QScrollBar, value: int) -> Callable[[], None]:
    return lambda: bar.setValue(value)


def lateness() -> None:
    """How late a timer of 5 ms is while the real engine lets eight chats answer."""
    engine = Engine()
    window = made(Store(":memory:"), engine)
    controller = window.controller
    controller.sampling = Sampling(max_tokens=100_000)
    controller.start()
    app = QApplication.instance()
    assert app is not None
    wait(lambda: controller.model.phase != "loading")
    if controller.model.phase != "ready":
        raise SystemExit(f"The model could not be loaded: {controller.model.error}")
    methods = list(METHODS)
    for n in range(CHATS):
        chat_id = controller.new_chat(CacheChoice(methods[n % len(methods)], 4, 4))
        controller.send(chat_id, f"Count from {n} to a thousand, and say something about each number.")
    window.show_chat(min(controller.chats))
    wait(lambda: all(chat.phase == "decode" for chat in controller.chats.values()))
    times: list[float] = []
    timer = QTimer()
    timer.setTimerType(Qt.TimerType.PreciseTimer)
    timer.timeout.connect(lambda: times.append(perf_counter()))
    timer.start(5)
    QTimer.singleShot(round(1000 * LATENESS_S), app.quit)
    app.exec()
    late = [max(after - before - 0.005, 0.0) for before, after in pairwise(times)]
    tokens = sum(chat.n_tokens for chat in controller.chats.values())
    tell("lateness", tokens=tokens, answering=sum(chat.answering for chat in controller.chats.values()), **spread(late))
    sys.stdout.flush()
    os._exit(0)  # eight answers need not end


def wait(done: Callable[[], bool]) -> None:
    begin = perf_counter()
    while not done() and perf_counter() - begin < 60:
        QApplication.processEvents()


PARTS: dict[str, Callable[..., None]] = {
    "streaming": streaming,
    "opening": opening,
    "long_chat": long_chat,
    "text": text,
    "lateness": lateness,
}


def main() -> None:
    app = QApplication(sys.argv[:1])
    app.setCursorFlashTime(0)  # a caret that blinks is a picture that changes
    part, *arguments = sys.argv[1:]
    PARTS[part](*arguments)


if __name__ == "__main__":
    main()
