"""Writes the tokenizer that a GGUF file describes in the files mlx-lm (Hugging Face) reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.gguf_bpe import PRE_TOKENIZERS, PreTokenizer, byte_level_tokenizer
from app.models.gguf_file import GgufFile
from app.models.gguf_spm import BYTES, sentencepiece_tokenizer
from app.models.gguf_template import chat_template
from app.models.gguf_vocabulary import TokenKind, Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PROBE = "Grüße, 世界! 🙂  x = 1024;\n\tif (a<=b) { don't(); }"
_MOST_TAKEN_FOR_BYTES = 256  # each is a step of the decoder
_BYTE_LEVEL, _SENTENCEPIECE = "gpt2", "llama"
# Hugging Face's names of the tokens with a role.
_ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def check_tokenizer(gguf: GgufFile, *, chat: bool = True) -> None:
    """Refuse early what `write_tokenizer` would refuse late; takes a moment.

    Args:
        chat: Whether a chat template is needed.

    Raises:
        ModelFileError: the kind of tokenizer is not known, or the vocabulary or the template can't be used.
    """
    _pre_tokenizer(gguf)
    vocabulary = read_vocabulary(gguf)
    if chat:
        chat_template(gguf, _special_tokens(vocabulary), add_bos=False)


def end_tokens(gguf: GgufFile) -> list[int]:
    """The ids of all tokens that end an answer, at least one, the file's own EOS first.

    Raises:
        ModelFileError: the vocabulary can't be used.
    """
    return read_vocabulary(gguf).ends


def write_tokenizer(gguf: GgufFile, folder: Path, *, context_length: int, chat: bool = True) -> None:
    """Write tokenizer.json and tokenizer_config.json into `folder`, and check that text survives them.

    262,144 SentencePiece tokens take some 3 seconds and 270 MB.

    Args:
        context_length: Tokens that a text may have.
        chat: Whether a chat template is needed.

    Raises:
        ModelFileError: a kind of tokenizer that can't be converted, or one that doesn't work.
        OSError: `folder` can't be written.
    """
    pre = _pre_tokenizer(gguf)
    vocabulary = read_vocabulary(gguf)
    add_bos = _adds(gguf, vocabulary, "bos", default=pre is None or pre.add_bos)
    add_eos = _adds(gguf, vocabulary, "eos", default=False)
    special = _special_tokens(vocabulary)
    template = chat_template(gguf, special, add_bos=add_bos) if chat else None
    add_space_prefix = pre is None and gguf.flag("tokenizer.ggml.add_space_prefix", True)
    if pre is None:
        tokenizer = sentencepiece_tokenizer(
            vocabulary, gguf.numbers("tokenizer.ggml.scores"), add_space_prefix=add_space_prefix
        )
        letters = set(BYTES)
    else:
        tokenizer = byte_level_tokenizer(vocabulary, gguf.texts("tokenizer.ggml.merges"), pre)
        letters = set(_byte_alphabet())
    _add_tokens(tokenizer, vocabulary)
    if pre is not None:
        _decode_words_as_written(tokenizer, vocabulary)
    # Behind an added token comes the prefix again, as in llama.cpp, so such text can't come back as it was.
    apart = add_space_prefix and any(token in _PROBE for token in vocabulary.of_kind(TokenKind.USER_DEFINED))
    if vocabulary.holds(*letters) and not apart and tokenizer.decode(tokenizer.encode(_PROBE).ids) != _PROBE:
        raise gguf.refused("its tokenizer doesn't give back the text it got")
    _frame(tokenizer, vocabulary, add_bos=add_bos, add_eos=add_eos)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # What is not named here, some of transformers' classes would name themselves, and add to the vocabulary.
        **{name: special.get(name) for name in _ROLES.values()},
        **({"chat_template": template} if chat else {}),
        "add_bos_token": add_bos,
        "add_eos_token": add_eos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _pre_tokenizer(gguf: GgufFile) -> PreTokenizer | None:
    """How a byte-level tokenizer cuts text; None for SentencePiece's kind, which doesn't."""
    model = gguf.text("tokenizer.ggml.model")
    if gguf.text("general.architecture", "") == "qwen2":
        # transformers reads every qwen2 folder with Qwen2's own tokenizer, whatever tokenizer.json says.
        name = gguf.text("tokenizer.ggml.pre", "default")
        if model != _BYTE_LEVEL or PRE_TOKENIZERS.get(name) is not PRE_TOKENIZERS["qwen2"]:
            raise gguf.refused(
                f"it is a qwen2 model whose tokenizer is {model[:60]}/{name[:60]}, and only Qwen2's own (gpt2/qwen2) "
                f"works with those"
            )
    if model == _SENTENCEPIECE:
        return None
    if model != _BYTE_LEVEL:
        raise gguf.refused(
            f"its tokenizer is of the kind {model[:60]!r}; only byte-level BPE ({_BYTE_LEVEL}) and SentencePiece's BPE "
            f"({_SENTENCEPIECE}) can be"
        )
    name = gguf.text("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        raise gguf.refused(f"its tokenizer cuts text as {name[:60]!r} does, which this app doesn't know")
    return PRE_TOKENIZERS[name]


def _special_tokens(vocabulary: Vocabulary) -> dict[str, str]:
    return {
        name: vocabulary.tokens[vocabulary.special[role]] for role, name in _ROLES.items() if role in vocabulary.special
    }


def _adds(gguf: GgufFile, vocabulary: Vocabulary, role: str, *, default: bool) -> bool:
    """Whether a text begins with BOS or ends with EOS."""
    wanted = gguf.flag(f"tokenizer.ggml.add_{role}_token", default)
    if wanted and role not in vocabulary.special:
        if gguf.has(f"tokenizer.ggml.add_{role}_token"):
            raise gguf.refused(f"its texts should have a {role.upper()} token, and it doesn't say which that is")
        return False
    return wanted


def _add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Make tokens that are not merged from text be found in it."""
    from tokenizers import AddedToken

    control = vocabulary.of_kind(TokenKind.CONTROL)
    control += [token for token in vocabulary.of_kind(TokenKind.UNKNOWN) if token not in control]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in vocabulary.of_kind(TokenKind.USER_DEFINED)]
    )


