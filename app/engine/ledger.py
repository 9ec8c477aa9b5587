"""The books of the caches that are really there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from app.engine.books import Holding, Need
from app.engine.sequence import Sequence
from app.engine.values import CacheChoice
from app.models.loading import LoadedModel
from veloxquant_mlx.cache.base import KVCacheFactory
from veloxquant_mlx.cache.config import KVCacheConfig
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator


class Ledger:
    """`Books` of one loaded model.

    Args:
        loaded: The model.
        pool: Where the caches' blocks come from.
        sequences: The caches, by chat; the runner adds and removes.
    """

    def __init__(self, loaded: LoadedModel, pool: BlockPoolAllocator, sequences: Mapping[int, Sequence]) -> None:
        self._loaded, self._pool, self._sequences = loaded, pool, sequences
        # Of one block of keys or values as they come, on average.
        self._block_bytes = loaded.bytes_per_token * pool.config.block_size // (2 * loaded.n_layers)

    def need(self, chat_id: int, n_tokens: int) -> Need:
        """What n_tokens more take in a chat that holds some, while they are exact, which is the most they ever take."""
        sequence = self._sequences[chat_id]
        layers = sequence.layers()
        if n_tokens == 1 and layers[0].blocks_needed(1) == (0, 0):
            return Need()  # the layers fill their blocks in step
        each = [layer.blocks_needed(n_tokens) for layer in layers]
        inner = layers[0].inner
        codes = inner is not None and inner.sealed("k") is not None
        return self._exact(sum(k for k, _ in each), sum(v for _, v in each), None if codes else sequence.choice)

    def need_anew(self, choice: CacheChoice, n_tokens: int) -> Need:
        """The same for a chat that holds none."""
        n = self._loaded.n_layers * -(-n_tokens // self._pool.config.block_size)
        return self._exact(n, n, choice)

    def _exact(self, n_k: int, n_v: int, begins: CacheChoice | None) -> Need:
        """So many exact blocks; and, in a chat that begins to code, what comes with the first tokens that are coded."""
        constant = 0
        if begins is not None:
            # A mean and perhaps a basis, which stay.
            constant = self._loaded.n_layers * KVCacheFactory.most_constant_bytes(self._config(begins))
        return Need(n_k, n_v, (n_k + n_v) * self._block_bytes + constant)

    def least(self, choice: CacheChoice, n_tokens: int) -> Need:
        """What n_tokens take at least, if all of them were compressed."""
        n_layers = self._loaded.n_layers
        blocks = n_layers * -(-n_tokens // self._pool.config.block_size)
        per_token = KVCacheFactory.least_bytes_per_token(self._config(choice), self._loaded.bytes_per_token // n_layers)
        return Need(blocks, blocks, n_layers * n_tokens * per_token)

    def _config(self, choice: CacheChoice) -> KVCacheConfig:
        return KVCacheConfig(
            method=choice.method,
            key_bits=choice.key_bits,
            value_bits=choice.value_bits,
            head_dim=self._loaded.head_dim,
            n_kv_heads=self._loaded.n_kv_heads,
        )

    def held(self, chat_id: int) -> Need:
        """What a chat has of the pool."""
        each = [layer.blocks_held() for layer in self._sequences[chat_id].layers()]
        n_bytes = sum(block.n_bytes for block in self._pool.blocks_for(chat_id))
        return Need(sum(k for k, _ in each), sum(v for _, v in each), n_bytes)

    def holding(self, chat_id: int) -> Holding:
        """What a chat's caches hold; what is shared is not looked for."""
        sequence = self._sequences.get(chat_id)
        if sequence is None:
            return Holding()
        return Holding(sequence.blocks_held, sequence.memory_bytes, sequence.uncompressed_bytes)

    def holdings(self) -> tuple[dict[int, Holding], int]:
        """What every chat's caches hold, and how many bytes that is in all, what forks share once."""
        # What forks hold together is the same object in each.
        pieces = {
            chat_id: {id(piece): piece.nbytes for piece in sequence.pieces()}
            for chat_id, sequence in self._sequences.items()
        }
        holders = Counter(piece for held in pieces.values() for piece in held)
        found: dict[int, Holding] = {}
        for chat_id, sequence in self._sequences.items():
            shared_bytes = sum(n_bytes for piece, n_bytes in pieces[chat_id].items() if holders[piece] > 1)
            layers = sequence.layers() if shared_bytes else []
            found[chat_id] = Holding(
                sequence.blocks_held,
                sequence.memory_bytes,
                sequence.uncompressed_bytes,
                sum(layer.pooled.shared_blocks() for layer in layers if layer.pooled is not None),
                shared_bytes,
            )
        counted_twice = sum(
            n_bytes * (holders[piece] - 1)
            for piece, n_bytes in {k: v for held in pieces.values() for k, v in held.items()}.items()
        )
        return found, sum(holding.memory_bytes for holding in found.values()) - counted_twice
