"""Writes a GGUF file's tensors as the safetensors files of an mlx-lm model, in pieces, so that memory stays bounded."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from app.models.errors import Cancelled
from app.models.gguf_architectures import Plan, Weight
from app.models.gguf_blocks import GROUP, RECIPES, to_groups
from app.models.gguf_blocks import pack as pack_codes
from app.models.gguf_file import GgufFile, GgufTensor
from app.models.progress import IsCancelled, Progress

# A file is held in memory until it is written, in one go. A larger tensor has a file of its own.
MAX_SHARD = 256_000_000  # bytes
_CHUNK = 1 << 21  # values decoded at a time: some 30 MB with what decoding needs, and 50 ms for the slowest types
_FLOAT16_MAX = 65504.0

Arrays = dict[str, npt.NDArray[Any]]


def quantization(gguf: GgufFile, plan: Plan) -> dict[str, Any] | None:
    """mlx-lm's `quantization`: a default, and by layer what differs from it (False: not quantized)."""
    bits = {
        weight.name.removesuffix(".weight"): RECIPES[gguf.tensors[weight.source].type.name].bits
        for weight in plan.weights
        if _is_quantized(gguf, weight)
    }
    if not bits:
        return None
    counts = list(bits.values())
    commonest = max(sorted(set(counts)), key=counts.count)
    settings: dict[str, Any] = {"group_size": GROUP, "bits": commonest}
    for weight in plan.weights:
        layer = weight.name.removesuffix(".weight")
        if len(weight.shape) == 2 and bits.get(layer) != commonest:
            settings[layer] = {"group_size": GROUP, "bits": bits[layer]} if layer in bits else False
    return settings


def weights_size(gguf: GgufFile, plan: Plan) -> int:
    """Bytes that `write_weights` will write, and a little more."""
    return sum(_size(gguf, weight) + 1000 for weight in plan.weights)


def write_weights(gguf: GgufFile, plan: Plan, folder: Path, progress: Progress, cancelled: IsCancelled) -> None:
    """Write model.safetensors, or its parts and their index; progress goes from 0 to 1.

    Raises:
        ModelFileError: a weight is no finite number, or too large for a scale in float16; or the file can't be read.
        Cancelled: `cancelled()` became true.
        OSError: the files can't be written.
    """
    shards = _shards(gguf, plan)
    work = _Work(gguf, progress, cancelled)
    index: dict[str, str] = {}
    total = 0
    for number, weights in enumerate(shards, 1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        arrays: Arrays = {}
        for weight in weights:
            arrays |= work.convert(weight)
        work.wait_for(partial(_save, arrays, folder / name))
        index |= dict.fromkeys(arrays, name)
        total += sum(array.nbytes for array in arrays.values())
    if len(shards) > 1:
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}, indent=1)
        (folder / "model.safetensors.index.json").write_text(text + "\n", encoding="utf-8")


