"""Small tokenizers of every kind, with the control tokens and the chat templates of models that are much used."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.app.models.forgery import load

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# The system's message is in the user's turn.
MISTRAL = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m.role == 'user' %}[INST] {{ (system if loop.first else '') + m.content }} [/INST]"
    "{% else %}{{ ' ' + m.content | trim + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content | trim ~ '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\n' ~ "
    "(first if loop.first else '') ~ m.content | trim ~ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
# Its markers are made of pieces, so that the template's text holds none.
PHI3 = "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}<|assistant|>\n"
THINKING = (
    "{% for m in messages %}{% set text = m.content %}{% if m.role == 'assistant' and '</think>' in text %}"
    "{% set text = '<think>\n' ~ text.split('</think>')[0].split('<think>')[-1].strip('\n') ~ '\n</think>\n\n' ~ "
    "text.split('</think>')[-1].lstrip('\n') %}{% endif %}<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
TOKENS = {
    "ChatML": (CHATML, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]),
    "Llama 3": (LLAMA3, ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"]),
    "Mistral": (MISTRAL, ["[INST]", "[/INST]", "<s>", "</s>", "[AVAILABLE_TOOLS]"]),
    "Gemma": (GEMMA, ["<start_of_turn>", "<end_of_turn>", "<s>", "</s>"]),
    "Phi-3": (PHI3, ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "</s>"]),
    "thinking": (THINKING, ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]),
}
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
_BYTES = pre_tokenizers.ByteLevel.alphabet()
_MERGES = [("i", "m"), ("<", "|"), ("|", ">"), ("Ġ", "a"), ("H", "e"), ("e", "n"), ("en", "d"), ("<|", "im")]


def byte_level(special: Sequence[str], *, in_vocabulary: bool = False, **settings: Any) -> Tokenizer:
    """Byte-level BPE; the control tokens may be words of the model, too."""
    tokens = [*sorted(_BYTES), *(a + b for a, b in _MERGES), *(special if in_vocabulary else ())]
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=_MERGES, **settings))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece(special: Sequence[str], *, prefix: bool) -> Tokenizer:
    """BPE as SentencePiece has it, with bytes for what it doesn't know, and control tokens in the vocabulary."""
    pieces = ["<unk>", *special, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"<>|[]/_adehilmnorstu"]
    merges = [("i", "m"), ("<", "|"), ("|", ">"), ("▁", "a")]
    pieces += [a + b for a, b in merges]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return tokenizer


def unigram(special: Sequence[str]) -> Tokenizer:
    """A model that would rather take a control token's name whole than in letters."""
    pieces = [("<unk>", 0.0), *((name, -1.0) for name in special), ("▁", -5.0)]
    pieces += [(chr(code), -5.0) for code in range(33, 127)] + [(f"<0x{byte:02X}>", -9.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


MODELS: dict[str, Callable[[Sequence[str]], Tokenizer]] = {
    "byte-level": byte_level,
    "byte-level with whole words": lambda special: byte_level(special, in_vocabulary=True, ignore_merges=True),
    "SentencePiece": lambda special: sentencepiece(special, prefix=False),
    "SentencePiece with a space": lambda special: sentencepiece(special, prefix=True),
    "Unigram": unigram,
}


def made(
    folder: Path, tokenizer: Tokenizer, template: str, special: Sequence[str | AddedToken], *, are_special: bool = True
) -> Any:
    """That tokenizer with these control tokens, as the app loads it."""
    added = [
        AddedToken(token, normalized=False, special=are_special) if isinstance(token, str) else token
        for token in special
    ]
    tokenizer.add_tokens(added)
    tokenizer.save(str(folder / "tokenizer.json"))
    found = [str(token) for token in added]
    roles = {"bos_token": "<s>", "eos_token": "</s>"} if "<s>" in found else {"eos_token": found[-1]}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **roles}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load(folder, template)
