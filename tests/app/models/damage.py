"""Damages GGUF files in every way that a header, its lengths, types, names and values can be damaged.

Run as a program, it converts a few hundred of them and prints what came of it: see test_gguf_fuzz.
"""

from __future__ import annotations

import faulthandler
import json
import random
import resource
import shutil
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT, _LIST = 8, 9
_NUMBERS = [0, 1, 2, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 32]
_FLOATS = [0.0, -1.0, 1e-38, 3e38, float("nan"), float("inf"), -float("inf")]


@dataclass(frozen=True)
class Pair:
    key: bytes
    kind: int
    value: bytes


@dataclass(frozen=True)
class Tensor:
    name: bytes
    shape: tuple[int, ...]  # as the file has it: columns before rows
    kind: int
    offset: int


@dataclass(frozen=True)
class Parts:
    """A sound file taken apart."""

    pairs: list[Pair]
    tensors: list[Tensor]
    data: bytes

    def whole(self) -> bytes:
        return self.header() + bytes(-len(self.header()) % 32) + self.data

    def header(self) -> bytes:
        out = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.pairs))
        for pair in self.pairs:
            out += _text(pair.key) + struct.pack("<I", pair.kind) + pair.value
        for tensor in self.tensors:
            shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
            out += _text(tensor.name) + shape + struct.pack("<IQ", tensor.kind & 0xFFFFFFFF, tensor.offset)
        return out


