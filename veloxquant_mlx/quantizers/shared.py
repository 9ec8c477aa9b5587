"""What all caches of a thread share: rotations and codecs, which depend on a few numbers and never on data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

import mlx.core as mx

P = ParamSpec("P")
T = TypeVar("T")

# MLX streams belong to threads, so each thread keeps its own.
_kept = threading.local()


def shared(make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """make(*args), the same object for the same arguments in the same thread and on the same device.

    Like a model's weights, what it holds is no single cache's, and no cache counts it as its own memory.
    """
    things: dict[Hashable, Any] = _kept.__dict__.setdefault("things", {})
    key = (make, args, tuple(kwargs.items()), mx.default_device().type)
    if key not in things:
        things[key] = make(*args, **kwargs)
    thing: T = things[key]
    return thing


def forget_shared() -> None:
    """Drop this thread's objects. A worker thread calls it before it ends."""
    _kept.__dict__.clear()
