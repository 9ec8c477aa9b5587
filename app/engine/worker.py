"""The worker thread's loop: take commands, process one prompt chunk, let every chat decode one token, report."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event as Flag
from typing import Any

import mlx.core as mx
from mlx_lm.sample_utils import make_sampler

from app.engine import messages as m
from app.engine.chat import Answer, Chat, decode_step, end_reason, prefill_chunk
from app.models.default_model import ensure_default_model, find_default_model
from app.models.errors import Cancelled, FetchError, ModelFileError
from app.models.loading import LoadedModel, load_model
from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError
from veloxquant_mlx.core.heap import give_back
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig
from veloxquant_mlx.quantizers.shared import forget_shared

REPORT_EVERY = 0.1  # seconds between memory reports while something changes
CACHE_LIMIT = 256 << 20  # bytes of freed buffers that MLX may keep for reuse
# Prompt tokens between two looks at the commands. On CPU 64 take some 0.3 s, and larger chunks are hardly faster (the
# default model on two x86 cores: 219 tokens/s by 64, 238 by 128, 233 by 256).
CHUNK = {mx.DeviceType.cpu: 64, mx.DeviceType.gpu: 512}


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
        self._prefilling: deque[int] = deque()  # chats whose prompt is not through yet; the first one is next
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
                self._prefill_one_chunk()
                self._decode_all_once()
                self._report()
        finally:
            self._end()

    def _end(self) -> None:
        # Without this as the thread's last act on MLX, the process aborts at exit (terminate called without an
        # active exception), because the thread's streams outlive it.
        for chat in self._chats.values():
            chat.release()
        self._chats.clear()
        self._loaded = None
        forget_shared()
        mx.synchronize()
        mx.clear_streams()

    # ------------------------------------------------------------------ commands
    def _take_commands(self) -> None:
        """Carry out what is queued; wait for the next command when there is nothing else to do."""
        while not self._stopping.is_set():
            busy = any(chat.answer is not None for chat in self._chats.values())
            if not busy:
                self._report(now=True)
            try:
                command = self._commands.get(block=not busy)
            except queue.Empty:
                return
            if command is not None:
                self._changed = True
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
            case m.Send(chat_id):
                self._send(command)
            case m.Stop(chat_id):
                chat = self._chats.get(chat_id)
                if chat is not None and chat.answer is not None:
                    self._stop(chat)
            case m.CloseChat(chat_id):
                self._close(chat_id)
                self._give_memory_back()
                self._emit(m.ChatClosed(chat_id))
            case m.ResizePool(n_blocks):
                self._emit(m.PoolResized(_resize(self._pool, n_blocks)))

    def _close(self, chat_id: int) -> None:
        chat = self._chats.pop(chat_id, None)
        if chat is not None:
            self._leave_queue(chat_id)
            chat.release()

    def _leave_queue(self, chat_id: int) -> None:
        if chat_id in self._prefilling:
            self._prefilling.remove(chat_id)

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
            self._emit(m.ModelFailed(str(exc), can_fetch=True))
            return
        except Exception as exc:  # noqa: BLE001  # a disk or an archive may fail in any way; the worker must outlive it
            message = f"The default model can't be set up ({type(exc).__name__}: {exc}). Try again."
            self._emit(m.ModelFailed(message, can_fetch=True))
            return
        self._load(str(folder))

    def _load(self, name: str | None) -> None:
        for chat in self._chats.values():
            if chat.answer is not None:
                self._fail(chat, "The model was changed while this chat was answering. Send the message again.")
            chat.release()
        self._loaded = None
        self._give_memory_back()
        try:
            folder = Path(name) if name is not None else find_default_model()
            if folder is None:
                self._emit(m.ModelFailed("The default model is not on this computer yet.", can_fetch=True))
                return
            self._loaded = load_model(folder, self._progress, self._stopping.is_set)
        except Cancelled:
            return
        except ModelFileError as exc:
            self._emit(m.ModelFailed(str(exc), can_fetch=name is None))
            return
        except Exception as exc:  # noqa: BLE001  # a model of any kind may fail in any way; the worker must outlive it
            where = name or "the default model's folder"
            self._emit(m.ModelFailed(f"The model in {where} can't be loaded ({type(exc).__name__}: {exc})."))
            return
        known = self._loaded
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

    # ------------------------------------------------------------------ answering
    def _send(self, command: m.Send) -> None:
        chat = self._chats.get(command.chat_id)
        if chat is None:
            self._emit(m.ChatFailed(command.chat_id, "This chat is closed. Open a new one."))
            return
        if chat.answer is not None:
            self._stop(chat)
        if self._loaded is None:
            self._fail(chat, "No model is loaded yet. Wait until it is ready, then send the message again.")
            return
        try:
            prompt = self._tokens(command.messages)
            limit = self._loaded.context_limit
            if len(prompt) >= limit:
                self._fail(
                    chat,
                    f"This conversation is {len(prompt):,} tokens long, and {self._loaded.name} reads at most "
                    f"{limit:,}. Start a new chat, or shorten the message.",
                )
                return
            sampling = command.sampling
            reused = chat.prepare(self._loaded.model, self._pool, prompt)
            chat.answer = Answer(
                prompt=prompt,
                reused=reused,
                sampler=make_sampler(temp=sampling.temperature, top_p=sampling.top_p),
                detokenizer=self._loaded.tokenizer.detokenizer,
                max_tokens=sampling.max_tokens,
            )
        except Exception as exc:  # noqa: BLE001  # whatever one chat's message does, the others go on
            self._fail_step(chat, exc)
            return
        self._prefilling.append(chat.chat_id)
        self._emit(m.PromptProgress(chat.chat_id, reused, len(prompt), reused))

    def _tokens(self, conversation: tuple[m.Message, ...]) -> list[int]:
        assert self._loaded is not None
        turns = [{"role": message.role, "content": message.content} for message in conversation]
        tokens: list[int] = self._loaded.tokenizer.apply_chat_template(turns, add_generation_prompt=True)
        return tokens

    def _prefill_one_chunk(self) -> None:
        if not self._prefilling:
            return
        chat = self._chats[self._prefilling.popleft()]
        answer = chat.answer
        assert answer is not None
        left = len(answer.prompt) - 1 - len(chat.held)
        if left > 0:
            if not self._step(chat, partial(prefill_chunk, self._model, chat, self._chunk)):
                return
            left = len(answer.prompt) - 1 - len(chat.held)
            self._emit(m.PromptProgress(chat.chat_id, len(chat.held), len(answer.prompt), answer.reused))
        if left > 0:
            self._prefilling.append(chat.chat_id)

    def _decode_all_once(self) -> None:
        for chat in list(self._chats.values()):
            if chat.answer is None or chat.chat_id in self._prefilling:
                continue
            if self._stopping.is_set():
                return
            self._step(chat, partial(self._decode, chat))

    def _decode(self, chat: Chat) -> None:
        self._hand_out(chat, decode_step(self._model, chat))

    def _hand_out(self, chat: Chat, token: int) -> None:
        answer, loaded = chat.answer, self._loaded
        assert answer is not None
        assert loaded is not None
        ends = loaded.tokenizer.eos_token_ids
        if token not in ends:
            answer.last_at = time.monotonic()
            answer.first_at = answer.first_at or answer.last_at
            answer.n_generated += 1
            answer.next_token = token
            answer.detokenizer.add_token(token)
            self._emit_text(chat)
        reason = end_reason(chat, token, ends, loaded.context_limit)
        if reason is not None:
            self._end_answer(chat, reason)

    def _emit_text(self, chat: Chat) -> None:
        assert chat.answer is not None
        text = chat.answer.detokenizer.last_segment
        if text:
            self._emit(m.AnswerText(chat.chat_id, text, chat.answer.n_generated))

    def _stop(self, chat: Chat) -> None:
        try:
            self._end_answer(chat, "stopped")
        except Exception as exc:  # noqa: BLE001  # a detokenizer's last words; the chat has stopped in any case
            self._fail_step(chat, exc)

    def _end_answer(self, chat: Chat, reason: m.EndReason) -> None:
        assert chat.answer is not None
        chat.answer.detokenizer.finalize()
        self._emit_text(chat)
        self._leave_queue(chat.chat_id)
        stats = chat.stats()
        chat.answer = None
        self._changed = True
        self._emit(m.AnswerEnded(chat.chat_id, reason, stats))

    # ------------------------------------------------------------------ one step, and what can go wrong in it
    @property
    def _model(self) -> Any:
        assert self._loaded is not None
        return self._loaded.model

    def _step(self, chat: Chat, act: Callable[[], None]) -> bool:
        """Run one step of one chat. Returns whether it went well; where it did not, that chat ends and says why."""
        self._changed = True
        try:
            act()
        except BlockPoolExhaustedError:
            message = self._exhausted()
            chat.release()  # or the blocks of a chat that can't go on would soon stop all the others too
            self._fail(chat, message)
        except Exception as exc:  # noqa: BLE001  # one chat's step failed: say so there, the other chats go on
            self._fail_step(chat, exc)
        else:
            return True
        return False

    def _exhausted(self) -> str:
        total = self._pool.stats.n_blocks
        free = total - self._pool.stats.blocks_in_use()
        return (
            f"The memory for chats is full: {free:,} of {total:,} blocks are free, and this answer needs more. "
            f"Free the memory of a chat you don't need now (right-click it in the list), clear the comparison, "
            f"or make the pool larger (View > Pool size), then try again."
        )

    def _fail_step(self, chat: Chat, exc: Exception) -> None:
        # The layers may hold different numbers of tokens now, so the caches are made again from the text.
        chat.release()
        what = f"{type(exc).__name__}: {exc}"
        self._fail(chat, f"This answer ended with an error ({what}). Try again; other chats are not affected.")

    def _fail(self, chat: Chat, message: str) -> None:
        self._leave_queue(chat.chat_id)
        chat.answer = None
        self._changed = True
        self._emit(m.ChatFailed(chat.chat_id, message))

    # ------------------------------------------------------------------ reporting
    def _report(self, *, now: bool = False) -> None:
        at = time.monotonic()
        if not self._changed or (not now and at - self._reported_at < REPORT_EVERY):
            return
        self._reported_at, self._changed = at, False
        stats = self._pool.stats.snapshot()
        waiting = set(list(self._prefilling)[1:])
        self._emit(
            m.MemoryReport(
                time=at,
                chats=tuple(chat.memory(chat.chat_id in waiting) for chat in self._chats.values()),
                pool=m.PoolReport(
                    block_size=self._pool.config.block_size,
                    n_blocks=stats.n_blocks,
                    blocks_in_use=stats.blocks_in_use(),
                    fragmentation=stats.fragmentation(),
                    allocations=stats.n_allocations,
                    reused=stats.n_reused,
                    peak_blocks_in_use=stats.peak_blocks_in_use,
                    active_bytes=mx.get_active_memory(),
                ),
            )
        )


def _resize(pool: BlockPoolAllocator, n_blocks: int) -> int:
    """Grow or shrink both streams towards n_blocks in all; blocks in use stay. Returns the size reached."""
    difference = n_blocks - pool.stats.n_blocks
    streams = ("k", "v") if pool.config.separate_kv else ("kv",)
    for i, stream in enumerate(streams):
        share = abs(difference) // len(streams) + (i < abs(difference) % len(streams))
        if difference > 0 and share:
            pool.grow(stream, share)
        elif share:
            pool.shrink(stream, max(0, pool.n_free(stream) - share))
    return pool.stats.n_blocks
