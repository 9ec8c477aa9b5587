"""Reading a GGUF file's header: what a sound one says, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from app.models import ModelFileError
from app.models.gguf_file import GgufFile, read_gguf


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def pair(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def tensor(name: str = "w", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def write(path: Path, pairs: list[bytes], tensors: list[bytes], data: int = 64, version: int = 3) -> Path:
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs + tensors)
    path.write_bytes(header + bytes(-len(header) % 32 + data))
    return path


@pytest.fixture
def sound(tmp_path: Path) -> GgufFile:
    """Written by llama.cpp's own package."""
    path = tmp_path / "sound.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("small", 200)
    writer.add_int64("negative", -5)
    writer.add_float32("half", 0.5)
    writer.add_float64("third", 1 / 3)
    writer.add_bool("yes", True)
    writer.add_string("greeting", "Grüße")
    writer.add_array("names", ["a", "", "世界"])
    writer.add_array("counts", [1, 2, -3])
    writer.add_array("scores", [0.5, float("nan")])
    writer.add_array("flags", [True, False])
    writer.add_float32("nan", float("nan"))
    writer.add_tensor("first", np.arange(96, dtype=np.float32).reshape(3, 32))
    writer.add_tensor("second", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(path)


def test_values_come_as_they_were_written(sound: GgufFile) -> None:
    assert sound.text("general.architecture") == "llama"
    assert (sound.integer("small"), sound.integer("negative"), sound.number("small")) == (200, -5, 200.0)
    assert (sound.number("half"), sound.number("third")) == (0.5, 1 / 3)
    assert sound.flag("yes") is True
    assert sound.text("greeting") == "Grüße"
    assert sound.texts("names") == ["a", "", "世界"]
    assert sound.integers("counts") == [1, 2, -3]
    np.testing.assert_array_equal(sound.numbers("scores"), [0.5, np.nan])
    assert sound.has("yes")
    assert not sound.has("no")
    assert (sound.integer("no", 7), sound.text("no", "x"), sound.flag("no", False)) == (7, "x", False)


@pytest.mark.parametrize(
    ("method", "key"),
    [
        *(("integer", key) for key in ("half", "yes", "greeting", "counts")),
        *(("number", key) for key in ("yes", "greeting", "nan")),
        *(("text", key) for key in ("half", "names")),
        *(("flag", key) for key in ("small", "flags")),
        *(("texts", key) for key in ("greeting", "counts")),
        *(("integers", key) for key in ("scores", "flags", "names", "small")),
        *(("numbers", key) for key in ("names", "half")),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(sound: GgufFile, method: str, key: str) -> None:
    with pytest.raises(ModelFileError, match=rf"sound\.gguf can't be converted: its value for {key} is"):
        getattr(sound, method)(key)


@pytest.mark.parametrize("method", ["integer", "number", "text", "flag", "texts", "integers", "numbers"])
def test_a_missing_value_is_named(sound: GgufFile, method: str) -> None:
    with pytest.raises(ModelFileError, match=r"sound\.gguf can't be converted: it has no value for nothing\."):
        getattr(sound, method)("nothing")


def test_tensors_are_found_and_read_by_rows(sound: GgufFile) -> None:
    first, second = sound.tensors["first"], sound.tensors["second"]
    assert (first.shape, first.type, first.n_bytes) == ((3, 32), gguf.GGMLQuantizationType.F32, 384)
    np.testing.assert_array_equal(
        sound.read_rows(first, 1, 3).view("<f4"), np.arange(32, 96, dtype=np.float32).reshape(2, 32)
    )
    np.testing.assert_array_equal(sound.read_rows(second, 0, 1).view("<f4"), [[0, 1, 2, 3, 4]])


def test_a_file_that_shrinks_while_it_is_read_is_named(sound: GgufFile) -> None:
    sound.path.write_bytes(sound.path.read_bytes()[:-64])
    with pytest.raises(ModelFileError, match=r"sound\.gguf is cut off"):
        sound.read_rows(sound.tensors["second"], 0, 1)
    sound.path.unlink()
    with pytest.raises(ModelFileError, match=r"sound\.gguf can't be read"):
        sound.read_rows(sound.tensors["second"], 0, 1)


def test_version_2_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "two.gguf", [pair("x", 4, struct.pack("<I", 5))], [tensor()], version=2)
    assert read_gguf(path).integer("x") == 5


def test_texts_that_are_not_utf_8_are_refused_only_when_they_are_wanted(tmp_path: Path) -> None:
    texts = struct.pack("<IQ", 8, 2) + string("a") + string(b"\xff")
    file = read_gguf(write(tmp_path / "odd.gguf", [pair("one", 8, string(b"\xfe")), pair("more", 9, texts)], []))
    for method, key in (("text", "one"), ("texts", "more")):
        with pytest.raises(ModelFileError, match=f"its value for {key} is not written in UTF-8"):
            getattr(file, method)(key)


HUGE = 2**62
U32 = struct.pack("<I", 1)


@pytest.mark.parametrize(
    ("pairs", "tensors", "message"),
    [
        ([pair("x", 8, struct.pack("<Q", HUGE))], [], "its header doesn't end properly"),
        ([pair("x", 9, struct.pack("<IQ", 8, HUGE))], [], "its header doesn't end properly"),
        ([pair("x", 9, struct.pack("<IQ", 10, HUGE))], [], "its header doesn't end properly"),
        ([pair("x", 9, struct.pack("<IQ", 8, 2**64 - 1))], [], "its header doesn't end properly"),
        ([pair("x", 9, struct.pack("<IQ", 9, 1))], [], "a list in it has items of the unknown type 9"),
        ([pair("x", 13, b"")], [], "a value in it is of the unknown type 13"),
        ([pair("x", 7, b"\x02")], [], "its header doesn't end properly"),
        ([pair("x", 4, U32), pair("x", 4, U32)], [], "it has two values for x"),
        ([pair("", 4, U32)], [], "its header doesn't end properly"),
        ([pair("general.alignment", 4, struct.pack("<I", 24))], [], "its alignment is not a power of two"),
        ([pair("general.alignment", 4, struct.pack("<I", 0))], [], "its alignment is not a power of two"),
        ([pair("general.alignment", 8, string("32"))], [], "its alignment is not a power of two"),
        ([], [tensor(), tensor(offset=32)], "it has two tensors w"),
        ([], [tensor("a"), tensor("b")], "its tensor b lies inside another"),
        ([], [tensor(offset=4)], "its tensor w begins where it can't"),
        ([], [tensor(shape=())], "its tensor w has 0 dimensions"),
        ([], [tensor(shape=(1,) * 5)], "its tensor w has 5 dimensions"),
        ([], [tensor(shape=(0, 4))], "its tensor w can't have 4 x 0 values of F32"),
        ([], [tensor(shape=(48,), kind=2)], "its tensor w can't have 48 values of Q4_0"),
        ([], [tensor(shape=(HUGE, HUGE, HUGE))], "cut off: it has 128 bytes and should have"),
        ([], [tensor(offset=HUGE)], "cut off: it has 128 bytes and should have"),
        ([], [tensor(shape=(17,))], "cut off: it has 128 bytes and should have 132"),
        ([], [tensor(kind=36)], "stores w as type 36, which can't be converted; use a file with weights in one of F32"),
        ([], [tensor(kind=9)], "stores w as Q8_1, which can't be converted"),
        ([pair("split.count", 2, struct.pack("<H", 3))], [], "is only one of the 3 parts of a model. Join them"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, pairs: list[bytes], tensors: list[bytes], message: str) -> None:
    path = write(tmp_path / "evil.gguf", pairs, tensors)
    if message.startswith("cut off"):  # the header's own length differs from case to case
        message = message.replace("128", r"\d+").replace("132", r"\d+")
    with pytest.raises(ModelFileError, match=message) as caught:
        read_gguf(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("counts", [(HUGE, 0), (0, HUGE), (2**64 - 1, 2**64 - 1), (60_000, 60_000)])
def test_absurd_counts_end_at_once(tmp_path: Path, counts: tuple[int, int]) -> None:
    path = tmp_path / "evil.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *counts))
    with pytest.raises(ModelFileError, match="damaged or cut off"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a GGUF model"),
        (b"GGU", "is not a GGUF model"),
        (b"\x89PNG\r\n" + bytes(100), "is not a GGUF model: it doesn't begin with the letters GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "has GGUF version 1; versions 2 and 3 can be read"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is a big-endian GGUF file"),
        (b"GGUF\x03", "is damaged or cut off"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=message):
        read_gguf(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"nowhere\.gguf can't be read"):
        read_gguf(tmp_path / "nowhere.gguf")
    with pytest.raises(ModelFileError, match="can't be read"):
        read_gguf(tmp_path)


def test_a_large_vocabulary_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    tokens = [f"token {i} 世界" for i in range(262_144)]
    scores: list[Any] = [float(i) for i in range(262_144)]
    values = struct.pack("<IQ", 8, len(tokens)) + b"".join(map(string, tokens))
    numbers = struct.pack("<IQ", 6, len(scores)) + np.array(scores, "<f4").tobytes()
    write(path, [pair("tokens", 9, values), pair("scores", 9, numbers)], [tensor()])
    file = read_gguf(path)
    assert file.texts("tokens") == tokens
    assert file.numbers("scores") == scores