def _decode_words_as_written(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Decode tokens that stand for themselves to their text, where a byte-level decoder takes their letters for bytes.

    DeepSeek's tokenizers have 13 of these, "ü" among them, which would become a byte that no text has.
    """
    from tokenizers import Regex, decoders, pre_tokenizers

    taken = [
        token for token in vocabulary.of_kind(TokenKind.USER_DEFINED) if tokenizer.decoder.decode([token]) != token
    ]
    if len(taken) > _MOST_TAKEN_FOR_BYTES:
        raise vocabulary.refused(f"{len(taken):,} of its tokenizer's tokens can't be told from bytes")
    if taken:
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
        tokenizer.decoder = decoders.Sequence(
            [
                *(decoders.Replace(Regex(rf"\A{re.escape(token)}\z"), bytes_of(token)[0][0]) for token in taken),
                tokenizer.decoder,
            ]
        )


def _frame(tokenizer: Tokenizer, vocabulary: Vocabulary, *, add_bos: bool, add_eos: bool) -> None:
    """Put BOS before and EOS behind what is encoded with special tokens (chats are encoded without)."""
    from tokenizers import processors

    before, behind = ["bos"] * add_bos, ["eos"] * add_eos
    if not before and not behind:
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *behind],
        pair=[*before, "$A", *behind, *(f"{role}:1" for role in before), "$B:1", *(f"{role}:1" for role in behind)],
        special_tokens=[
            {"id": role, "ids": [vocabulary.special[role]], "tokens": [vocabulary.tokens[vocabulary.special[role]]]}
            for role in (*before, *behind)
        ],
    )


def _byte_alphabet() -> list[str]:
    """The 256 characters that byte-level tokenizers write bytes as."""
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel.alphabet()
