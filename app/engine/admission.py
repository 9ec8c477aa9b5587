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

from collections.abc import Callable, Collection, Mapping

from app.engine.books import Books, Need
from app.engine.chat import Chat
from app.engine.values import CacheChoice
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator

_NOTHING = Need()


class Admission:
    """Decides over the memory of one pool.

    Args:
        pool: Of all chats.
        chats: All of them, by id.
        returning: Chats whose blocks come back with the next step: what they hold counts as free.
        drop: Gives back the cache of a chat that is not answering, and notes that in `returning`.

    Attributes:
        books: Of the caches, where there is a model.
        drop_idle: Whether `drop` may be used.
    """

    def __init__(
        self,
        pool: BlockPoolAllocator,
        chats: Mapping[int, Chat],
        returning: Collection[int],
        drop: Callable[[Chat], None],
    ) -> None:
        self._pool, self._chats, self._returning, self._drop = pool, chats, returning, drop
        self.books: Books | None = None
        self.drop_idle = False

    # ------------------------------------------------------------------ what is needed
    def need(self, chat: Chat, n_tokens: int) -> Need:
        """What n_tokens more take while they are exact, which is the most they ever take."""
        assert self.books is not None
        if chat.held:
            return self.books.need(chat.chat_id, n_tokens)
        return self.books.need_anew(chat.choice, n_tokens)

    def least(self, choice: CacheChoice, n_tokens: int) -> Need:
        """What n_tokens take at least, if all of them were compressed."""
        assert self.books is not None
        return self.books.least(choice, n_tokens)

    def held(self, chat: Chat) -> Need:
        """What a chat has."""
        assert self.books is not None
        return self.books.held(chat.chat_id) if chat.held else _NOTHING

    def fits(self, need: Need) -> bool:
        return self._fits(need, self._returning)

    def could_ever_fit(self, need: Need) -> bool:
        """Whether there is so much, if nobody held anything."""
        if self._pool.max_bytes is not None and need.n_bytes > self._pool.max_bytes:
            return False
        config = self._pool.config
        limit = config.max_blocks if config.grow_on_exhaustion else self._pool.stats.snapshot().n_blocks
        return limit is None or need.n_blocks <= limit

    def free_bytes(self) -> int | None:
        """What the budget leaves, at least 0; None without one."""
        if self._pool.max_bytes is None:
            return None
        return max(0, self._pool.max_bytes - self._pool.bytes_in_use + self._back(self._returning).n_bytes)

    # ------------------------------------------------------------------ making room
    def make_room(self, need: Need) -> bool:
        """Whether `need` fits, if necessary and allowed after dropping caches of idle chats."""
        if self.fits(need):
            return True
        idle = self._idle() if self.drop_idle else []
        # Where all of them are too little, they needn't be read again.
        if not idle or not self._fits(need, {*self._returning, *(chat.chat_id for chat in idle)}):
            return False
        for chat in idle:
            self._drop(chat)
            if self.fits(need):
                break
        return True

    def keep_to_budget(self) -> None:
        """After the budget was lowered: drop idle caches, if that is allowed, until what is in use fits again."""
        for chat in self._idle() if self.drop_idle else []:
            limit = self._pool.max_bytes
            if limit is None or self._pool.bytes_in_use - self._back(self._returning).n_bytes <= limit:
                return
            self._drop(chat)

    def _idle(self) -> list[Chat]:
        """Chats that hold something and are not answering, the one used longest ago first."""
        return sorted(
            (chat for chat in self._chats.values() if chat.answer is None and chat.held), key=lambda chat: chat.used_at
        )

    def _fits(self, need: Need, returning: Collection[int]) -> bool:
        """Whether `need` could be taken once these chats have given everything back."""
        if not need.n_blocks:
            return True
        if not returning:
            return self._pool.can_allocate(need.n_k, need.n_v, need.n_bytes)
        back = self._back(returning)
        limit = self._pool.max_bytes
        if limit is not None and need.n_bytes and self._pool.bytes_in_use - back.n_bytes + need.n_bytes > limit:
            return False
        if not self._pool.config.separate_kv:
            return self._pool.can_allocate(max(0, need.n_blocks - back.n_blocks), 0)
        return self._pool.can_allocate(max(0, need.n_k - back.n_k), max(0, need.n_v - back.n_v))

    def _back(self, chat_ids: Collection[int]) -> Need:
        """What the pool gets back with the caches of these chats: what others share stays in use."""
        if not chat_ids:
            return _NOTHING
        own = {block.block_id: block for chat_id in chat_ids for block in self._pool.blocks_for(chat_id)}
        if any(self._pool.is_shared(block) for block in own.values()):
            for chat_id in self._chats.keys() - set(chat_ids):
                for block in self._pool.blocks_for(chat_id):
                    own.pop(block.block_id, None)
        n_v = sum(block.stream == "v" for block in own.values())
        return Need(len(own) - n_v, n_v, sum(block.n_bytes for block in own.values()))

    # ------------------------------------------------------------------ in words
    def words(self, need: Need, free_bytes: int) -> str:
        """What is missing, and what would help, for the person in front of the window."""
        helps = ["closing a chat"]
        if self._idle():
            helps.insert(0, "freeing the memory of chats you don't need now")
        if self._pool.max_bytes is not None and need.n_bytes > free_bytes:
            helps.insert(0, "a larger memory budget")
            short = (
                f"{size(need.n_bytes)}, and {size(free_bytes)} of the budget of {size(self._pool.max_bytes)} are free"
            )
        else:
            stats = self._pool.stats.snapshot()
            free = stats.n_blocks - stats.blocks_in_use() + self._back(self._returning).n_blocks
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
