"""A runner without a model, and people in front of a scheduler: what is decided can be tested in plain Python.

The runner keeps tokens where the real one keeps keys and values, and takes its blocks from a real pool. Its next token
is a function of all tokens it holds. So an answer is right only if everything that went into it was: a token that was
left out, read twice or forgotten shows in the text. Whatever goes in and comes out is pickled on the way, as to another
process.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.engine import messages as m
from app.engine.answers import Model
from app.engine.books import Holding, Need
from app.engine.scheduler import Scheduler
from app.engine.step import Done, Failure, Sample, Step, Timed
from app.engine.values import CacheChoice, Sampling
from tests.app.engine.driver import conversation
from veloxquant_mlx.memory.block_pool import Block, BlockPoolAllocator, PoolConfig

CHUNK, BLOCK = 8, 4
BLOCK_BYTES = 100  # of keys or values; a chat has blocks of both
LIMIT = 2_000  # tokens that the model reads
END = 0


# ---------------------------------------------------------------- a model of letters
class Letters:
    """A tokenizer whose tokens are characters, as mlx-lm wraps one."""

    eos_token_ids = (END,)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def apply_chat_template(self, turns: Sequence[dict[str, str]], add_generation_prompt: bool = False) -> list[int]:
        if any("!" in turn["content"] for turn in turns):
            raise ValueError("This template knows no exclamation mark.")
        text = "".join(f"<{turn['role'][0]}>{turn['content']}" for turn in turns)
        return self.encode(text + "<a>" * add_generation_prompt)

    @property
    def detokenizer(self) -> Written:
        return Written()


class Written:
    """A detokenizer with mlx-lm's interface."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.text, self._read = "", 0

    def add_token(self, token: int) -> None:
        self.text += chr(token)

    def finalize(self) -> None:
        pass

    @property
    def last_segment(self) -> str:
        segment, self._read = self.text[self._read :], len(self.text)
        return segment


def next_token(tokens: Sequence[int], sampling: Sampling) -> int:
    """Greedy: a small letter that every token before it has a say in; with a temperature the seed has one, too."""
    number = 7
    for token in tokens:
        number = (number * 31 + token + 1) % 1_000_003
    if sampling.temperature:
        number = (number * 31 + (sampling.seed or 0)) % 1_000_003
    return ord("a") + number % 26


def answer(*texts: str, n: int, sampling: Sampling | None = None) -> str:
    """What the model says to a conversation, without any scheduler."""
    plain = [{"role": message.role, "content": message.content} for message in conversation(*texts)]
    return goes_on(Letters().apply_chat_template(plain, add_generation_prompt=True), n, sampling)


def goes_on(tokens: list[int], n: int, sampling: Sampling | None = None) -> str:
    """What it says behind these tokens."""
    tokens, text = list(tokens), ""
    for _ in range(n):
        tokens.append(next_token(tokens, sampling or Sampling()))
        text += chr(tokens[-1])
    return text


# ---------------------------------------------------------------- what does what was decided
@dataclass
class Held:
    """One chat's caches: tokens, and blocks for them in both streams."""

    tokens: list[int] = field(default_factory=list)
    blocks: dict[str, list[Block]] = field(default_factory=lambda: {"k": [], "v": []})
    sample: Sample | None = None
    position: int = 0


