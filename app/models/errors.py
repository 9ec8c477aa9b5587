"""What can go wrong with a model's files; every message is a sentence for the person in front of the window."""

from __future__ import annotations


class ModelFileError(Exception):
    """A model's file is missing, damaged or of a kind that can't be used; the message names the file."""


class FetchError(Exception):
    """A model could not be fetched; the message says why and what to do. Nothing half-written is left behind."""


class Cancelled(Exception):  # noqa: N818 - not an error: the caller asked for it
    """The caller's `cancelled()` became true. Nothing half-written is left behind."""
