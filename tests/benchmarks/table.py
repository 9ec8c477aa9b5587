"""Turns build/bench/*.json into tables: build/bench/table.md, and the block between two marks in README.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.benchmarks.common import RESULTS, read

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- benchmarks: begin, written by `make bench` -->", "<!-- benchmarks: end -->"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def times(number: float) -> str:
    return f"{number:.1f}×" if number >= 10 else f"{number:.2f}×"


def bits_of(row: dict[str, Any]) -> str:
    return str(row["bits"]) if row["bits"] else ""


def quality(found: dict[str, Any]) -> str:
    rows = [
        (
            f"`{row['method']}`" if "mlx-lm" not in row["method"] else row["method"],
            bits_of(row),
            f"{row['kl']:.5f}",
            f"{row['agreement']:.1%}",
            f"{row['perplexity']:.2f}",
            f"{row['bits_per_value']:.2f}",
        )
        for row in found["rows"]
    ]
    return (
        f"**Quality.** {found['model']}, {found['tokens']:,} tokens of Python's documentation, fed {found['chunk']} at "
        f"a time, each position compared with mlx-lm's uncompressed cache.\n\n"
        + table(["method", "bits", "mean KL (nats)", "top-1 agrees", "perplexity", "bits per coded value"], rows)
    )


def decode(found: dict[str, Any]) -> str:
    contexts = list(found["tokens_per_s"])
    names = list(found["tokens_per_s"][contexts[0]])
    rows = []
    for name in names:
        cells = [name if "mlx-lm" in name else f"`{name}`"]
        for context in contexts:
            rates = found["tokens_per_s"][context]
            fp, quantized = rates[name] / rates["mlx-lm fp"], rates[name] / rates["mlx-lm quantized"]
            cells.append(f"{rates[name]:.1f} ({times(fp)}, {times(quantized)})")
        rows.append(cells)
    rates = found["prefill_tokens_per_s"]
    prefill = ", ".join(
        f"{name if 'mlx-lm' in name else f'`{name}`'} {rate:.0f} ({times(rate / rates['mlx-lm fp'])})"
        for name, rate in rates.items()
    )
    return (
        f"**Decode.** Tokens per second of one chat at {found['bits']} bits by tokens of context, and in brackets over "
        f"mlx-lm's own cache and over its quantized cache (4 bits, groups of 64) in the same run.\n\n"
        + table(["cache", *(f"{int(context):,}" for context in contexts)], rows)
        + f"\n\nPrefill of {found['prefill_tokens']:,} tokens, tokens per second: {prefill}. `PooledKVCache` itself "
        f"takes {found['pooled_us_per_layer']:.1f} µs a layer and token, {found['pooled_share_of_step']:.1%} of a step."
    )


def memory(found: dict[str, Any]) -> str:
    contexts = sorted({row["context"] for row in found["rows"]})
    cells = {(row["method"], row["bits"], row["context"]): row for row in found["rows"]}
    rows = []
    for method, bits in dict.fromkeys((row["method"], row["bits"]) for row in found["rows"]):
        line = [f"`{method}`", str(bits or "")]
        for context in contexts:
            row, plain = cells[method, bits, context], cells["fp16", 0, context]
            ratio = plain["memory_bytes_per_token"] / row["memory_bytes_per_token"]
            line.append(f"{row['memory_bytes_per_token']:,.0f} / {row['active_bytes_per_token']:,.0f} ({times(ratio)})")
        rows.append(line)
    return (
        "**Memory.** Bytes per token of context over all layers, a text's keys and values in float16: what "
        "`memory_bytes()` says / what MLX's counter of active memory says, and how many times smaller than `fp16`. The "
        "exact first and latest tokens, bases and all spare room are in it.\n\n"
        + table(["method", "bits", *(f"{context:,} tokens" for context in contexts)], rows)
    )


def library(found: dict[str, Any]) -> str:
    ours, theirs, matched = found["ours"]["rows"], found["theirs"]["rows"], found["matched"]
    rows = []
    for method, mine in ours.items():
        peer, match = theirs[method], matched[method]
        rows.append(
            (
                f"`{method}`",
                f"{mine['append_us']:.0f} / {peer['append_us']:.0f} ({times(peer['append_us'] / mine['append_us'])})",
                f"{mine['attend_ms']:.2f} / {peer['attend_ms']:.1f} ({times(peer['attend_ms'] / mine['attend_ms'])})",
                f"{mine['bytes_per_token']:.0f} / {peer['bytes_per_token']:.0f}",
                f"{mine['error']:.3f} / {peer['error']:.3f}",
                f"{match['bytes_per_token']:.0f} B, {match['error']:.3f} at {match['bits']} bits",
            )
        )
    mine, peer = found["ours"]["pool"], found["theirs"]["pool"]
    return (
        f"**Library.** This library / the public package {found['peer']}, through the single-vector interface with "
        f"`PooledKVCache`: one head of {found['d']}, {found['n']:,} tokens of Gaussian data in float16, "
        f"{found['bits']} bits. The error is that of the attention output. The package keeps some arrays in more bits "
        f"than asked for, so the last column has the fewest bits at which this library errs no more than it (no sink, "
        f"a window of 16: random data has no first or latest tokens that matter).\n\n"
        + table(
            ["method", "append of a token, µs", "attend, ms", "bytes a token", "error", "at no more error"],
            rows,
        )
        + f"\n\nPool: allocate {mine['allocate_us']:.2f} / {peer['allocate_us']:.2f} µs a block "
        f"({times(peer['allocate_us'] / mine['allocate_us'])}), free {mine['free_us']:.2f} / {peer['free_us']:.2f} µs "
        f"({times(peer['free_us'] / mine['free_us'])})."
    )


def batch(found: dict[str, Any]) -> str:
    counts = list(next(iter(found["mixes"].values())))
    serial, beside = found["one_after_the_other"], found["beside_a_long_prompt"]
    rows = [
        [mix, *(f"{rates[count]:.1f} ({times(rates[count] / serial)})" for count in counts)]
        for mix, rates in found["mixes"].items()
    ]
    return (
        f"**Batch.** Tokens per second of all chats together, through the engine, each going on from "
        f"{found['context']} tokens; in brackets over the same chats one after the other with "
        f"`mlx_lm.stream_generate` in the same run ({serial:.1f} tokens per second).\n\n"
        + table(["chats", *counts], rows)
        + f"\n\nA chat by itself takes {beside['alone']:.1f} steps per second, and {beside['beside']:.1f} while "
        f"another one reads {found['long_prompt']:,} tokens ({beside['beside'] / beside['alone']:.0%})."
    )


def ui(found: dict[str, Any]) -> str:
    figures, stopped, long = found["figures"], found["stopped"], f"{found['long']:,}"

    def shown(name: str, *keys: str, part: str = "") -> str:
        """The figures in milliseconds; where a part had to be stopped before it came to one, that."""
        row = figures.get(name, {})
        if all(key in row for key in keys):
            return " / ".join(f"{row[key]:.0f}" if row[key] >= 10 else f"{row[key]:.1f}" for key in keys)
        return f"not within {stopped[part or name]:.0f} s" if (part or name) in stopped else "–"

    rows = [
        (f"an update at {n:,} tokens, p50 / p99", shown(f"streaming {n}", "p50", "p99"), "8 / 16")
        for n in found["streamed"]
    ]
    p50 = [figures.get(f"streaming {n}", {}).get("p50") for n in (found["streamed"][0], found["streamed"][-1])]
    rows.append(("the longest over the shortest, p50", times(p50[1] / p50[0]) if all(p50) else "–", "1.5×"))
    in_long = f"long_chat {found['long']}"
    for n, goal in zip(found["opened"], ("100", "150", "200"), strict=True):
        part = in_long if n == found["long"] else ""
        rows.append((f"opening a chat of {n:,} messages", shown(f"opening {n}", "p50", part=part), goal))
    for name, what, worst, goal in (
        ("scrolling", "a frame of scrolling", "p99", "– / 16"),
        ("resizing", "a step of resizing", "max", "– / 30"),
    ):
        measured = shown(f"{name} {found['long']}", "p50", worst, part=in_long)
        rows.append((f"{what} in {long} messages, p50 / {worst}", measured, goal))
    late = shown("lateness", "p99", "max")
    rows.append((f"lateness of a 5 ms timer, {found['chats']} chats answering, p99 / max", late, "16 / 50"))
    for name in found["texts"]:
        each = " / ".join(shown(f"text {name}", key) for key in ("sent", "opened", "scrolled"))
        rows.append((f"longest block with {name}, sent / opened / scrolled", each, "100"))
    start = found["start"]
    seconds = [f"{1000 * start[name]:.0f}" if name in start else "–" for name in ("source", "packaged")]
    rows.append(("start until the window is painted, source / packaged", " / ".join(seconds), "1,000 / 500"))
    grown = figures.get(f"memory {found['long']}", {})
    memory = " / ".join(f"{grown[key]:.0f} MB" if key in grown else "–" for key in ("opened", "scrolled"))
    return (
        f"**UI.** The real window off screen, in milliseconds with layout and painting. An update is "
        f"{found['tokens_per_update']} more tokens of mixed Markdown; a token is four characters here.\n\n"
        + table(["what", "measured", "goal"], rows)
        + f"\n\nA chat of {long} messages adds to the process's memory, once opened / once scrolled through: {memory}."
    )


PARTS = {"quality": quality, "decode": decode, "batch": batch, "memory": memory, "library": library, "ui": ui}


def run() -> None:
    """Write what has been measured; a table that was not measured now stays as it is in the README."""
    readme = README.read_text(encoding="utf-8")
    before, found_begin, rest = readme.partition(BEGIN)
    block, found_end, after = rest.partition(END)
    if not (found_begin and found_end):
        raise SystemExit(f"{README} has no block between {BEGIN} and {END}.")
    head, *old = re.split(r"\n\n(?=\*\*[A-Z]\w+\.\*\*)", block.strip())
    texts = {part[2:].partition(".")[0].lower(): part for part in old}
    measured = {name: found for name in PARTS if (found := read(name)) is not None}
    # The README doesn't say which of its tables came from which machine, so the old one stays while any of them does.
    machines = head.removeprefix("Machine: ").removesuffix(".").split("; ") if set(texts) - set(measured) else []
    for name, found in measured.items():
        texts[name] = PARTS[name](found)
        machines.append(found["machine"])
    parts = [texts[name] for name in PARTS if name in texts]
    text = "\n\n".join([f"Machine: {'; '.join(dict.fromkeys(machines))}.", *parts])
    (RESULTS / "table.md").write_text(text + "\n", encoding="utf-8")
    README.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    print(text)