class PlainRunner:
    """Does the steps, and is the books of what they take.

    Attributes:
        steps: All that were run.
        chunk_seconds: How long a chunk takes; step_seconds: a decode step.
        failing: Chats whose part of the next chunk or decode step fails, and whether for want of a block.
        loses: The tokens of the decode step before are lost.
    """

    def __init__(self, pool: BlockPoolAllocator) -> None:
        self.pool = pool
        self.steps: list[Step] = []
        self.chunk_seconds = self.step_seconds = 1.0
        self.failing: dict[int, bool] = {}
        self.loses = False
        self.chats: dict[int, Held] = {}
        self._computed: dict[int, int] = {}  # the tokens of the latest decode step

    def run(self, step: Step) -> Done:
        step = pickle.loads(pickle.dumps(step))
        self.steps.append(step)
        for chat_id in step.releases:
            self._trim(self.chats.pop(chat_id), 0)
        for order in step.opens:
            assert order.chat_id not in self.chats, "opened twice"
            self.chats[order.chat_id] = Held()
        kept = []
        for rewind in step.rewinds:
            self._trim(self.chats[rewind.chat_id], rewind.keep)
            kept.append((rewind.chat_id, len(self.chats[rewind.chat_id].tokens)))
        for fork in step.forks:
            kept.append((fork.child, self._fork(fork.parent, fork.child, fork.keep)))
        for sample in step.samples:
            assert sample.sampling.seed is not None
            self.chats[sample.chat_id].sample, self.chats[sample.chat_id].position = sample, sample.position
        done = Done(kept=tuple(kept), timed=tuple(self._alone(alone.chat_id, alone.n_steps) for alone in step.alone))
        if step.chunk is not None:
            done = self._read(step.chunk.chat_id, step.chunk.tokens)
        elif step.rows is not None:
            done = self._decode(step)
        for chat_id in step.settles:
            assert chat_id in self.chats
        found: Done = pickle.loads(pickle.dumps(done))
        return found

    def _read(self, chat_id: int, tokens: tuple[int, ...]) -> Done:
        if chat_id in self.failing:
            return Done(failed=(self._failure(chat_id),), seconds=self.chunk_seconds)
        self._append(chat_id, tokens)
        return Done(seconds=self.chunk_seconds)

    def _decode(self, step: Step) -> Done:
        before, self._computed = self._computed, {}
        lost, self.loses = self.loses and bool(before), self.loses and not before
        failed = []
        for row in step.rows or ():
            if row.chat_id in self.failing:
                failed.append(self._failure(row.chat_id))
                continue
            self._append(row.chat_id, (before[row.chat_id] if row.token is None else row.token,))
            held = self.chats[row.chat_id]
            assert held.sample is not None
            assert held.position == len(held.tokens), "a number drawn at another position"
            self._computed[row.chat_id] = next_token(held.tokens, held.sample.sampling)
            held.position += 1
        if lost:
            self._computed = {}
            return Done(failed=tuple(failed), lost="MemoryError: no more", seconds=self.step_seconds)
        return Done(tokens=tuple(before.items()), failed=tuple(failed), seconds=self.step_seconds)

    def _failure(self, chat_id: int) -> Failure:
        return Failure(chat_id, "RuntimeError: broken", self.failing.pop(chat_id))

    def _append(self, chat_id: int, tokens: tuple[int, ...]) -> None:
        held = self.chats[chat_id]
        for stream, blocks in held.blocks.items():
            # Raises where the pool has none: what was not promised.
            if n := -(-(len(held.tokens) + len(tokens)) // BLOCK) - len(blocks):
                blocks += self.pool.allocate(stream, n * BLOCK, chat_id, n_bytes=BLOCK_BYTES)
        held.tokens += tokens

    def _trim(self, held: Held, keep: int) -> None:
        # Down to a block's end, as with codes: the scheduler has to take what it gets.
        if keep < len(held.tokens):
            keep -= keep % BLOCK
            del held.tokens[keep:]
        for blocks in held.blocks.values():
            self.pool.free(blocks[-(-keep // BLOCK) :])
            del blocks[-(-keep // BLOCK) :]

    def _fork(self, parent: int, child: int, keep: int) -> int:
        mine, n = self.chats[parent], keep // BLOCK
        if not n:
            return 0
        blocks = {stream: self.pool.share(blocks[:n], child) for stream, blocks in mine.blocks.items()}
        self.chats[child] = Held(mine.tokens[: n * BLOCK], blocks)
        return n * BLOCK

    def _alone(self, chat_id: int, n_steps: int) -> Timed:
        held = self.chats[chat_id]
        n_tokens = len(held.tokens)
        self._append(chat_id, (1,) * n_steps)
        del held.tokens[n_tokens:]
        for blocks in held.blocks.values():
            self.pool.free(blocks[-(-n_tokens // BLOCK) :])
            del blocks[-(-n_tokens // BLOCK) :]
        return Timed(chat_id, n_steps * 0.5, n_steps)

    def tokens(self, chat_id: int) -> list[int]:
        """What a chat's caches hold."""
        return self.chats[chat_id].tokens if chat_id in self.chats else []

    # ------------------------------------------------------------------ the books
    def need(self, chat_id: int, n_tokens: int) -> Need:
        held = self.chats[chat_id]
        return _blocks(-(-(len(held.tokens) + n_tokens) // BLOCK) - len(held.blocks["k"]))

    def need_anew(self, choice: CacheChoice, n_tokens: int) -> Need:
        return _blocks(-(-n_tokens // BLOCK))

    def least(self, choice: CacheChoice, n_tokens: int) -> Need:
        return _blocks(-(-n_tokens // BLOCK))

    def held(self, chat_id: int) -> Need:
        return _blocks(len(self.chats[chat_id].blocks["k"]))

    def holding(self, chat_id: int) -> Holding:
        held = self.chats.get(chat_id)
        return Holding() if held is None else Holding(2 * len(held.blocks["k"]))


def _blocks(n: int) -> Need:
    return Need(n, n, 2 * n * BLOCK_BYTES)


# ---------------------------------------------------------------- people
class Room:
    """A scheduler, a runner, and what was said.

    Args:
        n_blocks: Of keys, and as many of values, that the budget has room for; None is no limit.
    """

    def __init__(self, n_blocks: int | None = None) -> None:
        self.pool = BlockPoolAllocator(PoolConfig(block_size=BLOCK, n_blocks=1, grow_on_exhaustion=True))
        self.runner = PlainRunner(self.pool)
        self.log: list[m.Event] = []
        self.scheduler = Scheduler(self.pool, CHUNK, self.log.append)
        self.scheduler.load(Model("Letters", Letters(), LIMIT), self.runner)
        self.budget(n_blocks)

    # ------------------------------------------------------------------ commands
    def open(self, *chat_ids: int) -> None:
        for chat_id in chat_ids:
            self.scheduler.open(chat_id, CacheChoice("fp16"))
        self.obey()

    def send(
        self,
        chat_id: int,
        *texts: str,
        n: int = 10,
        sampling: Sampling | None = None,
        limit: int | None = None,
        drop_oldest: bool = False,
        time_alone: bool = False,
    ) -> None:
        sampling = sampling or Sampling(max_tokens=n)
        self.scheduler.send(m.Send(chat_id, conversation(*texts), sampling, limit, drop_oldest, time_alone))
        self.obey()

    def stop(self, chat_id: int) -> None:
        self.scheduler.stop(chat_id)
        self.obey()

    def close(self, *chat_ids: int) -> None:
        for chat_id in chat_ids:
            self.scheduler.close(chat_id)
        self.obey()

    def fork(self, chat_id: int, new_chat_id: int, *texts: str) -> m.ChatForked:
        self.scheduler.fork(m.ForkChat(chat_id, new_chat_id, conversation(*texts)))
        self.obey()
        return next(event for event in reversed(self.log) if isinstance(event, m.ChatForked))

    def budget(self, n_blocks: int | None, *, drop_idle: bool = False) -> None:
        limit = None if n_blocks is None else 2 * n_blocks * BLOCK_BYTES
        self.scheduler.set_budget(m.SetBudget(limit, drop_idle))
        self.obey()

    # ------------------------------------------------------------------ time goes by
    def step(self) -> Step | None:
        """One step, as the worker does it; None where there is none."""
        step = self.scheduler.plan()
        if step is not None:
            self.scheduler.take(step, self.runner.run(step))
        self.obey()
        return step

    def obey(self) -> None:
        while self.scheduler.has_orders:
            step = self.scheduler.plan()
            assert step is not None
            self.scheduler.take(step, self.runner.run(step))

    def run(self, n_steps: int = 2_000) -> bool:
        """Until nobody answers, or nothing can go on. Returns whether it came to one of them within so many steps."""
        return any(not self.scheduler.busy or self.step() is None for _ in range(n_steps))

    def until(self, kind: type[m.Event], chat_id: int) -> None:
        """Step by step until such an event has come."""
        n = len(self.log)
        while not any(isinstance(event, kind) and getattr(event, "chat_id", 0) == chat_id for event in self.log[n:]):
            assert self.step() is not None, f"It never came: {self.log[-5:]}"

    # ------------------------------------------------------------------ what was said
    def text(self, chat_id: int) -> str:
        return "".join(e.text for e in self.log if isinstance(e, m.AnswerText) and e.chat_id == chat_id)

    def of(self, kind: type[m.Event], chat_id: int | None = None) -> list[m.Event]:
        return [e for e in self.log if isinstance(e, kind) and chat_id in (None, getattr(e, "chat_id", None))]

    def ends(self) -> list[int]:
        """Whose answers have ended, in that order."""
        return [event.chat_id for event in self.log if isinstance(event, m.AnswerEnded)]

    def chunks(self) -> list[tuple[int, int]]:
        """Who has read how many tokens at once."""
        return [(s.chunk.chat_id, len(s.chunk.tokens)) for s in self.runner.steps if s.chunk is not None]

    def state(self, chat_id: int) -> str:
        return self.scheduler.states()[chat_id][0]

    def all_is_in_order(self) -> None:
        """What the scheduler takes for held is held, and the pool has nothing else."""
        chats = self.scheduler.chats
        assert self.runner.chats.keys() == {chat_id for chat_id, chat in chats.items() if chat.has_caches}
        for chat_id, chat in chats.items():
            assert chat.held == self.runner.tokens(chat_id)
        own = {block.block_id for chat_id in chats for block in self.pool.blocks_for(chat_id)}
        assert self.pool.stats.snapshot().blocks_in_use() == len(own)
