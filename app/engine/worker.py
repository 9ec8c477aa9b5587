"""The worker thread's loop: take commands, let the scheduler plan and the runner do one step, report."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event as Flag

import mlx.core as mx

from app.engine import messages as m
from app.engine.answers import Model
from app.engine.books import Holding
from app.engine.runner import Runner, give_memory_back
from app.engine.scheduler import Scheduler
from app.models.default_model import can_fetch_default, ensure_default_model, find_default_model
from app.models.errors import Cancelled, FetchError, ModelFileError
from app.models.loading import load_model
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig
from veloxquant_mlx.quantizers.shared import forget_shared

REPORT_EVERY = 0.1  # seconds between memory reports while something changes
CACHE_LIMIT = 256 << 20  # bytes of freed buffers that MLX may keep for reuse
# Prompt tokens between two looks at the commands. On CPU 64 take some 0.3 s, and larger chunks are hardly faster (the
# default model on two x86 cores: 219 tokens/s by 64, 238 by 128, 233 by 256).
CHUNK = {mx.DeviceType.cpu: 64, mx.DeviceType.gpu: 256}


class Worker:
    """Everything the worker thread owns. Made and run inside that thread."""

    def __init__(
        self,
        pool: PoolConfig,
        commands: queue.SimpleQueue[m.Command | None],
        emit: Callable[[m.Event], None],
        stopping: Flag,
    ) -> None:
        self._commands, self._emit, self._stopping = commands, emit, stopping
        self._pool = BlockPoolAllocator(pool)
        self._runner: Runner | None = None  # where a model is loaded
        self._stuck = False  # whoever answers waits for memory that only a command can free
        device = mx.default_device().type
        if device == mx.DeviceType.cpu:
            # On CPU, MLX writes C++ for each fused kernel, has g++ compile it (about a second each, in the middle of an
            # answer) and loads the result from a folder in /tmp that anybody can write to. It is worth 1 to 3 % of a
            # decode step of the default model, where there is a g++ at all.
            mx.disable_compile()
        self._scheduler = Scheduler(self._pool, CHUNK[device], emit)
        mx.set_cache_limit(CACHE_LIMIT)
        self._reported_at = 0.0
        self._changed = True

    def run(self) -> None:
        """Serve until asked to stop."""
        try:
            while not self._stopping.is_set():
                self._take_commands()
                if not self._stopping.is_set():
                    self._advance()
                    self._carry_out_orders()
                self._report()
        finally:
            self._end()

    def _advance(self) -> None:
        """One step: what the scheduler decides, the runner does."""
        step = self._scheduler.plan()
        self._stuck, self._changed = step is None, True
        if step is not None and self._runner is not None:
            self._scheduler.take(step, self._runner.run(step))

    def _end(self) -> None:
        # Without this as the thread's last act on MLX, the process aborts at exit (terminate called without an
        # active exception), because the thread's streams outlive it.
        if self._runner is not None:
            self._runner.close()
        del self._runner, self._scheduler  # whatever holds the model
        forget_shared()
        mx.synchronize()
        mx.clear_streams()

    # ------------------------------------------------------------------ commands
    def _take_commands(self) -> None:
        """Carry out what is queued; wait for the next command when there is nothing else to do."""
        while not self._stopping.is_set():
            busy = not self._stuck and self._scheduler.busy
            if not busy:
                self._report(now=True)
            try:
                command = self._commands.get(block=not busy)
            except queue.Empty:
                return
            if command is not None:
                self._changed, self._stuck = True, False
                self._carry_out(command)

    def _carry_out(self, command: m.Command) -> None:
        match command:
            case m.LoadModel(folder):
                self._load(folder)
            case m.FetchDefaultModel():
                self._fetch()
            case m.OpenChat(chat_id, choice):
                self._scheduler.open(chat_id, choice)
                self._carry_out_orders()
                self._emit(m.ChatOpened(chat_id))
            case m.ForkChat():
                self._scheduler.fork(command)
            case m.Send():
                self._scheduler.send(command)
            case m.Stop(chat_id):
                self._scheduler.stop(chat_id)
            case m.CloseChat(chat_id):
                self._scheduler.close(chat_id)
                self._carry_out_orders()
                self._emit(m.ChatClosed(chat_id))
            case m.SetBudget():
                self._scheduler.set_budget(command)
        self._carry_out_orders()

    def _carry_out_orders(self) -> None:
        """Do what was ordered for caches, and what follows from that, before anything else is looked at."""
        while self._scheduler.has_orders:
            self._advance()

    # ------------------------------------------------------------------ the model
    def _fetch(self) -> None:
        try:
            folder = ensure_default_model(self._progress, self._stopping.is_set)
        except Cancelled:
            return
        except (FetchError, ModelFileError) as exc:
            self._emit(m.ModelFailed(str(exc), can_fetch=can_fetch_default()))
            return
        except Exception as exc:  # noqa: BLE001  # a disk or an archive may fail in any way; the worker must outlive it
            message = f"The default model can't be set up ({type(exc).__name__}: {exc}). Try again."
            self._emit(m.ModelFailed(message, can_fetch=can_fetch_default()))
            return
        self._load(str(folder))

    def _load(self, name: str | None) -> None:
        self._scheduler.unload()
        self._carry_out_orders()
        self._runner = None
        give_memory_back()
        try:
            folder = Path(name) if name is not None else find_default_model()
            if folder is None:
                # In the packaged app, where nothing can be fetched, a missing one is an error of its own.
                self._emit(m.ModelFailed("The default model is not on this computer yet.", can_fetch_default()))
                return
            known = load_model(folder, self._progress, self._stopping.is_set)
        except Cancelled:
            return
        except ModelFileError as exc:
            self._emit(m.ModelFailed(str(exc), can_fetch=name is None and can_fetch_default()))
            return
        except Exception as exc:  # noqa: BLE001  # a model of any kind may fail in any way; the worker must outlive it
            where = name or "the default model's folder"
            self._emit(m.ModelFailed(f"The model in {where} can't be loaded ({type(exc).__name__}: {exc})."))
            return
        self._runner = Runner(known, self._pool)
        self._scheduler.load(Model(known.name, known.tokenizer, known.context_limit), self._runner.books)
        self._emit(
            m.ModelReady(
                m.ModelInfo(
                    name=known.name,
                    folder=str(known.folder),
                    n_layers=known.n_layers,
                    n_kv_heads=known.n_kv_heads,
                    head_dim=known.head_dim,
                    context_limit=known.context_limit,
                    dtype=known.dtype,
                    device=known.device,
                    bytes_per_token=known.bytes_per_token,
                    notices=known.notices,
                )
            )
        )

    def _progress(self, stage: str, fraction: float | None) -> None:
        self._emit(m.ModelProgress(stage, fraction))

    # ------------------------------------------------------------------ reporting
    def _report(self, *, now: bool = False) -> None:
        at = time.monotonic()
        if not self._changed or (not now and at - self._reported_at < REPORT_EVERY):
            return
        self._reported_at, self._changed = at, False
        stats = self._pool.stats.snapshot()
        holdings, cache_bytes = self._runner.books.holdings() if self._runner is not None else ({}, 0)
        self._emit(
            m.MemoryReport(
                time=at,
                chats=tuple(
                    _memory(chat_id, state, n_held, holdings.get(chat_id, Holding()))
                    for chat_id, (state, n_held) in self._scheduler.states().items()
                ),
                pool=m.PoolReport(
                    block_size=self._pool.config.block_size,
                    n_blocks=stats.n_blocks,
                    blocks_in_use=stats.blocks_in_use(),
                    fragmentation=stats.fragmentation(),
                    allocations=stats.n_allocations,
                    reused=stats.n_reused,
                    peak_blocks_in_use=stats.peak_blocks_in_use,
                    active_bytes=mx.get_active_memory(),
                    bytes_in_use=stats.bytes_in_use,
                    max_bytes=self._pool.max_bytes,
                    shared_blocks=stats.n_shared,
                    cache_bytes=cache_bytes,
                ),
            )
        )


def _memory(chat_id: int, state: m.ChatState, n_held: int, holding: Holding) -> m.ChatMemory:
    return m.ChatMemory(
        chat_id=chat_id,
        state=state,
        tokens=n_held,
        blocks_held=holding.blocks,
        memory_bytes=holding.memory_bytes,
        uncompressed_bytes=holding.uncompressed_bytes,
        shared_blocks=holding.shared_blocks,
        shared_bytes=holding.shared_bytes,
    )
