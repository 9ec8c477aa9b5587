"""One chat as the runner sees it: its caches, one per layer, and how its tokens are chosen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mlx.core as mx

from app.engine.sampling import TokenSampler
from app.engine.values import CacheChoice
from veloxquant_mlx.cache.config import KVCacheConfig
from veloxquant_mlx.integrations.mlx_lm import LayerCache, build_caches, fork_caches, pooled_layers, rewind
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator


class Sequence:
    """The caches of one chat. What their tokens are is the scheduler's to know.

    Args:
        caches: One per layer.
        choice: Their method.

    Attributes:
        sampler: Of the answer in progress.
    """

    def __init__(self, caches: list[Any], choice: CacheChoice) -> None:
        self.caches, self.choice = caches, choice
        self.sampler: TokenSampler | None = None

    @classmethod
    def opened(cls, model: Any, pool: BlockPoolAllocator, chat_id: int, choice: CacheChoice) -> Sequence:
        """One that holds nothing yet."""
        config = KVCacheConfig(method=choice.method, key_bits=choice.key_bits, value_bits=choice.value_bits)
        return cls(build_caches(model, config, pool, chat_id), choice)

    @property
    def n_held(self) -> int:
        """Tokens that the caches hold."""
        return self.layers()[0].offset if self.caches else 0

    def rewind(self, keep: int) -> bool:
        """Forget all but `keep` tokens, and more where it must be. Returns whether that was possible."""
        held = self.n_held
        return bool(rewind(self.caches, keep)) or not held

    def fork(self, chat_id: int, keep: int) -> Sequence | None:
        """Caches for another chat that begin with `keep` tokens at most; None where a layer can't go back so far.

        Raises:
            BlockPoolExhaustedError: There is no room for what they can't share.
            RuntimeError: MLX had no memory for it. In both cases nothing was taken.
        """
        twin = Sequence(fork_caches(self.caches, chat_id, keep), self.choice)
        if not twin.caches:
            return None
        # Pieces that were cut for this are new arrays, in both; until they are computed, the old ones stay.
        try:
            mx.eval(self.arrays(), twin.arrays())
        except RuntimeError:
            twin.release()
            raise
        return twin

    def release(self) -> None:
        """Give every block and array back."""
        for cache in pooled_layers(self.caches):
            cache.release()
        self.caches = []

    def arrays(self) -> list[mx.array]:
        """Everything the caches hold, to be evaluated with the step that made it."""
        found: list[mx.array] = []
        for cache in self.caches:
            found += cache.state if isinstance(cache, LayerCache) else _arrays_in(cache.state)
        return found

    def layers(self) -> list[LayerCache]:
        return pooled_layers(self.caches)

    # ------------------------------------------------------------------ what it costs
    @property
    def blocks_held(self) -> int:
        return sum(c.pooled.n_blocks_held() for c in self.layers() if c.pooled is not None)

    @property
    def memory_bytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches if not cache.empty())

    @property
    def uncompressed_bytes(self) -> int:
        return sum(
            cache.uncompressed_bytes if isinstance(cache, LayerCache) else cache.nbytes
            for cache in self.caches
            if not cache.empty()
        )

    def pieces(self) -> Iterable[Any]:
        """What its caches may hold together with others' caches."""
        return (piece for layer in self.layers() if layer.inner is not None for piece in layer.inner.pieces)


def _arrays_in(state: Any) -> list[mx.array]:
    if isinstance(state, mx.array):
        return [state]
    if isinstance(state, (list, tuple)):
        return [array for part in state for array in _arrays_in(part)]
    return []
