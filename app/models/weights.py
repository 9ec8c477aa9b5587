"""What a folder's weights will take in memory, from the headers of its files alone; and what memory there is."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

MAX_HEADER = 100_000_000  # bytes; the format's own limit
_PACKED = ("U32", "I32")  # what several quantized weights are packed into


def installed_memory() -> int | None:
    """Bytes of memory of this computer, or None where the system doesn't tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def weights_bytes(folder: Path, config: dict[str, Any], *, dequantized: bool) -> int:
    """Bytes that the weights take: as they are in the files, or all of them as float32 (`dequantized`).

    Raises:
        ValueError: A file is no safetensors file, or ends too early; the message names it.
        OSError: A file can't be read.
    """
    tensors: dict[str, tuple[str, int, int]] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors |= _tensors(path)
    if not dequantized:
        return sum(n_bytes for _, _, n_bytes in tensors.values())
    total = 0
    for name, (dtype, n_numbers, _) in tensors.items():
        layer, _, part = name.rpartition(".")
        if part in ("scales", "biases") and tensors.get(f"{layer}.weight", ("",))[0] in _PACKED:
            continue  # they go into the weights
        total += 4 * (n_numbers * 32 // _bits(config, layer) if dtype in _PACKED else n_numbers)
    return total


def _tensors(path: Path) -> dict[str, tuple[str, int, int]]:
    """The type, how many numbers, and the bytes of every tensor in a file."""
    with path.open("rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        n_data = path.stat().st_size - 8 - n_header
        if n_header > MAX_HEADER or n_data < 0:
            raise ValueError(f"{path.name} is no safetensors file, or only a part of one")
        try:
            header = json.loads(file.read(n_header))
            header.pop("__metadata__", None)
            found = {}
            for name, tensor in header.items():
                begin, end = tensor["data_offsets"]
                n_numbers = math.prod(map(_size, tensor["shape"]))
                if not 0 <= begin <= end or n_numbers > 2 * (end - begin):  # the smallest types have four bits
                    raise ValueError(name)
                if end > n_data:
                    raise EOFError
                found[name] = (str(tensor["dtype"]), n_numbers, end - begin)
        except EOFError:
            raise ValueError(f"{path.name} is only a part of the file") from None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{path.name} does not say what is in it") from None
    return found


def _size(size: Any) -> int:
    if not isinstance(size, int) or size < 0:
        raise ValueError(size)
    return size


def _bits(config: dict[str, Any], layer: str) -> int:
    """Of each weight of a packed layer."""
    quantization = config.get("quantization") or config.get("quantization_config")
    if not isinstance(quantization, dict):
        return 32
    its_own = quantization.get(layer)
    bits = its_own.get("bits") if isinstance(its_own, dict) else quantization.get("bits", 4)
    return bits if isinstance(bits, int) and 0 < bits <= 32 else 32
