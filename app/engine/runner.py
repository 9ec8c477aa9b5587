"""The runner: does what the scheduler has decided, with the model and the caches. It knows no policy.

It is given a step in plain data and gives back what came of it in plain data. Whatever fails in one chat is said there;
its caches can't be used any more then, and are released when the scheduler says so.
"""

from __future__ import annotations

from time import perf_counter

import mlx.core as mx

from app.engine.alone import time_alone
from app.engine.decode import Decoder, Taken
from app.engine.ledger import Ledger
from app.engine.sampling import TokenSampler
from app.engine.sequence import Sequence
from app.engine.step import Alone, Chunk, Done, Failure, Fork, Open, Rewind, Sample, Step, Timed, in_words
from app.engine.values import CacheChoice
from app.models.loading import LoadedModel
from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError
from veloxquant_mlx.core.heap import give_back
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator


class Runner:
    """One loaded model and the caches of all its chats.

    Args:
        loaded: The model.
        pool: Where all chats' blocks come from.

    Attributes:
        books: What the caches take and would take.
    """

    def __init__(self, loaded: LoadedModel, pool: BlockPoolAllocator) -> None:
        self._loaded, self._pool = loaded, pool
        self._sequences: dict[int, Sequence] = {}
        self._decoder = Decoder(loaded.model, self._sequences, together=loaded.together)
        self.books = Ledger(loaded, pool, self._sequences)

    def run(self, step: Step) -> Done:
        """Do what the step says, in the order of its fields."""
        for chat_id in step.releases:
            self._release(chat_id)
        if step.releases:
            give_memory_back()
        failed: dict[int, Failure] = {}
        orders: tuple[Open | Rewind | Sample, ...] = (*step.opens, *step.rewinds, *step.samples)
        for order in orders:
            if order.chat_id not in failed:
                try:
                    self._prepare(order)
                except Exception as exc:  # noqa: BLE001  # what goes wrong in one chat is said there
                    failed[order.chat_id] = _failure(order.chat_id, exc)
        rewound = [order.chat_id for order in step.rewinds if order.chat_id not in failed]
        kept = [(chat_id, self._sequences[chat_id].n_held) for chat_id in rewound]
        kept += [(fork.child, self._fork(fork)) for fork in step.forks]
        began = perf_counter()
        if step.chunk is not None:
            self._read(step.chunk, failed)
        taken = Taken() if step.rows is None else self._decoder.advance(step.rows)
        if taken.failed is not None:
            failed |= {row.chat_id: _failure(row.chat_id, taken.failed) for row in step.rows or ()}
        seconds = perf_counter() - began
        for chat_id in step.settles:
            try:
                mx.async_eval(self._sequences[chat_id].arrays())
            except Exception as exc:  # noqa: BLE001  # its answer is complete; only what it holds is not
                failed[chat_id] = _failure(chat_id, exc)
        return Done(
            kept=tuple(kept),
            tokens=taken.tokens,
            failed=tuple(failed.values()),
            lost="" if taken.lost is None else in_words(taken.lost),
            seconds=seconds,
            alone_seconds=taken.alone_seconds,
            timed=tuple(self._time_alone(alone) for alone in step.alone),
        )

    def close(self) -> None:
        """Give back whatever is held."""
        for chat_id in list(self._sequences):
            self._release(chat_id)

    # ------------------------------------------------------------------ caches
    def _release(self, chat_id: int) -> None:
        sequence = self._sequences.pop(chat_id, None)
        if sequence is not None:
            sequence.release()

    def _prepare(self, order: Open | Rewind | Sample) -> None:
        match order:
            case Open(chat_id, choice):
                self._open(chat_id, choice)
            case Rewind(chat_id, keep):
                sequence = self._sequences[chat_id]
                if not sequence.rewind(keep):
                    self._release(chat_id)
                    self._open(chat_id, sequence.choice)
            case Sample(chat_id, sampling, position, recent):
                sampler = TokenSampler(sampling)
                sampler.begin(recent, position)
                self._sequences[chat_id].sampler = sampler

    def _open(self, chat_id: int, choice: CacheChoice) -> None:
        self._sequences[chat_id] = Sequence.opened(self._loaded.model, self._pool, chat_id, choice)

    def _fork(self, fork: Fork) -> int:
        """Returns how many tokens the child holds. Without room for what can't be shared it has no caches."""
        try:
            twin = self._sequences[fork.parent].fork(fork.child, fork.keep)
        except Exception:  # noqa: BLE001  # its first answer makes its caches, when there is room
            return 0
        if twin is None:
            return 0
        self._sequences[fork.child] = twin
        return twin.n_held

    # ------------------------------------------------------------------ the model
    def _read(self, chunk: Chunk, failed: dict[int, Failure]) -> None:
        self._decoder.disturb()
        try:
            sequence = self._sequences[chunk.chat_id]
            # The logits are never asked for, so they are never computed.
            self._loaded.model(mx.array(chunk.tokens)[None], cache=sequence.caches)
            mx.eval(sequence.arrays())
        except Exception as exc:  # noqa: BLE001  # one chat's chunk failed: say so there, the other chats go on
            failed[chunk.chat_id] = _failure(chunk.chat_id, exc)

    def _time_alone(self, alone: Alone) -> Timed:
        self._decoder.disturb()
        try:
            return time_alone(self._loaded.model, self._sequences[alone.chat_id], alone)
        except Exception:  # noqa: BLE001  # the answer is complete, and its text is all that its next turn needs
            self._release(alone.chat_id)
            return Timed(alone.chat_id, kept=False)


def give_memory_back() -> None:
    """To the system: what MLX and the heap keep for reuse."""
    mx.clear_cache()
    give_back()


def _failure(chat_id: int, exc: Exception) -> Failure:
    return Failure(chat_id, in_words(exc), isinstance(exc, BlockPoolExhaustedError))
