"""Who may take memory now, who waits for it, and who gives some back.

Everything is asked for before it is taken, by the one thread that takes it. So a step that begins has what it needs,
and the pool's limits are kept exactly. Where memory is short, in this order:

1. The caches of chats that are not answering are dropped, the one used longest ago first, if the person allows that.
2. The chat waits, holding what it has. Others go on as long as what they need fits. When something comes back, those
   who wait are served in the order in which their answers began.
3. If all who answer wait, the one that came last gives back what it holds and will be read again from its text; and so
   on until the first can go on. So there is no deadlock.
4. If only the first one is left, it waits for the person if idle chats hold memory, and ends with an error otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.engine.books import Need
from app.engine.chat import Chat
from app.engine.values import CacheChoice
from app.models.loading import LoadedModel
from veloxquant_mlx.cache.base import KVCacheFactory
from veloxquant_mlx.cache.config import KVCacheConfig
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator


class Admission:
    """Decides over the memory of one pool.

    Args:
        pool: Of all chats.
        drop: Gives back the cache of a chat that is not answering.

    Attributes:
        loaded: The model, once there is one.
        drop_idle: Whether `drop` may be used.
    """

    def __init__(self, pool: BlockPoolAllocator, drop: Callable[[Chat], None]) -> None:
        self._pool, self._drop = pool, drop
        self.loaded: LoadedModel | None = None
        self.drop_idle = False

    @property
    def _block_bytes(self) -> int:
        """Of one block of keys or values as they come, on average."""
        assert self.loaded is not None
        return self.loaded.bytes_per_token * self._pool.config.block_size // (2 * self.loaded.n_layers)

    # ------------------------------------------------------------------ what is needed
    def need(self, chat: Chat, n_tokens: int) -> Need:
        """What n_tokens more take while they are exact, which is the most they ever take."""
        layers = chat.layers()
        if layers and layers[0].pooled is not None:
            if n_tokens == 1 and layers[0].blocks_needed(1) == (0, 0):
                return Need()  # the layers fill their blocks in step
            each = [layer.blocks_needed(n_tokens) for layer in layers]
            n_k, n_v = sum(k for k, _ in each), sum(v for _, v in each)
        else:
            n_k = n_v = self._n_layers * -(-n_tokens // self._pool.config.block_size)
        constant = 0
        if not layers or layers[0].inner is None or layers[0].inner.sealed("k") is None:
            # A mean and perhaps a basis come with the first tokens that are coded, and stay.
            constant = self._n_layers * KVCacheFactory.most_constant_bytes(self._config(chat.choice))
        return Need(n_k, n_v, (n_k + n_v) * self._block_bytes + constant)

    def fits(self, need: Need) -> bool:
        return not need.n_blocks or self._pool.can_allocate(need.n_k, need.n_v, need.n_bytes)

    def could_ever_fit(self, need: Need) -> bool:
        """Whether there is so much, if nobody held anything."""
        if self._pool.max_bytes is not None and need.n_bytes > self._pool.max_bytes:
            return False
        config = self._pool.config
        limit = config.max_blocks if config.grow_on_exhaustion else self._pool.stats.snapshot().n_blocks
        return limit is None or need.n_blocks <= limit

    def least(self, choice: CacheChoice, n_tokens: int) -> Need:
        """What n_tokens take at least, if all of them were compressed."""
        assert self.loaded is not None
        exact = self.loaded.bytes_per_token // self._n_layers
        blocks = self._n_layers * -(-n_tokens // self._pool.config.block_size)
        per_token = KVCacheFactory.least_bytes_per_token(self._config(choice), exact)
        return Need(blocks, blocks, self._n_layers * n_tokens * per_token)

    @property
    def _n_layers(self) -> int:
        assert self.loaded is not None
        return self.loaded.n_layers

    def _config(self, choice: CacheChoice) -> KVCacheConfig:
        assert self.loaded is not None
        return KVCacheConfig(
            method=choice.method,
            key_bits=choice.key_bits,
            value_bits=choice.value_bits,
            head_dim=self.loaded.head_dim,
            n_kv_heads=self.loaded.n_kv_heads,
        )

    def held(self, chat: Chat) -> Need:
        """What a chat has."""
        each = [layer.blocks_held() for layer in chat.layers()]
        n_bytes = sum(block.n_bytes for block in self._pool.blocks_for(chat.chat_id))
        return Need(sum(k for k, _ in each), sum(v for _, v in each), n_bytes)

    # ------------------------------------------------------------------ making room
    def make_room(self, need: Need, chats: Iterable[Chat]) -> bool:
        """Whether `need` fits, if necessary and allowed after dropping caches of idle chats."""
        if self.fits(need):
            return True
        if not self.drop_idle:
            return False
        idle = sorted((chat for chat in chats if chat.answer is None and chat.held), key=lambda chat: chat.used_at)
        # No more than these come back, and less where they share; if that is too little, they needn't be read again.
        back = sum((self.held(chat) for chat in idle), Need())
        free = self._pool.free_bytes()
        if free is not None and free + back.n_bytes < need.n_bytes:
            return False
        for chat in idle:
            self._drop(chat)
            if self.fits(need):
                return True
        return False

    def keep_to_budget(self, chats: Iterable[Chat]) -> None:
        """After the budget was lowered: drop idle caches, if that is allowed, until what is in use fits again."""
        if self.drop_idle and self._over():
            for chat in sorted((c for c in chats if c.answer is None and c.held), key=lambda c: c.used_at):
                self._drop(chat)
                if not self._over():
                    return

    def _over(self) -> bool:
        return self._pool.max_bytes is not None and self._pool.bytes_in_use > self._pool.max_bytes

    def words(self, need: Need, free_bytes: int, chats: Iterable[Chat]) -> str:
        """What is missing, and what would help, for the person in front of the window."""
        idle = any(chat.answer is None and chat.held for chat in chats)
        helps = ["closing a chat"]
        if idle:
            helps.insert(0, "freeing the memory of chats you don't need now")
        if self._pool.max_bytes is not None and need.n_bytes > free_bytes:
            helps.insert(0, "a larger memory budget")
            short = (
                f"{size(need.n_bytes)}, and {size(free_bytes)} of the budget of {size(self._pool.max_bytes)} are free"
            )
        else:
            stats = self._pool.stats.snapshot()
            free = stats.n_blocks - stats.blocks_in_use()
            short = f"{need.n_blocks:,} blocks, and {free:,} of {stats.n_blocks:,} are free"
        help_words = helps[0] if len(helps) == 1 else f"{', '.join(helps[:-1])} or {helps[-1]}"
        return (
            f"Waiting for memory: to go on, this answer needs {short}. It does so by itself as soon as there is room; "
            f"{help_words} helps."
        )

    def refusal(self, need: Need) -> str:
        """Why a chat can't go on at all that needs so much in all."""
        takes = f"{size(need.n_bytes)} in {need.n_blocks:,} blocks"
        if self._pool.max_bytes is not None and need.n_bytes > self._pool.max_bytes:
            has = f"the memory budget is {size(self._pool.max_bytes)}"
            advice = "Set a larger memory budget (View > Memory budget), choose a method with fewer bits, or make"
        else:
            has = f"the pool has {self._pool.stats.snapshot().n_blocks:,} blocks"
            advice = "Start the app with more blocks, or make"
        return (
            f"This chat needs more memory than all chats may have together: {takes}, and {has}. {advice} the "
            f"conversation shorter, then try again."
        )


def size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.1f} MB"
