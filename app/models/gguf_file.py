"""Reads GGUF files: the header in full and checked, the tensors' bytes by rows when they are asked for.

The layout is ggml's GGUF specification (docs/gguf.md in ggml's repository), versions 2 and 3, little-endian: magic,
version, counts, key-value pairs, one description per tensor, padding to the alignment, then the tensors' data. Nothing
in the header is trusted: a count or length that the file's bytes don't justify is refused before it costs anything.
(`gguf.GGUFReader` needs ten seconds for a vocabulary of 262,144 tokens, and believes every length.)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from app.models.errors import ModelFileError

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

MAGIC = b"GGUF"
# What `gguf.dequantize` can decode (0.19). The other types are either of integers or never stored in files.
# fmt: off
READABLE_TYPES = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
)
# fmt: on
# The largest vocabularies have 262,144 tokens and take some 20 MB; these bounds leave room for a few times that.
_MAX_HEADER = 256_000_000  # bytes
_MAX_TEXTS = 4_000_000  # in all lists together
_MAX_ENTRIES = 65_536  # key-value pairs, and tensors
_MAX_NAME = 256  # bytes of a key or of a tensor's name
# Value types of the key-value pairs: their name and how NumPy reads one.
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
_FLAG, _TEXT, _LIST = 7, 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor's data lie.

    Attributes:
        shape: As NumPy has it, rows before columns: GGUF's dimensions in reverse.
        offset: Of its first byte from the beginning of the file.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    n_bytes: int


class GgufFile:
    """A GGUF file's key-value pairs and tensors; made by `read_gguf`.

    What gives a value raises ModelFileError, naming the file and the key, where the value has another type, or where
    it is missing and `default` is None.
    """

    def __init__(self, path: Path, pairs: Mapping[str, Any], tensors: Mapping[str, GgufTensor], size: int) -> None:
        self.path = path
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(dict(tensors))
        self.size = size  # bytes of the whole file
        self._pairs = pairs

    def has(self, key: str) -> bool:
        return key in self._pairs

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._scalar(key, default, str, "a text"))

    def words(self, key: str) -> str:
        """A text that only people read, on one line; empty where there is none or it is no text."""
        value = self._pairs.get(key)
        return " ".join(value.split()) if isinstance(value, str) else ""

    def integer(self, key: str, default: int | None = None) -> int:
        return int(self._scalar(key, default, int, "a whole number"))

    def number(self, key: str, default: float | None = None) -> float:
        value = float(self._scalar(key, default, (int, float), "a number"))
        if not math.isfinite(value):
            raise self.refused(f"its value for {key} is {value}")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        return bool(self._scalar(key, default, bool, "true or false"))

    def texts(self, key: str) -> list[str]:
        value = self._value(key)
        if not isinstance(value, list):
            raise self.refused(f"its value for {key} is not a list of texts")
        return list(value)

    def integers(self, key: str) -> list[int]:
        return [int(number) for number in self._array(key, "iu", "whole numbers")]

    def numbers(self, key: str) -> list[float]:
        """May hold NaN and infinities."""
        return [float(number) for number in self._array(key, "iuf", "numbers")]

    def read_rows(self, tensor: GgufTensor, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """The bytes of rows `start` to `stop`, (rows, bytes of a row); all dimensions but the last count as rows.

        Read from the file, not mapped: a disk that is pulled out then is an error instead of the process's end.

        Raises:
            ModelFileError: the file can't be read any more, or has become shorter.
        """
        row_bytes = tensor.n_bytes // math.prod(tensor.shape[:-1])
        n_bytes = (stop - start) * row_bytes
        data = np.empty(n_bytes, np.uint8)
        try:
            with self.path.open("rb") as file:
                file.seek(tensor.offset + start * row_bytes)
                n_read = file.readinto(data.data)
        except OSError as error:
            raise ModelFileError(f"The model's file {self.path} can't be read: {error.strerror}.") from error
        if n_read != n_bytes:
            raise ModelFileError(f"The model's file {self.path} is cut off: it has become shorter while it was read.")
        return data.reshape(stop - start, row_bytes)

    def refused(self, why: str) -> ModelFileError:
        """The error to raise for a file that can't be converted; `why` goes into the middle of a sentence."""
        return ModelFileError(f"The file {self.path} can't be converted: {' '.join(why.split())}.")

    def _value(self, key: str) -> Any:
        try:
            value = self._pairs[key]
        except KeyError:
            raise self.refused(f"it has no value for {key}") from None
        if isinstance(value, bytes):  # what is no text, kept as it was
            raise self.refused(f"its value for {key} is not written in UTF-8")
        return value

    def _scalar(self, key: str, default: Any, kinds: type | tuple[type, ...], name: str) -> Any:
        if default is not None and key not in self._pairs:
            return default
        value = self._value(key)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise self.refused(f"its value for {key} is not {name}")
        return value

    def _array(self, key: str, kinds: str, name: str) -> list[Any]:
        value = self._value(key)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            raise self.refused(f"its value for {key} is not a list of {name}")
        items: list[Any] = value.tolist()
        return items