def _save(arrays: Arrays, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(arrays, path, metadata={"format": "mlx"})
        path.chmod(mode)  # the library puts a file in place that nobody else may read
    except SafetensorError as error:
        # What the system said is only in the words: "... No space left on device (os error 28)".
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise OSError(str(error)) from error
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def _is_quantized(gguf: GgufFile, weight: Weight) -> bool:
    tensor = gguf.tensors.get(weight.source)
    return tensor is not None and len(weight.shape) == 2 and tensor.type.name in RECIPES


def _size(gguf: GgufFile, weight: Weight) -> int:
    """Bytes of a converted tensor, at most (but for matrices whose values don't fit in float16)."""
    n_values = math.prod(weight.shape)
    if _is_quantized(gguf, weight):
        return n_values * RECIPES[gguf.tensors[weight.source].type.name].bits // 8 + n_values // GROUP * 4
    return n_values * (2 if len(weight.shape) == 2 else 4)


def _shards(gguf: GgufFile, plan: Plan) -> list[list[Weight]]:
    shards: list[list[Weight]] = [[]]
    filled = 0
    for weight in plan.weights:
        size = _size(gguf, weight)
        if shards[-1] and filled + size > MAX_SHARD:
            shards.append([])
            filled = 0
        shards[-1].append(weight)
        filled += size
    return shards


class _Work:
    """Converts one tensor after the other, and counts the bytes of the file that are done."""

    def __init__(self, gguf: GgufFile, progress: Progress, cancelled: IsCancelled) -> None:
        self._gguf = gguf
        self._progress = progress
        self._cancelled = cancelled
        self._done = 0
        self._total = sum(tensor.n_bytes for tensor in gguf.tensors.values())

    def wait_for(self, task: Callable[[], None]) -> None:
        """Do what can't be stopped in a thread of its own; `cancelled` goes on being polled, and ends what follows."""
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(task)
            while True:
                try:
                    return done.result(timeout=0.05)
                except TimeoutError:
                    if done.done():  # in this moment; or it is an error of the task's own
                        return done.result()
                    self._poll()

    def _poll(self) -> None:
        if self._cancelled():
            raise Cancelled
        self._progress("Converting the model", self._done / self._total)

    def convert(self, weight: Weight) -> Arrays:
        tensor = self._gguf.tensors.get(weight.source)
        if tensor is None:
            return {weight.name: np.zeros(weight.shape, np.float16)}
        done = self._done
        if _is_quantized(self._gguf, weight):
            arrays = self._quantized(weight, tensor)
        elif len(weight.shape) == 2:
            arrays = {weight.name: self._matrix(tensor)}
        else:
            arrays = {weight.name: self._vector(weight, tensor)}
        self._done = done + tensor.n_bytes
        return arrays

    def _quantized(self, weight: Weight, tensor: GgufTensor) -> Arrays:
        rows, columns = tensor.shape
        bits = RECIPES[tensor.type.name].bits
        packed = np.empty((rows, columns * bits // 32), np.uint32)
        scales, biases = (np.empty((rows, columns // GROUP), np.float16) for _ in range(2))
        for start, stop, data in self._chunks(tensor):
            groups = to_groups(data, tensor.type.name)
            packed[start:stop] = pack_codes(groups.codes.reshape(stop - start, columns), bits)
            for whole, part in ((scales, groups.scales), (biases, groups.biases)):
                with np.errstate(over="ignore", invalid="ignore"):
                    whole[start:stop] = part.reshape(stop - start, -1)
                if not np.isfinite(whole[start:stop]).all():
                    raise self._gguf.refused(f"weights in its tensor {tensor.name} are too large, or no numbers at all")
        name = weight.name.removesuffix(".weight")
        return {weight.name: packed, f"{name}.scales": scales, f"{name}.biases": biases}

    def _matrix(self, tensor: GgufTensor) -> npt.NDArray[Any]:
        """In float16, or in float32 where that can't hold a value."""
        done = self._done
        for dtype, largest in ((np.float16, _FLOAT16_MAX), (np.float32, math.inf)):
            self._done = done
            matrix = np.empty(tensor.shape, dtype)
            for start, stop, data in self._chunks(tensor):
                values = self._floats(tensor, data)
                if max(values.max(), -values.min()) > largest:
                    break
                matrix[start:stop] = values
            else:
                return matrix
        raise AssertionError  # float32 holds every value

    def _vector(self, weight: Weight, tensor: GgufTensor) -> npt.NDArray[Any]:
        """In float16 where that changes nothing, else in float32."""
        ((_, _, data),) = self._chunks(tensor)
        values: npt.NDArray[np.float32] = self._floats(tensor, data)[0] + np.float32(weight.offset)
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        return half if np.array_equal(half.astype(np.float32), values) else values

    def _floats(self, tensor: GgufTensor, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        from gguf import dequantize

        values: npt.NDArray[np.float32] = dequantize(data, tensor.type)
        if not np.isfinite(values).all():
            raise self._gguf.refused(f"its tensor {tensor.name} holds values that are no finite numbers")
        return values

    def _chunks(self, tensor: GgufTensor) -> Iterator[tuple[int, int, npt.NDArray[np.uint8]]]:
        """(first row, row after the last, bytes) of the pieces of a tensor."""
        rows = math.prod(tensor.shape[:-1])
        step = max(1, _CHUNK // tensor.shape[-1])
        begin = self._done
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            self._poll()
            yield start, stop, self._gguf.read_rows(tensor, start, stop)
            self._done = begin + tensor.n_bytes * stop // rows
