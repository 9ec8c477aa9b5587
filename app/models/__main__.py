"""`python -m app.models`: set up the default model, with progress on the terminal."""

from __future__ import annotations

import sys

from app.models import FetchError, ModelFileError, ensure_default_model, find_default_model


def main() -> int:
    """Exit code 0 with the model in place, 1 with a sentence on standard error, 130 after Ctrl+C."""
    try:
        folder = find_default_model()
    except ModelFileError as error:
        print(f"{error} Fetching the model again.", flush=True)
        folder = None
    if folder is None:
        try:
            folder = ensure_default_model(_Printer(), cancelled=lambda: False)
        except (FetchError, ModelFileError) as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("Stopped; nothing half-done was left behind.", file=sys.stderr)
            return 130
    print(f"The default model is ready: {folder}")
    return 0


class _Printer:
    """Prints one line per stage, and one for each quarter of a long one."""

    def __init__(self) -> None:
        self._last: tuple[str, int] | None = None

    def __call__(self, stage: str, fraction: float | None) -> None:
        step = (stage, 0 if fraction is None else int(fraction * 4))
        if step != self._last:
            self._last = step
            print(stage if fraction is None else f"{stage} ({fraction:.0%})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