def read_gguf(path: Path) -> GgufFile:
    """Read and check the header of the GGUF file `path`, and that its tensors lie inside the file.

    Raises:
        ModelFileError: the file can't be read, is damaged, or has a version, byte order or type of tensor that can't
            be converted; the message says which.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _read(_Reader(file, size), path)
    except _DamagedError as error:
        what = f": {error}" if str(error) else ": its header doesn't end properly"
        raise ModelFileError(
            f"The model's file {path} is damaged or cut off{what}. Download or copy the file again."
        ) from None
    except OSError as error:
        raise ModelFileError(f"The model's file {path} can't be read: {error.strerror}.") from error


class _DamagedError(Exception):
    """The header says what can't be; the message, where there is one, says what."""


class _Reader:
    """The beginning of a file, read as far as it is asked for."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.size = size
        self.at = 0
        self.buffer = bytearray()
        self._file = file
        self._n_texts = 0

    def need(self, n_bytes: int) -> int:
        """Make sure that the next bytes are in the buffer, and go past them; where they begin."""
        start, self.at = self.at, self.at + n_bytes
        if self.at > self.size or self.at > _MAX_HEADER:
            raise _DamagedError
        if self.at > len(self.buffer):
            self.buffer += self._file.read(max(1 << 20, self.at - len(self.buffer)))
            if self.at > len(self.buffer):
                raise _DamagedError
        return start

    def u32(self) -> int:
        return int(_U32.unpack_from(self.buffer, self.need(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self.buffer, self.need(8))[0])

    def run(self) -> bytes:
        """Bytes with their number before them."""
        start = self.need(self.u64())
        return bytes(self.buffer[start : self.at])

    def name(self) -> str:
        start = self.need(8)
        (length,) = _U64.unpack_from(self.buffer, start)
        if not 0 < length <= _MAX_NAME:
            raise _DamagedError
        start = self.need(length)
        try:
            return self.buffer[start : self.at].decode()
        except UnicodeDecodeError:
            raise _DamagedError from None

    def value(self, kind: int) -> Any:
        """A str (or bytes, where it is not UTF-8), bool, int or float; a list of str; or an array of numbers."""
        if kind in _NUMBERS:
            return self._numbers(kind, 1)[0].item()
        if kind == _FLAG:
            return self._flags(1)[0].item()
        if kind == _TEXT:
            data = self.run()
            try:
                return data.decode()
            except UnicodeDecodeError:
                return data
        if kind != _LIST:
            raise _DamagedError(f"a value in it is of the unknown type {kind}")
        item, count = self.u32(), self.u64()
        if item in _NUMBERS:
            return self._numbers(item, count)
        if item == _FLAG:
            return self._flags(count)
        if item == _TEXT:
            return self._texts(count)
        # The format allows lists of lists; nothing writes them.
        raise _DamagedError(f"a list in it has items of the unknown type {item}")

    def _numbers(self, kind: int, count: int) -> npt.NDArray[Any]:
        dtype = np.dtype(_NUMBERS[kind])
        start = self.need(count * dtype.itemsize)
        # A copy, since a bytearray that an array looks into can't grow.
        return np.frombuffer(bytes(memoryview(self.buffer)[start : self.at]), dtype)

    def _flags(self, count: int) -> npt.NDArray[np.bool_]:
        values = self._numbers(0, count)
        if values.size and values.max() > 1:
            raise _DamagedError
        return values.astype(np.bool_)

    def _texts(self, count: int) -> list[str] | bytes:
        """The texts of a list, or some bytes where one of them is not UTF-8."""
        self._n_texts += count
        if 8 * count > self.size - self.at or self._n_texts > _MAX_TEXTS:
            raise _DamagedError
        found: list[str] = []
        spoiled = None
        for _ in range(count):
            data = self.run()
            try:
                found.append(data.decode())
            except UnicodeDecodeError:
                spoiled = data
        return found if spoiled is None else spoiled


def _read(reader: _Reader, path: Path) -> GgufFile:
    if reader.size < 4 or reader.buffer[reader.need(4) : 4] != MAGIC:
        raise ModelFileError(f"The file {path} is not a GGUF model: it doesn't begin with the letters GGUF.")
    version = reader.u32()
    if version in (2 << 24, 3 << 24):
        raise ModelFileError(
            f"The file {path} is a big-endian GGUF file, which this app can't read. Use the little-endian one."
        )
    if version not in (2, 3):
        raise ModelFileError(f"The file {path} has GGUF version {version}; versions 2 and 3 can be read.")
    n_tensors, n_pairs = reader.u64(), reader.u64()
    if max(n_tensors, n_pairs) > _MAX_ENTRIES:
        raise _DamagedError
    pairs: dict[str, Any] = {}
    for _ in range(n_pairs):
        key = reader.name()
        if key in pairs:
            raise _DamagedError(f"it has two values for {key}")
        pairs[key] = reader.value(reader.u32())
    alignment = pairs.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment not in [1 << i for i in range(3, 24)]:
        raise _DamagedError("its alignment is not a power of two")
    split = pairs.get("split.count", 1)
    if isinstance(split, int) and split > 1:
        raise ModelFileError(
            f"The file {path} is only one of the {split} parts of a model. Join them first, with llama.cpp's "
            f"llama-gguf-split --merge, and choose the file it writes."
        )
    relative = {}
    for _ in range(n_tensors):
        tensor = _tensor(reader, path)
        if tensor.name in relative:
            raise _DamagedError(f"it has two tensors {tensor.name}")
        if tensor.offset % alignment:
            raise _DamagedError(f"its tensor {tensor.name} begins where it can't")
        relative[tensor.name] = tensor
    begin = -(-reader.at // alignment) * alignment
    tensors = {
        name: GgufTensor(name, tensor.shape, tensor.type, begin + tensor.offset, tensor.n_bytes)
        for name, tensor in relative.items()
    }
    end = begin
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            raise _DamagedError(f"its tensor {tensor.name} lies inside another")
        end = tensor.offset + tensor.n_bytes
    if end > reader.size:
        raise ModelFileError(
            f"The model's file {path} is cut off: it has {reader.size:,} bytes and should have {end:,}. "
            f"Download or copy the file again."
        )
    return GgufFile(path, pairs, tensors, reader.size)


def _tensor(reader: _Reader, path: Path) -> GgufTensor:
    """One description; its offset is still counted from the beginning of the data."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    name = reader.name()
    n_dims = reader.u32()
    if not 1 <= n_dims <= 4:
        raise _DamagedError(f"its tensor {name} has {n_dims} dimensions")
    shape = tuple([reader.u64() for _ in range(n_dims)][::-1])
    kind, offset = reader.u32(), reader.u64()
    try:
        known = GGMLQuantizationType(kind)
    except ValueError:
        known = None
    if known is None or known.name not in READABLE_TYPES:
        label = f"type {kind}" if known is None else known.name
        raise ModelFileError(
            f"The file {path} stores {name} as {label}, which can't be converted; use a file with weights in one of "
            f"{', '.join(READABLE_TYPES)}."
        )
    values, block_bytes = GGML_QUANT_SIZES[known]
    if 0 in shape or shape[-1] % values:
        raise _DamagedError(f"its tensor {name} can't have {' x '.join(map(str, shape))} values of {known.name}")
    n_bytes = math.prod(shape) // values * block_bytes
    return GgufTensor(name, shape, known, offset, n_bytes)
