"""Tokenizers from GGUF files: against SentencePiece, and against expressions that others published."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from app.models.errors import ModelFileError
from app.models.gguf_bpe import PRE_TOKENIZERS
from app.models.gguf_file import GgufFile, read_gguf
from app.models.gguf_tokenizer import check_tokenizer, end_tokens, write_tokenizer
from tests.app.models import forgery

_TEXTS = [
    "",
    "a",
    " ",
    "The quick brown fox doesn't jump; it's 12345 times LAZY, isn't IT?",
    "Grüße aus Köln, Straße 7! ÀÉÎ àéî",
    "中文测试,日本語のテキスト、漢字カナ。한국어 문장입니다",
    "🙂👩‍👩‍👧 🇩🇪 ﬁ ½ Ⅻ ٣٤٥ عربي ไทย हिन्दी",
    "def f(x):\n\tif x <= 3:\n\t\treturn {'a': [1, 2]}  # why?\r\n\r\n",
    "      many   spaces  \n\n\n and\t\ttabs \n  \n",
    "<s>[INST] <|im_end|> <0x41> </s><b>x</b>",
    "x" * 70 + " " * 70 + "\n" * 40,
    "3.14159 1,000,000 1e-5 0x1F fooBarBAZ HTTPServer I'LL we've",
]
_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{{ m['content'] }}<end_of_turn>{% endfor %}"
)
_CHARACTERS = "abcdefgh  \n\tABC019.,'!<>/äöüß日本語中文🙂éñ"


def _random_texts(n: int) -> Iterator[str]:
    rng = random.Random(3)
    for _ in range(n):
        yield "".join(rng.choice(_CHARACTERS) for _ in range(rng.randint(1, 80)))
        yield "".join(rng.choice("ab ") for _ in range(rng.randint(1, 40)))


def _gguf(pairs: dict[str, Any]) -> GgufFile:
    arrays = {"tokenizer.ggml.scores": np.float32, "tokenizer.ggml.token_type": np.int32}
    return GgufFile(
        Path("some.gguf"),
        {key: np.array(value, arrays[key]) if key in arrays else value for key, value in pairs.items()},
        {},
        0,
    )


def _written(pairs: dict[str, Any], folder: Path, *, chat: bool = True) -> tuple[Tokenizer, dict[str, Any]]:
    gguf = _gguf(pairs)
    check_tokenizer(gguf, chat=chat)
    write_tokenizer(gguf, folder, context_length=512, chat=chat)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    return Tokenizer.from_file(str(folder / "tokenizer.json")), config


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Without BOS, and with control tokens' names as mere text."""
    tokenizer.encode_special_tokens = True
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _model_proto() -> Any:
    return import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()


def _sentencepiece(tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int], *, prefix: bool) -> Any:
    """SentencePiece itself with the pieces of a file; unk, BOS and EOS are found by name."""
    from sentencepiece import SentencePieceProcessor

    model = _model_proto()
    for token, score, kind in zip(tokens, scores, kinds, strict=True):
        # Files keep user-defined pieces with spaces as text has them.
        text = token.replace(" ", "▁") if kind == 4 else token
        model.pieces.add(piece=text, score=score, type=2 if token == "<unk>" else kind)
    model.trainer_spec.model_type = 2
    model.trainer_spec.byte_fallback = True
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = prefix
    model.normalizer_spec.remove_extra_whitespaces = False
    return SentencePieceProcessor(model_proto=model.SerializeToString())


@pytest.fixture(scope="module")
def spm_pairs() -> dict[str, Any]:
    """A vocabulary that SentencePiece trained, as a GGUF file keeps it."""
    import io

    import sentencepiece

    trained = io.BytesIO()
    words = [
        " ".join(_TEXTS),
        *_TEXTS[3:],
        *_random_texts(150),
        *(path.read_text() for path in Path(__file__).parent.glob("*.py")),
    ]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for word in words for line in word.splitlines() if line]),
        model_writer=trained,
        vocab_size=1200,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.99,
        user_defined_symbols=["<start_of_turn>", "<end_of_turn>", "\n", "\n\n", "▁▁", "▁▁▁▁"],
        minloglevel=2,
    )
    model = _model_proto()
    model.ParseFromString(trained.getvalue())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [p.piece.replace("▁", " ") if p.type == 4 else p.piece for p in model.pieces],
        "tokenizer.ggml.scores": [p.score for p in model.pieces],
        "tokenizer.ggml.token_type": [p.type for p in model.pieces],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": _TEMPLATE,
    }


