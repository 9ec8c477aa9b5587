"""Batched decode: one forward pass gives the next token of several sequences, whatever each keeps its tokens in.

A step reads all of a model's weights to compute one token. For B sequences in one pass they are read once, and the
products with them become products of matrices. Only attention is taken row by row: each sequence has caches of its own,
with their own method, bits and length. mlx-lm can batch its uncompressed caches by padding them to one length, and its
quantized ones not at all (its server then serves one request at a time).

    caches = [build_caches(model, config, pool, owner) for ...]  # one list per sequence
    ...                                                          # the prompts, one by one
    logits = model(tokens, cache=batch(caches))[:, -1]           # tokens (B, 1), logits (B, vocabulary)

The model never learns that its batch is mixed: it is given one object per layer, whose offset is an array of B offsets,
and which takes the rows apart where the layer attends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList

from veloxquant_mlx.cache.together import attend_together, kin, pays
from veloxquant_mlx.integrations.layer_cache import LayerCache


def batch(caches: Sequence[Sequence[Any]]) -> list[Any]:
    """The caches of several sequences as those of one batch, for one decode step: one object per layer.

    The sequences' own caches take the new tokens, so the result is for one forward pass, and cheap.

    Args:
        caches: For each of the B sequences the caches of all layers, as `build_caches` or mlx-lm makes them. Each holds
            one token at least: a state that has seen nothing can't stand beside one that has.

    Raises:
        ValueError: A layer's caches are of a kind, or of different kinds, that can't be batched.
    """
    found: list[Any] = []
    offsets: mx.array | None = None
    known: list[int] = []
    for rows in zip(*caches, strict=True):
        made = _batched(rows)
        if isinstance(made, BatchLayer):
            # Nearly always all layers are equally long; one array of offsets then serves them all.
            now = [int(row.offset) for row in rows]
            if offsets is None or now != known:
                known, offsets = now, mx.array(now)
            made.offset = offsets
        found.append(made)
    return found


def _batched(rows: Sequence[Any]) -> Any:
    if all(isinstance(row, CacheList) for row in rows):
        return BatchList(rows)
    if all(isinstance(row, ArraysCache) for row in rows):
        return BatchState(rows)
    if all(hasattr(row, "update_and_fetch") and hasattr(row, "offset") for row in rows):
        return BatchLayer(rows)
    kinds = ", ".join(sorted({type(row).__name__ for row in rows}))
    raise ValueError(f"Caches of the kind {kinds} can't be put into one batch; take these sequences one by one.")


class RowMasks(tuple[Any, ...]):
    """One attention mask per row, on its way through the model from `make_mask` to the layer's attention."""

    __slots__ = ()


class BatchLayer:
    """One attention layer's caches of B sequences, for one token each."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows
        self.offset: mx.array = mx.array(0)  # (B,), set by `batch`
        self._new: tuple[mx.array, mx.array] | None = None

    def __bool__(self) -> bool:
        return True

    def awaits(self, keys: Any, values: Any) -> bool:
        """Whether these are the very keys and values that came last, and no attention has used them yet."""
        return self._new is not None and keys is self._new[0] and values is self._new[1]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Take (B, n_kv_heads, 1, d) each; the rows get theirs when the layer attends.

        Raises:
            BlockPoolExhaustedError: The pool has too few blocks for all rows and all layers; no row was changed.
        """
        if keys.shape[0] != len(self.rows) or keys.shape[2] != 1:
            raise ValueError(
                f"A step of this batch takes {len(self.rows)} sequences and one token of each; these are "
                f"{keys.shape[0]} and {keys.shape[2]}."
            )
        pooled = [row for row in self.rows if isinstance(row, LayerCache)]
        if pooled:
            LayerCache.require(pooled, 1, keys.nbytes // len(self.rows), values.nbytes // len(self.rows))
        self._new = (keys, values)
        return keys, values

    def attend(
        self, attention: Callable[..., mx.array], queries: mx.array, scale: float, mask: Any, **options: Any
    ) -> mx.array:
        """Each row's own attention, (B, n_q_heads, 1, d). `attention` is what the model would call for one sequence."""
        assert self._new is not None
        (keys, values), self._new = self._new, None
        n = len(self.rows)
        masks = mask if isinstance(mask, RowMasks) else [mask] * n
        split = list(zip(*(mx.split(x, n, axis=0) for x in (queries, keys, values)), strict=True))
        out: list[mx.array | None] = [None] * n
        alone = list(range(n))
        if all(option is None for option in options.values()):
            alone = []
            for rows in self._kin(masks, alone):
                caches = [self.rows[i].append(*split[i][1:]) for i in rows]
                together = attend_together(caches, mx.concatenate([split[i][0] for i in rows], axis=0), scale)
                for i, part in zip(rows, mx.split(together, len(rows), axis=0), strict=True):
                    out[i] = part
        for i in alone:
            row, (q, k, v) = self.rows[i], split[i]
            fetched = row.extend(k, v) if isinstance(row, LayerCache) else row.update_and_fetch(k, v)
            out[i] = attention(q, *fetched, cache=row, scale=scale, mask=masks[i], **options)
        return mx.concatenate([part for part in out if part is not None], axis=0)

    def _kin(self, masks: Sequence[Any], alone: list[int]) -> list[list[int]]:
        """The rows that attend together, in groups; all others are added to `alone`."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, row in enumerate(self.rows):
            of = kin(row.inner) if isinstance(row, LayerCache) and row.inner is not None and masks[i] is None else None
            if of is None:
                alone.append(i)
            else:
                groups.setdefault(of, []).append(i)
        found = []
        for rows in groups.values():
            if pays([self.rows[i].inner for i in rows]):
                found.append(rows)
            else:
                alone += rows
        return found

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> RowMasks | None:
        masks = RowMasks(row.make_mask(n, window_size=window_size, return_array=return_array) for row in self.rows)
        return None if all(mask is None for mask in masks) else masks


class BatchState:
    """One layer's states (SSM, short convolutions) of B sequences: read as one array, written back row by row."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows
        # What mlx-lm's models ask a batch whose rows are padded; these are not.
        self.lengths: None = None
        self.left_padding: None = None

    def __getitem__(self, i: int) -> mx.array | None:
        parts = [row[i] for row in self.rows]
        if all(part is None for part in parts):
            return None
        joined: mx.array = mx.concatenate(parts, axis=0)
        return joined

    def __setitem__(self, i: int, state: mx.array) -> None:
        for row, part in zip(self.rows, mx.split(state, len(self.rows), axis=0), strict=True):
            row[i] = part

    def __bool__(self) -> bool:
        return True

    def advance(self, n: int) -> None:
        for row in self.rows:
            row.advance(n)

    def make_mask(self, n: int) -> None:
        return None


class BatchList:
    """The caches of a layer that has several kinds of them."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._parts = batch([row.caches for row in rows])

    def __getitem__(self, i: int) -> Any:
        return self._parts[i]

    def __bool__(self) -> bool:
        return True
