"""`python -m tests.benchmarks [NAME...]`: library, decode, batch, quality, memory, ui and table, or all of them."""

from __future__ import annotations

import sys
from importlib import import_module
from time import perf_counter

NAMES = ("library", "decode", "batch", "quality", "memory", "ui", "table")


def main() -> None:
    wanted = sys.argv[1:] or list(NAMES)
    if unknown := set(wanted) - set(NAMES):
        raise SystemExit(f"There is no benchmark {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}.")
    for name in wanted:
        print(f"== {name}", flush=True)
        start = perf_counter()
        import_module(f"tests.benchmarks.{name}").run()
        print(f"== {name}: {perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
