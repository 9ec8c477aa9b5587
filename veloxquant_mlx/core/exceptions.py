"""The errors this library raises on purpose; each is also the built-in error closest in meaning."""

from __future__ import annotations


class QuantizerConfigError(ValueError):
    """A cache or codec was asked for in a way that can't work; the message names what is allowed."""


class BlockPoolExhaustedError(RuntimeError):
    """The pool has too few free blocks for what was asked; nothing was taken."""


class OwnerAlreadyActiveError(ValueError):
    """An owner id was registered while it is still active in the pool."""
