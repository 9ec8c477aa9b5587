"""Checks a GGUF file before MLX opens it, since MLX may end the whole process on a damaged one.

The layout is ggml's GGUF specification, versions 2 and 3: magic, version, counts, key-value pairs, one description per
tensor, padding to the alignment, then the tensors' data.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO

from app.models.errors import ModelFileError

# Value types of the key-value pairs: struct format of the fixed-size ones; 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY, _UINT32 = 8, 9, 4
# Tensor types MLX reads as they are: (name, values per block, bytes per block).
_READABLE = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}
_OTHER_TYPES = {
    6: "Q5_0",
    7: "Q5_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    30: "BF16",
}


class _TruncatedError(Exception):
    """The file ended, or a length in it points past its end."""


class _Reader:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.size = size

    def scalar(self, fmt: str) -> int | float | bool:
        data = self.file.read(struct.calcsize("<" + fmt))
        try:
            value: int | float | bool = struct.unpack("<" + fmt, data)[0]
        except struct.error:
            raise _TruncatedError from None
        return value

    def count(self, fmt: str = "Q") -> int:
        value = int(self.scalar(fmt))
        # Nothing in a sound file is counted in more units than the file has bytes; stops absurd loops at once.
        if value > self.size:
            raise _TruncatedError
        return value

    def string(self) -> bytes:
        length = self.count()
        data = self.file.read(length)
        if len(data) != length:
            raise _TruncatedError
        return data

    def skip(self, n_bytes: int) -> None:
        if self.file.tell() + n_bytes > self.size:
            raise _TruncatedError
        self.file.seek(n_bytes, 1)

    def skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self.skip(self.count())
        elif kind == _ARRAY:
            item, length = self.count("I"), self.count()
            if item in _SCALARS:
                self.skip(length * struct.calcsize("<" + _SCALARS[item]))
            else:
                for _ in range(length):
                    self.skip_value(item)
        elif kind in _SCALARS:
            self.skip(struct.calcsize("<" + _SCALARS[kind]))
        else:
            raise _TruncatedError


def check_gguf(path: Path) -> None:
    """Make sure `path` is a whole GGUF file whose tensors all lie inside it and are of types MLX reads.

    Raises:
        ModelFileError: naming the file and what is wrong with it.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelFileError(f"The file {path} is not a GGUF model: it doesn't begin with the letters GGUF.")
            end = _end_of_data(_Reader(file, size), path)
    except _TruncatedError:
        raise ModelFileError(
            f"The model's file {path} is damaged or cut off: its header doesn't end properly."
        ) from None
    except OSError as error:
        raise ModelFileError(f"The model's file {path} can't be read: {error.strerror}.") from error
    if end > size:
        raise ModelFileError(f"The model's file {path} is cut off: it has {size} bytes and should have {end}.")


def _end_of_data(reader: _Reader, path: Path) -> int:
    """The least size in bytes the file must have, from its header."""
    version = reader.scalar("I")
    if version not in (2, 3):
        raise ModelFileError(f"The file {path} has GGUF version {version}; versions 2 and 3 can be read.")
    n_tensors, n_pairs = reader.count(), reader.count()
    alignment = 32
    for _ in range(n_pairs):
        key, kind = reader.string(), reader.count("I")
        if key == b"general.alignment" and kind == _UINT32:
            alignment = max(1, int(reader.scalar("I")))
        else:
            reader.skip_value(kind)
    furthest = 0
    for _ in range(n_tensors):
        name = reader.string().decode("utf-8", "replace")
        shape = [reader.count() for _ in range(reader.count("I"))]
        kind, offset = reader.count("I"), reader.count()
        if kind not in _READABLE:
            raise ModelFileError(
                f"The file {path} stores {name} as {_OTHER_TYPES.get(kind, f'type {kind}')}, which can't be converted; "
                f"use a file with {', '.join(label for label, _, _ in _READABLE.values())} weights."
            )
        _, values, n_bytes = _READABLE[kind]
        furthest = max(furthest, offset + math.ceil(math.prod(shape) / values) * n_bytes)
    return math.ceil(reader.file.tell() / alignment) * alignment + furthest
