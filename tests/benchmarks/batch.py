"""Many chats at once beside one after the other: tokens a second in all, through the engine a person uses."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import mlx.core as mx
import mlx_lm

from app.engine import CacheChoice, Engine, Message, Sampling
from app.engine.messages import AnswerEnded, AnswerText, ChatClosed, ChatFailed, CloseChat, Event, PromptProgress, Send
from app.models import find_default_model
from tests.benchmarks.common import MODEL, load, median, text, write

CHATS = (1, 2, 4, 8, 16)
CONTEXT, TOKENS = 256, 48
ROUNDS = 1
MIXES = {
    # As in the pictures of the README.
    "fp16, turboquant_mse at 4 and at 2 bits": [("fp16", 4), ("turboquant_mse", 4), ("turboquant_mse", 2)],
    "turboquant_mse at 4 bits": [("turboquant_mse", 4)],
    "all seven methods at 4 bits": [
        (method, 4) for method in ("fp16", "turboquant_mse", "turboquant_prod", "affine", "qjl", "polar", "spectral")
    ],
}
LONG_PROMPT = 4_000
SETTLE_S = 6.0  # of decoding before and after the long prompt comes


def prompts(loaded: Any, n: int) -> list[str]:
    """n different questions whose prompts are CONTEXT tokens long, the template included."""
    words, found = text().split(), []
    for i in range(n):
        low, high = 1, 400
        while low < high:  # the most words that fit
            middle = (low + high + 1) // 2
            if len(tokens_of(loaded, said(words, i, middle))) <= CONTEXT:
                low = middle
            else:
                high = middle - 1
        found.append(said(words, i, low))
    return found


def said(words: list[str], i: int, n_words: int) -> str:
    return "Go on with this text: " + " ".join(words[i * 500 : i * 500 + n_words])


def tokens_of(loaded: Any, question: str) -> list[int]:
    tokens: list[int] = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True
    )
    return tokens


def one_after_the_other(loaded: Any, questions: list[str]) -> tuple[int, float]:
    """Tokens and seconds of mlx-lm's own loop, from each first token to each last one."""
    n, seconds = 0, 0.0
    mx.enable_compile()  # which the engine switches off on CPU, and mlx-lm by itself does not
    for question in questions:
        began = 0.0
        for i, _ in enumerate(
            mlx_lm.stream_generate(loaded.model, loaded.tokenizer, tokens_of(loaded, question), max_tokens=TOKENS)
        ):
            if i == 0:
                began = time.perf_counter()
            else:
                n += 1
        seconds += time.perf_counter() - began
    mx.disable_compile()
    return n, seconds


def together(engine: Engine, questions: list[str], mix: list[tuple[str, int]]) -> tuple[int, float]:
    """Tokens and seconds of the engine from when all chats answer until the first of them has ended."""
    for chat_id, question in enumerate(questions):
        method, bits = mix[chat_id % len(mix)]
        engine.open(chat_id, CacheChoice(method, bits, bits))
        # No answer is cut, so that all decode at once for TOKENS steps.
        engine.submit(Send(chat_id, (Message("user", question),), Sampling(max_tokens=100_000)))
    had: Counter[int] = Counter()
    start, began = 0, 0.0
    while True:
        match engine.next_event():
            case AnswerText(chat_id, _, n_tokens):
                had[chat_id] = n_tokens
                if not began and len(had) == len(questions):
                    start, began = sum(had.values()), time.perf_counter()
            case AnswerEnded() | ChatFailed():
                break
        if began and sum(had.values()) - start >= TOKENS * len(questions):
            break
    n, seconds = sum(had.values()) - start, time.perf_counter() - began
    close(engine, len(questions))
    return n, seconds


def close(engine: Engine, n: int) -> None:
    for chat_id in range(n):
        engine.submit(CloseChat(chat_id))
    closed: set[int] = set()
    while len(closed) < n:
        event = engine.next_event()
        if isinstance(event, ChatClosed):
            closed.add(event.chat_id)


def beside_a_long_prompt(engine: Engine, long: str, question: str) -> dict[str, float]:
    """Steps a second of a chat alone, and while another one reads LONG_PROMPT tokens."""
    engine.open(0, CacheChoice())
    engine.submit(Send(0, (Message("user", question),), Sampling(max_tokens=100_000)))
    times: list[float] = []
    reading: list[float] = []
    asked = False
    while True:
        event: Event | None = engine.next_event()
        now = time.perf_counter()
        if isinstance(event, AnswerText) and event.chat_id == 0:
            times.append(now)
        elif isinstance(event, PromptProgress) and event.chat_id == 1:
            reading.append(now)
            if event.done >= event.total - 1:
                break
        if not asked and times and now - times[0] > SETTLE_S:
            asked = True
            engine.open(1, CacheChoice())
            engine.submit(Send(1, (Message("user", long),), Sampling(max_tokens=2)))
    before = [t for t in times if t < reading[0]]
    during = [t for t in times if reading[0] <= t <= reading[-1]]
    close(engine, 2)
    return {
        "alone": (len(before) - 1) / (before[-1] - before[0]),
        "beside": len(during) / (reading[-1] - reading[0]),
        "seconds": reading[-1] - reading[0],
    }


def run() -> None:
    folder = find_default_model()
    assert folder is not None
    loaded = load()
    questions = prompts(loaded, max(CHATS))
    words = text().split()
    long = said(words, 20, 2_600)
    results: dict[str, Any] = {"model": MODEL, "context": CONTEXT, "tokens": TOKENS, "mixes": {}}
    rates: dict[str, dict[int, list[float]]] = {mix: {n: [] for n in CHATS} for mix in MIXES}
    serial: list[float] = []
    one_after_the_other(loaded, questions[:1])
    with Engine() as engine:
        engine.load(str(folder))
        for _ in range(ROUNDS):
            n, seconds = one_after_the_other(loaded, questions[:2])
            serial.append(n / seconds)
            for mix, methods in MIXES.items():
                for n_chats in CHATS:
                    n, seconds = together(engine, questions[:n_chats], methods)
                    rates[mix][n_chats].append(n / seconds)
                    print(mix, n_chats, f"{n / seconds:.1f} tokens/s", flush=True)
        results["beside_a_long_prompt"] = beside_a_long_prompt(engine, long, questions[0])
    results["long_prompt"] = len(tokens_of(loaded, long))
    results["one_after_the_other"] = median(serial)
    results["mixes"] = {mix: {str(n): median(found) for n, found in of.items()} for mix, of in rates.items()}
    print(results, flush=True)
    write("batch", results)