@pytest.fixture(scope="module")
def bpe_pairs() -> dict[str, Any]:
    """A trained byte-level vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*_TEXTS, *_random_texts(300), Path(__file__).read_text()], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    special = ["<|endoftext|>", "<start_of_turn>", "<end_of_turn>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*tokens, *special],
        "tokenizer.ggml.token_type": [*(1 for _ in tokens), 3, 3, 3],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 2,
        "tokenizer.chat_template": _TEMPLATE,
    }


@pytest.mark.parametrize("prefix", [False, True])
def test_gives_what_sentencepiece_gives(spm_pairs: dict[str, Any], tmp_path: Path, prefix: bool) -> None:
    pairs = spm_pairs | {"tokenizer.ggml.add_space_prefix": prefix}
    tokens, kinds = pairs["tokenizer.ggml.tokens"], list(pairs["tokenizer.ggml.token_type"])
    if prefix:  # then the space goes before the text behind an added token, too, which SentencePiece doesn't do
        kinds = [1 if kind == 4 else kind for kind in kinds]
        pairs["tokenizer.ggml.token_type"] = kinds
    theirs = _sentencepiece(tokens, pairs["tokenizer.ggml.scores"], kinds, prefix=prefix)
    tokenizer, _ = _written(pairs, tmp_path)
    special = {2, *(i for i, token in enumerate(tokens) if token == "<end_of_turn>")}
    for text in [*_TEXTS, *_random_texts(300)]:
        expected = theirs.encode(text)
        if not special & set(expected):
            assert _ids(tokenizer, text) == expected, text
            assert tokenizer.decode(expected) == text


@pytest.mark.large
def test_gives_what_sentencepiece_gives_for_gemma(gemma_gguf: Path, tmp_path: Path) -> None:
    gguf = read_gguf(gemma_gguf)
    write_tokenizer(gguf, tmp_path, context_length=512, chat=False)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    theirs = _sentencepiece(
        gguf.texts("tokenizer.ggml.tokens"),
        gguf.numbers("tokenizer.ggml.scores"),
        gguf.integers("tokenizer.ggml.token_type"),
        prefix=False,
    )
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parents[3].glob("app/*/*.py")]
    for text in [*_TEXTS, *_random_texts(2000), *sources]:
        assert _ids(tokenizer, text) == theirs.encode(text), text
    assert end_tokens(gguf) == [1, 106]


# As their authors' tokenizer.json files have them.
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|"
    r"%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PUBLISHED = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": _CASED % ("", "", r"\p{N}"),
    "gpt-4o": _CASED % ("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}"),
}  # fmt: skip


def _cuts(pre: Any, text: str) -> list[tuple[int, int]]:
    return [span for _, span in pre.pre_tokenize_str(text)]


def _own(name: str) -> Any:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[name].patterns]
    )


@pytest.mark.parametrize("name", _PUBLISHED)
def test_cuts_text_as_published(name: str) -> None:
    regex = import_module("regex")  # another engine than that of the tokenizers package

    pattern = regex.compile(_PUBLISHED[name])
    for text in [*_TEXTS, *_random_texts(100)]:
        assert _cuts(_own(name), text) == [match.span() for match in pattern.finditer(text)], text


def test_cuts_text_as_hugging_faces_own_parts_do() -> None:
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    parts = {
        "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "smollm": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
        "qwen2": pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"),
    }
    for name, part in parts.items():
        for text in [*_TEXTS, *_random_texts(100)]:
            assert _cuts(_own(name), text) == _cuts(part, text), (name, text)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("default", "a1234 b!c", ["a", "123", "4", " b", "!", "c"]),
        ("falcon", "n=1234", ["n", "=", "123", "4"]),
        ("deepseek-llm", "Hi there,\n12", ["Hi", " there", ",", "\n", "12"]),
        ("deepseek-coder", "Hi x1 = 23", ["Hi", " x", "1", " = ", "2", "3"]),
        ("deepseek-v3", "Hi 12345中文!", ["Hi", " ", "123", "45", "中文", "!"]),
        ("minicpm5", "x12345", ["x", "123", "45"]),
        ("viking", "ab 12.", ["ab", " ", "1", "2", "."]),
    ],
)
def test_cuts_text_as_named(name: str, text: str, words: list[str]) -> None:
    assert [text[a:b] for a, b in _cuts(_own(name), text)] == words


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_byte_level_text_comes_back(bpe_pairs: dict[str, Any], tmp_path: Path, name: str) -> None:
    tokenizer, _ = _written(bpe_pairs | {"tokenizer.ggml.pre": name}, tmp_path)
    for text in _TEXTS:
        assert tokenizer.decode(_ids(tokenizer, text)) == text


def test_deepseeks_umlauts_are_no_broken_bytes(bpe_pairs: dict[str, Any], tmp_path: Path) -> None:
    """Its files name the letters of the 13 bytes that no text has as words of their own, "ü" among them."""
    from mlx_lm.utils import load_tokenizer

    tokens = bpe_pairs["tokenizer.ggml.tokens"]
    kinds = [4 if token in "ÀÁõö÷øùúûüýþÿ" else kind for token, kind in zip(tokens, _kinds(bpe_pairs), strict=True)]
    tokenizer, _ = _written(bpe_pairs | {"tokenizer.ggml.token_type": kinds}, tmp_path)
    ids = _ids(tokenizer, "Grüße, größer als 世界")
    assert ids.count(tokens.index("ü")) == ids.count(tokens.index("ö")) == 1
    assert tokenizer.decode(ids) == "Grüße, größer als 世界"
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    detokenizer = load_tokenizer(tmp_path, {"trust_remote_code": False}).detokenizer
    for token in ids:
        detokenizer.add_token(token)
    detokenizer.finalize()
    assert detokenizer.text == "Grüße, größer als 世界"


def _kinds(pairs: dict[str, Any]) -> list[int]:
    return list(pairs["tokenizer.ggml.token_type"])


def test_words_that_look_like_bytes_are_refused_where_they_are_many(bpe_pairs: dict[str, Any], tmp_path: Path) -> None:
    many = [f"{a}{b}" for a in "ÀÁõö÷øùúûüýþÿ" for b in "ÀÁõö÷øùúûüýþÿĀāĂăĄąĆ"]
    pairs = bpe_pairs | {
        "tokenizer.ggml.tokens": [*bpe_pairs["tokenizer.ggml.tokens"], *many],
        "tokenizer.ggml.token_type": [*_kinds(bpe_pairs), *(4 for _ in many)],
    }
    with pytest.raises(ModelFileError, match="260 of its tokenizer's tokens can't be told from bytes"):
        _written(pairs, tmp_path)
    assert not list(tmp_path.iterdir())


def test_merges_as_a_plain_implementation_does(bpe_pairs: dict[str, Any], tmp_path: Path) -> None:
    regex = import_module("regex")

    ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(bpe_pairs["tokenizer.ggml.merges"])}
    ids = {token: i for i, token in enumerate(bpe_pairs["tokenizer.ggml.tokens"])}
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in plain)}
    tokenizer, _ = _written(bpe_pairs, tmp_path)
    for text in [*_TEXTS, *_random_texts(60)]:
        expected: list[int] = []
        for word in regex.findall(_PUBLISHED["qwen2"], text):
            parts = [letters[byte] for byte in word.encode()]
            while True:
                at = min(range(len(parts) - 1), key=lambda i: ranks.get((parts[i], parts[i + 1]), 10**9), default=None)
                if at is None or (parts[at], parts[at + 1]) not in ranks:
                    break
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            expected += [ids[part] for part in parts]
        assert _ids(tokenizer, text) == expected, text


@pytest.mark.parametrize("kind", ["spm", "spm with a space", "bpe"])
def test_streams_what_it_decodes(
    kind: str, spm_pairs: dict[str, Any], bpe_pairs: dict[str, Any], tmp_path: Path
) -> None:
    from mlx_lm.utils import load_tokenizer

    pairs = bpe_pairs if kind == "bpe" else spm_pairs | {"tokenizer.ggml.add_space_prefix": kind != "spm"}
    _written(pairs, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    wrapped = load_tokenizer(tmp_path, {"trust_remote_code": False})
    assert type(wrapped.detokenizer).__name__.startswith("BPE" if kind == "bpe" else "SPM")
    for text in [text for text in _TEXTS if not text.startswith(" ")]:  # mlx-lm's takes a first space away
        ids = wrapped.encode(text, add_special_tokens=False)
        detokenizer = wrapped.detokenizer
        for token in ids:
            detokenizer.add_token(token)
        detokenizer.finalize()
        assert detokenizer.text == wrapped.decode(ids)
    asked = wrapped.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert asked.count(wrapped.bos_token_id) == 1
    assert wrapped.encode("Hi").count(wrapped.bos_token_id) == (kind != "bpe")  # as llama.cpp does unless told


@pytest.mark.parametrize("kind", ["spm", "spm with a space", "bpe"])
def test_no_message_makes_a_control_token(
    kind: str, spm_pairs: dict[str, Any], bpe_pairs: dict[str, Any], tmp_path: Path
) -> None:
    pairs = bpe_pairs if kind == "bpe" else spm_pairs | {"tokenizer.ggml.add_space_prefix": kind != "spm"}
    _written(pairs, tmp_path)
    tokenizer = forgery.load(tmp_path)
    for text in _TEXTS:
        for name in forgery.names(tokenizer):
            turns = [{"role": "user", "content": f"{text}{name}\n"}, {"role": "assistant", "content": name + text}]
            forgery.check(tokenizer, turns, exact=kind == "bpe")


def test_a_template_without_bos_gets_it_where_the_file_wants_it(spm_pairs: dict[str, Any], tmp_path: Path) -> None:
    silent = "  {% for m in messages %}\n{{ m['content'] }}{% endfor %}"
    from mlx_lm.utils import load_tokenizer

    for wanted in (True, False):
        folder = tmp_path / str(wanted)
        folder.mkdir()
        pairs = spm_pairs | {"tokenizer.chat_template": silent, "tokenizer.ggml.add_bos_token": wanted}
        _written(pairs, folder)
        (folder / "config.json").write_text('{"model_type": "llama"}')
        wrapped = load_tokenizer(folder, {"trust_remote_code": False})
        text = wrapped.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
        assert text == ("<s>Hi" if wanted else "Hi")


def test_all_tokens_that_end_an_answer_are_known(spm_pairs: dict[str, Any]) -> None:
    tokens = spm_pairs["tokenizer.ggml.tokens"]
    assert end_tokens(_gguf(spm_pairs)) == [2, tokens.index("<end_of_turn>")]
    assert 5 in end_tokens(_gguf(spm_pairs | {"tokenizer.ggml.eot_token_id": 5}))


def test_the_unnamed_template_comes_before_the_default_one(spm_pairs: dict[str, Any], tmp_path: Path) -> None:
    named = spm_pairs | {"tokenizer.chat_template.default": "{{ bos_token }}D{{ messages[-1].content }}"}
    assert _written(named, tmp_path)[1]["chat_template"] == _TEMPLATE
    del named["tokenizer.chat_template"]
    assert _written(named, tmp_path)[1]["chat_template"].startswith("{{ bos_token }}D")


def _without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda pairs: pairs.pop(f"tokenizer.{key}")


def _with(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda pairs: pairs.update({f"tokenizer.{key}": value})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_with("ggml.model", "t5"), "'t5'"),
        (_with("ggml.model", "bert"), "'bert'"),
        (_without("chat_template"), "instruct version"),
        (_with("chat_template", "{% for"), "doesn't work"),
        (_with("chat_template", "Hello!"), "leaves the message out"),
        (_with("ggml.eos_token_id", 10**6), "eos_token_id"),
        (_with("ggml.token_type", [1, 2]), "types of tokens"),
        (_with("ggml.scores", [1.0]), "scores"),
        (_with("ggml.scores", [float("nan")] * 1200), "not numbers"),
        (_without("ggml.scores"), "tokenizer.ggml.scores"),
        (_without("ggml.tokens"), "tokenizer.ggml.tokens"),
        (_with("ggml.tokens", []), "no tokens"),
        (lambda pairs: pairs.update({"tokenizer.ggml.tokens": ["a"] * 1200}), "twice"),
        (lambda pairs: pairs["tokenizer.ggml.tokens"].__setitem__(900, "<0xZZ>"), "should be a byte"),
        (lambda pairs: pairs["tokenizer.ggml.tokens"].__setitem__(900, "x" * 10**6), "too long"),
    ],
)
def test_sentencepiece_files_that_are_refused(
    spm_pairs: dict[str, Any], tmp_path: Path, damage: Callable[[dict[str, Any]], object], words: str
) -> None:
    pairs = {key: list(value) if isinstance(value, list) else value for key, value in spm_pairs.items()}
    damage(pairs)
    with pytest.raises(ModelFileError, match=words):
        _written(pairs, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_with("ggml.pre", "never-heard-of"), "'never-heard-of'"),
        (_with("ggml.merges", ["a b c d"]), "not two tokens"),
        (_with("ggml.merges", ["nospace"]), "not two tokens"),
        (_with("ggml.merges", [""]), "not two tokens"),
        (_without("ggml.merges"), "tokenizer.ggml.merges"),
        (_with("ggml.merges", b"\xff"), "UTF-8"),
    ],
)
def test_byte_level_files_that_are_refused(
    bpe_pairs: dict[str, Any], tmp_path: Path, damage: Callable[[dict[str, Any]], object], words: str
) -> None:
    pairs = dict(bpe_pairs)
    damage(pairs)
    with pytest.raises(ModelFileError, match=words):
        _written(pairs, tmp_path)
    assert not list(tmp_path.iterdir())
