"""The worker thread's loop: take commands, read one chunk of a prompt, decode one token of every chat, report."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event as Flag

import mlx.core as mx

from app.engine import messages as m
from app.engine.admission import Admission
from app.engine.answering import Answering
from app.engine.chat import Chat
from app.models.default_model import can_fetch_default, ensure_default_model, find_default_model
from app.models.errors import Cancelled, FetchError, ModelFileError
from app.models.loading import LoadedModel, load_model
from veloxquant_mlx.core.heap import give_back
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig
from veloxquant_mlx.quantizers.shared import forget_shared

REPORT_EVERY = 0.1  # seconds between memory reports while something changes
CACHE_LIMIT = 256 << 20  # bytes of freed buffers that MLX may keep for reuse
# Prompt tokens between two looks at the commands. On CPU 64 take some 0.3 s, and larger chunks are hardly faster (the
# default model on two x86 cores: 219 tokens/s by 64, 238 by 128, 233 by 256).
CHUNK = {mx.DeviceType.cpu: 64, mx.DeviceType.gpu: 256}
NO_MODEL = "No model is loaded yet. Wait until it is ready, then send the message again."


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
        self._loaded: LoadedModel | None = None
        self._chats: dict[int, Chat] = {}
        self._answering: Answering | None = None  # where a model is loaded
        self._admission = Admission(self._pool, self._drop)
        self._stuck = False  # whoever answers waits for memory that only a command can free
        device = mx.default_device().type
        if device == mx.DeviceType.cpu:
            # On CPU, MLX writes C++ for each fused kernel, has g++ compile it (about a second each, in the middle of an
            # answer) and loads the result from a folder in /tmp that anybody can write to. It is worth 1 to 3 % of a
            # decode step of the default model, where there is a g++ at all.
            mx.disable_compile()
        self._chunk = CHUNK[device]
        mx.set_cache_limit(CACHE_LIMIT)
        self._reported_at = 0.0
        self._changed = True

    def run(self) -> None:
        """Serve until asked to stop."""
        try:
            while not self._stopping.is_set():
                self._take_commands()
                if self._answering is not None and not self._stopping.is_set():
                    self._stuck = not self._answering.advance()
                    self._changed = True
                self._report()
        finally:
            self._end()

    def _end(self) -> None:
        # Without this as the thread's last act on MLX, the process aborts at exit (terminate called without an
        # active exception), because the thread's streams outlive it.
        for chat in self._chats.values():
            chat.release()
        self._chats.clear()
        self._answering = self._loaded = self._admission.loaded = None
        forget_shared()
        mx.synchronize()
        mx.clear_streams()

    # ------------------------------------------------------------------ commands
    def _take_commands(self) -> None:
        """Carry out what is queued; wait for the next command when there is nothing else to do."""
        while not self._stopping.is_set():
            busy = not self._stuck and any(chat.answer is not None for chat in self._chats.values())
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
                self._close(chat_id)
                self._chats[chat_id] = Chat(chat_id, choice)
                self._emit(m.ChatOpened(chat_id))
            case m.ForkChat():
                self._fork(command)
            case m.Send():
                self._send(command)
            case m.Stop(chat_id):
                chat = self._chats.get(chat_id)
                if chat is not None and self._answering is not None:
                    self._answering.stop(chat)
            case m.CloseChat(chat_id):
                self._close(chat_id)
                self._give_memory_back()
                self._emit(m.ChatClosed(chat_id))
            case m.SetBudget(max_bytes, drop_idle):
                self._pool.limit_bytes(max_bytes)
                self._admission.drop_idle = drop_idle
                self._admission.keep_to_budget(self._chats.values())
                self._emit(m.BudgetSet(max_bytes, drop_idle))

    def _send(self, command: m.Send) -> None:
        chat = self._chats.get(command.chat_id)
        if chat is None:
            self._emit(m.ChatFailed(command.chat_id, "This chat is closed. Open a new one."))
        elif self._answering is None:
            self._emit(m.ChatFailed(command.chat_id, NO_MODEL))
        else:
            self._answering.stop(chat)
            self._answering.send(chat, command)

    def _fork(self, command: m.ForkChat) -> None:
        self._close(command.new_chat_id)
        parent = self._chats.get(command.chat_id)
        if parent is None:
            self._emit(m.ChatFailed(command.new_chat_id, "The chat to fork is closed. Open a new one."))
            return
        if self._answering is None:
            twin = Chat(command.new_chat_id, parent.choice)
        else:
            twin = self._answering.fork(parent, command)
        self._chats[twin.chat_id] = twin
        self._emit(m.ChatForked(parent.chat_id, twin.chat_id, len(twin.held)))

    def _close(self, chat_id: int) -> None:
        chat = self._chats.pop(chat_id, None)
        if chat is not None:
            if self._answering is not None:
                self._answering.forget(chat)
            chat.release()

    def _drop(self, chat: Chat) -> None:
        chat.release()
        self._give_memory_back()
        self._emit(m.CacheDropped(chat.chat_id))

    @staticmethod
    def _give_memory_back() -> None:
        mx.clear_cache()
        give_back()

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
        if self._answering is not None:
            self._answering.fail_all("The model was changed while this chat was answering. Send the message again.")
        for chat in self._chats.values():
            chat.release()
            chat.spoken = ("", [])  # another model has other tokens
        self._answering = self._loaded = self._admission.loaded = None
        self._give_memory_back()
        try:
            folder = Path(name) if name is not None else find_default_model()
            if folder is None:
                # In the packaged app, where nothing can be fetched, a missing one is an error of its own.
                self._emit(m.ModelFailed("The default model is not on this computer yet.", can_fetch_default()))
                return
            self._loaded = load_model(folder, self._progress, self._stopping.is_set)
        except Cancelled:
            return
        except ModelFileError as exc:
            self._emit(m.ModelFailed(str(exc), can_fetch=name is None and can_fetch_default()))
            return
        except Exception as exc:  # noqa: BLE001  # a model of any kind may fail in any way; the worker must outlive it
            where = name or "the default model's folder"
            self._emit(m.ModelFailed(f"The model in {where} can't be loaded ({type(exc).__name__}: {exc})."))
            return
        known = self._loaded
        self._answering = Answering(known, self._pool, self._chats, self._admission, self._emit, self._chunk)
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
        queued = self._answering.queued if self._answering is not None else set()
        chats = self._chats.values()
        # What forks hold together is the same object in each.
        pieces = {chat.chat_id: {id(piece): piece.nbytes for piece in chat.pieces()} for chat in chats}
        holders = Counter(piece for held in pieces.values() for piece in held)
        shared = {
            chat_id: sum(n_bytes for piece, n_bytes in held.items() if holders[piece] > 1)
            for chat_id, held in pieces.items()
        }
        memories = tuple(chat.memory(chat.chat_id in queued, shared[chat.chat_id]) for chat in chats)
        counted_twice = sum(
            n_bytes * (holders[piece] - 1)
            for piece, n_bytes in {k: v for p in pieces.values() for k, v in p.items()}.items()
        )
        self._emit(
            m.MemoryReport(
                time=at,
                chats=memories,
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
                    cache_bytes=sum(memory.memory_bytes for memory in memories) - counted_twice,
                ),
            )
        )
