"""What can go wrong with a model's files; every message is a sentence for the person in front of the window."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ModelFileError(Exception):
    """A model's file is missing, damaged or of a kind that can't be used; the message names the file."""


class FetchError(Exception):
    """A model could not be fetched; the message says why and what to do. Nothing half-written is left behind."""


class Cancelled(Exception):  # noqa: N818 - not an error: the caller asked for it
    """The caller's `cancelled()` became true. Nothing half-written is left behind."""


@contextmanager
def contained() -> Iterator[None]:
    """Turn what libraries throw past `except Exception` into a RuntimeError: no file may end the thread that reads it.

    tokenizers is written in Rust, whose panics over a damaged tokenizer.json are BaseExceptions; and one of mlx-lm's
    models (olmo) ends the program where a package is missing.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
