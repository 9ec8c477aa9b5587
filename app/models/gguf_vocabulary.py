"""The tokens of a GGUF file, checked: what both kinds of tokenizers are made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from app.models.errors import ModelFileError
from app.models.gguf_file import GgufFile

_MAX_TOKEN = 2048  # characters; the longest of real vocabularies are runs of some 500 spaces
_MAX_SQUARES = 10**9  # of all tokens' lengths, which bounds the work of taking each apart everywhere; Gemma's: 10^7
# Tokens that end an answer, by name: files often know but one of the model's (llama.cpp does the same).
_END_NAMES = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<end_of_utterance>", "<｜end▁of▁sentence｜>",
)  # fmt: skip
_TAG_NAMES = ("</s>", "<eos>", "<EOT>")  # these only as control tokens: else they may be HTML (Gemma's </s> is)


class TokenKind(IntEnum):
    """What `tokenizer.ggml.token_type` holds."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a file in the order of their ids, no two of which are the same.

    Attributes:
        ids: Each token's id.
        special: The ids of the tokens with a role ("bos", "eos", "unknown", "padding"), where the file names them.
        ends: The ids of the tokens that end an answer, the file's own EOS first.
    """

    gguf: GgufFile
    tokens: list[str]
    kinds: list[int]
    special: dict[str, int]
    ends: list[int]
    ids: dict[str, int] = field(repr=False)

    def holds(self, *tokens: str) -> bool:
        """Whether all of these are tokens."""
        return all(token in self.ids for token in tokens)

    def of_kind(self, *kinds: TokenKind) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind in kinds]

    def refused(self, why: str) -> ModelFileError:
        return self.gguf.refused(why)


def read_vocabulary(gguf: GgufFile) -> Vocabulary:
    """The file's tokens, and which of them have a role.

    Raises:
        ModelFileError: something is missing, or doesn't fit the rest.
    """
    tokens = gguf.texts("tokenizer.ggml.tokens")
    if not tokens:
        raise gguf.refused("its tokenizer has no tokens")
    if max(map(len, tokens)) > _MAX_TOKEN or sum(len(token) ** 2 for token in tokens) > _MAX_SQUARES:
        raise gguf.refused("its tokenizer has tokens that are too long")
    # Tokens for nothing, which can't be in a text. llama.cpp gives them names, too.
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
        raise gguf.refused(f"its tokenizer has the token {twice[:60]!r} twice")
    kinds = [int(TokenKind.NORMAL)] * len(tokens)
    if gguf.has("tokenizer.ggml.token_type"):
        kinds = gguf.integers("tokenizer.ggml.token_type")
    if len(kinds) != len(tokens):
        raise gguf.refused(f"its tokenizer has {len(tokens):,} tokens and {len(kinds):,} types of tokens")
    special = {}
    for role in ("bos", "eos", "eot", "eom", "unknown", "padding"):
        key = f"tokenizer.ggml.{role}_token_id"
        if gguf.has(key):
            special[role] = gguf.integer(key)
            if not 0 <= special[role] < len(tokens):
                raise gguf.refused(f"its value for {key} is {special[role]}, and it has {len(tokens):,} tokens")
    ends = [special[role] for role in ("eos", "eot", "eom") if role in special]
    for name in _END_NAMES:
        # OpenAI's own format goes on behind <|end|>.
        if name in ids and not (name == "<|end|>" and "<|return|>" in ids):
            ends.append(ids[name])
    ends += [ids[name] for name in _TAG_NAMES if name in ids and kinds[ids[name]] == TokenKind.CONTROL]
    for end in ends:
        if kinds[end] != TokenKind.BYTE:
            kinds[end] = int(TokenKind.CONTROL)  # some files have them as normal ones, which would be cut into pieces
    if not ends:
        raise gguf.refused("its tokenizer has no token that ends an answer")
    return Vocabulary(gguf, tokens, kinds, special, list(dict.fromkeys(ends)), ids)