def take_apart(data: bytes) -> Parts:
    n_tensors, n_pairs = struct.unpack_from("<QQ", data, 8)
    at = 24

    def number(fmt: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from("<" + fmt, data, at)
        at += struct.calcsize("<" + fmt)
        return int(value)

    def text() -> bytes:
        nonlocal at
        length = number("Q")
        at += length
        return data[at - length : at]

    def skip(kind: int) -> None:
        nonlocal at
        if kind == _TEXT:
            text()
        elif kind == _LIST:
            item, count = number("I"), number("Q")
            for _ in range(count):
                skip(item)
        else:
            at += _SIZES[kind]

    pairs, tensors = [], []
    for _ in range(n_pairs):
        key, kind = text(), number("I")
        start = at
        skip(kind)
        pairs.append(Pair(key, kind, data[start:at]))
    for _ in range(n_tensors):
        name = text()
        shape = tuple(number("Q") for _ in range(number("I")))
        tensors.append(Tensor(name, shape, number("I"), number("Q")))
    return Parts(pairs, tensors, data[-(-at // 32) * 32 :])


def _text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _bits(parts: Parts, rng: random.Random) -> bytes:
    data = bytearray(parts.whole())
    end = rng.choice([64, len(parts.header()), len(data)])
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(data)


def _cut(parts: Parts, rng: random.Random) -> bytes:
    data = parts.whole()
    return data[: rng.randrange(rng.choice([64, len(parts.header()), len(data)]))]


def _inserted(parts: Parts, rng: random.Random) -> bytes:
    data = parts.whole()
    at = rng.randrange(rng.choice([64, len(parts.header()), len(data)]))
    return data[:at] + rng.randbytes(rng.choice([1, 8, 32, 64])) + data[at:]


def _removed(parts: Parts, rng: random.Random) -> bytes:
    data = parts.whole()
    at = rng.randrange(len(parts.header()))
    return data[:at] + data[at + rng.choice([1, 4, 8, 32]) :]


def _lengths(parts: Parts, rng: random.Random) -> bytes:
    """A length or count that is something else: of the file, a key, a text, a list or a tensor's name."""
    number = struct.pack("<Q", rng.choice(_NUMBERS))
    where = rng.randrange(4)
    data = bytearray(parts.whole())
    if where == 0:
        at = rng.choice([8, 16])
    elif where == 1:
        at = data.index(_text(rng.choice(parts.pairs).key))
    elif where == 2:
        at = data.index(_text(rng.choice(parts.tensors).name))
    else:
        pair = rng.choice([pair for pair in parts.pairs if pair.kind in (_TEXT, _LIST)])
        at = data.index(_text(pair.key)) + 8 + len(pair.key) + 4
        at += 4 if pair.kind == _LIST else 0
    data[at : at + 8] = number
    return bytes(data)


def _value_types(parts: Parts, rng: random.Random) -> bytes:
    """A value read as another type than the one it was written in."""
    i = rng.randrange(len(parts.pairs))
    pair = parts.pairs[i]
    kind = rng.choice([*range(14), 2**31, 2**32 - 1])
    return _with_pair(parts, i, Pair(pair.key, kind, pair.value))


def _other_values(parts: Parts, rng: random.Random) -> bytes:
    """A value that stands under another key."""
    i = rng.randrange(len(parts.pairs))
    other = rng.choice(parts.pairs)
    return _with_pair(parts, i, Pair(parts.pairs[i].key, other.kind, other.value))


def _numbers(parts: Parts, rng: random.Random) -> bytes:
    """A number that is out of all bounds."""
    i = rng.choice([i for i, pair in enumerate(parts.pairs) if pair.kind in (4, 5, 6)])
    pair = parts.pairs[i]
    if pair.kind == 6:
        value = struct.pack("<f", rng.choice(_FLOATS))
    else:
        value = struct.pack("<I", rng.choice(_NUMBERS) & 0xFFFFFFFF)
    return _with_pair(parts, i, Pair(pair.key, pair.kind, value))


def _lists(parts: Parts, rng: random.Random) -> bytes:
    """A list with items gone, twice there or spoiled: tokens, kinds, scores, merges."""
    i = rng.choice([i for i, pair in enumerate(parts.pairs) if pair.kind == _LIST])
    pair = parts.pairs[i]
    kind, count = struct.unpack_from("<IQ", pair.value)
    items: list[bytes] = []
    at = 12
    for _ in range(count):
        size = 8 + struct.unpack_from("<Q", pair.value, at)[0] if kind == _TEXT else _SIZES[kind]
        items.append(pair.value[at : at + size])
        at += size
    spoiled: Callable[[], bytes] = (
        (lambda: _text(rng.randbytes(rng.randrange(20)))) if kind == _TEXT else (lambda: rng.randbytes(_SIZES[kind]))
    )
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(items)) if items else 0
        match rng.randrange(5):
            case 0:
                items[at : at + 1] = []
            case 1:
                items[at:at] = items[: rng.choice([1, 2, 50])]
            case 2:
                items[at : at + 1] = [spoiled()]
            case 3:
                rng.shuffle(items)
            case 4:
                items = items[: rng.choice([0, 1, len(items) // 2])]
    return _with_pair(parts, i, Pair(pair.key, _LIST, struct.pack("<IQ", kind, len(items)) + b"".join(items)))


def _texts(parts: Parts, rng: random.Random) -> bytes:
    """A text that says something else, or nothing, or is none."""
    i = rng.choice([i for i, pair in enumerate(parts.pairs) if pair.kind == _TEXT])
    pair = parts.pairs[i]
    spoiled = bytearray(pair.value[8:])
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(spoiled) + 1)
        spoiled[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(3))
    endless = b"{% for i in range(10**12) %}x{% endfor %}"
    text = rng.choice([bytes(spoiled), b"", b"{{", endless, b"{{ 'x' * 10**10 }}", b"{{ messages[9].a }}"])
    return _with_pair(parts, i, Pair(pair.key, _TEXT, _text(text)))


def _names(parts: Parts, rng: random.Random) -> bytes:
    """A key or tensor that is there twice, missing, or called something else."""
    pairs, tensors = list(parts.pairs), list(parts.tensors)
    things: list[Pair] | list[Tensor] = rng.choice([pairs, tensors])  # type: ignore[assignment]
    i, other = rng.randrange(len(things)), rng.choice(things)
    match rng.randrange(4):
        case 0:
            things[i] = other  # type: ignore[call-overload]
        case 1:
            things.append(other)  # type: ignore[arg-type]
        case 2:
            del things[i]
        case 3:
            rng.shuffle(things)
    return Parts(pairs, tensors, parts.data).whole()


def _tensors(parts: Parts, rng: random.Random) -> bytes:
    """A tensor of another shape or type, or at another place."""
    tensors = list(parts.tensors)
    i = rng.randrange(len(tensors))
    old = tensors[i]
    shape, kind, offset = old.shape, old.kind, old.offset
    match rng.randrange(4):
        case 0:
            shape = tuple(rng.choice([*_NUMBERS, size, size + 32]) for size in shape)
        case 1:
            shape = rng.choice([(), shape[::-1], (*shape, 1), (1, *shape), (1,) * 9, (32, *shape)])
        case 2:
            kind = rng.choice([*range(45), 2**31, 2**32 - 1])
        case 3:
            offset = rng.choice([*_NUMBERS, rng.choice(tensors).offset, offset + 32, offset + 1])
    tensors[i] = Tensor(old.name, shape, kind, offset)
    return Parts(parts.pairs, tensors, parts.data).whole()


def _with_pair(parts: Parts, i: int, pair: Pair) -> bytes:
    return Parts([*parts.pairs[:i], pair, *parts.pairs[i + 1 :]], parts.tensors, parts.data).whole()


DAMAGES: list[Callable[[Parts, random.Random], bytes]] = [
    *(_bits, _cut, _inserted, _removed, _lengths, _value_types, _other_values, _numbers, _lists, _texts, _names),
    _tensors,
]


def main(folder: Path, n_files: int, memory: int) -> None:
    """Convert `n_files` damaged copies of the files in `folder`; print a line of JSON for each, then the memory taken.

    Args:
        memory: Bytes that may be taken on top of what the sound files take.
    """
    from app.models.convert import gguf_to_mlx_folder
    from app.models.errors import ModelFileError

    sound = sorted(folder.glob("*.gguf"))
    for path in sound:
        gguf_to_mlx_folder(path, folder / "model")
        shutil.rmtree(folder / "model")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _limit_memory(memory)
    parts = [take_apart(path.read_bytes()) for path in sound]
    damaged = folder / "damaged.gguf"
    for seed in range(n_files):
        damage = DAMAGES[seed % len(DAMAGES)]
        rng = random.Random(seed)
        damaged.write_bytes(damage(parts[seed // len(DAMAGES) % len(parts)], rng))
        # A file that takes longer ends the process, and tells where it was.
        faulthandler.dump_traceback_later(20, exit=True)
        outcome, said = "converted", ""
        try:
            gguf_to_mlx_folder(damaged, folder / "model")
        except ModelFileError as error:
            outcome, said = "refused", str(error)
        except BaseException:  # noqa: BLE001 - that nothing else comes is what is tested
            outcome, said = "failed", traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
        left = (folder / "model").exists()
        if outcome == "converted":
            said = _flaw(folder / "model")
            shutil.rmtree(folder / "model")
        row = {"seed": seed, "damage": damage.__name__, "outcome": outcome, "said": said, "left": left}
        print(json.dumps(row), flush=True)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"memory": (after - before) * (1 if sys.platform == "darwin" else 1024)}))


def _limit_memory(n_bytes: int) -> None:
    """Make larger allocations fail, where the system can (Linux)."""
    status = Path("/proc/self/statm")
    if status.exists():
        now = int(status.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + n_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _flaw(folder: Path) -> str:
    """What is wrong with a converted folder, if anything."""
    import numpy as np
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    arrays = load_file(folder / "model.safetensors")
    if not all(np.isfinite(array).all() for array in arrays.values()):
        return "not all weights are finite"
    if config["num_hidden_layers"] != len({name.split(".")[2] for name in arrays if ".layers." in name}):
        return "layers are missing"
    if not all((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        return "the tokenizer is missing"
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
