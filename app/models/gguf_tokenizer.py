"""Writes the tokenizer that a GGUF file describes in the files mlx-lm (Hugging Face) reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.errors import ModelFileError

if TYPE_CHECKING:
    from app.models.convert import Metadata

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
_PROBE = "Grüße, 世界! 🙂  x = 1024;\n\tif (a<=b) { don't(); }"


def write_tokenizer(metadata: Metadata, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, and check that text survives them and the chat template applies.

    Raises:
        ModelFileError: a kind of tokenizer that can't be converted, or one that doesn't work.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    # How text is cut before byte pairs are merged is only named in a GGUF file, not described: each name is a case.
    if (model, pre) != ("gpt2", "smollm"):
        raise ModelFileError(
            f"The file {metadata.gguf} can't be converted: its tokenizer is {model}/{pre}; "
            f"only gpt2/smollm is known so far."
        )
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens")
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type")
    merges = [
        (left, right) for left, _, right in (pair.partition(" ") for pair in metadata.get("tokenizer.ggml.merges"))
    ]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    named = list(zip(tokens, kinds, strict=True))
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in named if kind == _CONTROL]
    )
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t, kind in named if kind == _USER_DEFINED])
    if tokenizer.decode(tokenizer.encode(_PROBE).ids) != _PROBE:
        raise ModelFileError(
            f"The file {metadata.gguf} can't be converted: its tokenizer doesn't give back the text it got."
        )
    tokenizer.save(str(folder / "tokenizer.json"))

    special = {
        role: tokens[metadata.get(f"tokenizer.ggml.{key}_token_id")]
        for role, key in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("unk_token", "unknown"),
            ("pad_token", "padding"),
        )
        if metadata.has(f"tokenizer.ggml.{key}_token_id")
    }
    template = metadata.get("tokenizer.chat_template")
    _check_template(metadata.gguf, template, special)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get("llama.context_length"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _check_template(gguf: Path, template: str, special: dict[str, str]) -> None:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # The template is a program from a file somebody sent: it runs in the sandbox that mlx-lm's tokenizer uses, too.
    try:
        text = (
            ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            .from_string(template)
            .render(messages=[{"role": "user", "content": _PROBE}], add_generation_prompt=True, **special)
        )
    except jinja2.TemplateError as error:
        raise ModelFileError(
            f"The file {gguf} can't be converted: its chat template doesn't work ({error})."
        ) from error
    if _PROBE not in text:
        raise ModelFileError(f"The file {gguf} can't be converted: its chat template leaves the message out.")
