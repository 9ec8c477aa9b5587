"""SentencePiece's BPE tokenizers ("llama" in GGUF files) as Hugging Face's tokenizers package runs them.

SentencePiece merges, again and again, the two neighbours that make up the piece with the highest score, the leftmost
ones first. The tokenizers package merges pairs by a list, so the list is made from the scores: every way to cut a
piece into two pieces is a pair, and pairs come in the order of the scores of what they make. (Where two pairs make the
same piece, SentencePiece takes the one further left first, and this takes the one first in the list. The result
differs only where a third pair overlaps both.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.models.gguf_vocabulary import TokenKind, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE = "▁"  # U+2581, how SentencePiece writes a space
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece_tokenizer(vocabulary: Vocabulary, scores: Sequence[float], *, add_space_prefix: bool) -> Tokenizer:
    """A tokenizer without added tokens.

    Args:
        vocabulary: The pieces.
        scores: Theirs, in the same order.
        add_space_prefix: Whether a space goes before each text, as it does in llama.cpp behind each added token, too.

    Raises:
        ModelFileError: the scores don't fit the pieces, or bytes are written as SentencePiece doesn't.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    unknown = vocabulary.special.get("unknown")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=_merges(vocabulary, scores),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            byte_fallback=vocabulary.holds(*BYTES),
            fuse_unk=True,
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if add_space_prefix else spaces
    # In exactly these words mlx-lm looks for SentencePiece's decoders.
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if add_space_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges(vocabulary: Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    tokens, kinds = vocabulary.tokens, vocabulary.kinds
    if len(scores) != len(tokens):
        raise vocabulary.refused(f"its tokenizer has {len(tokens):,} tokens and {len(scores):,} scores")
    if not all(map(math.isfinite, scores)):
        raise vocabulary.refused("its tokenizer has scores that are not numbers")
    bytes_ = set(BYTES)
    for token, kind in zip(tokens, kinds, strict=True):
        if (kind == TokenKind.BYTE or token.startswith("<0x")) and token not in bytes_:
            # mlx-lm takes all that begins so for a byte.
            raise vocabulary.refused(f"its tokenizer has the token {token[:60]!r}, which should be a byte and isn't")
    # Tokens of the other kinds are never merged from parts: they are found before, or stand for what isn't a piece.
    pieces = {
        token for token, kind in zip(tokens, kinds, strict=True) if kind in (TokenKind.NORMAL, TokenKind.UNDEFINED)
    }
    merges = []
    for at in sorted(range(len(tokens)), key=scores.__getitem__, reverse=True):  # stable: equal scores stay in order
        piece = tokens[at]
        if piece not in pieces:
            continue
        for cut in range(1, len(piece)):
            left = piece[:cut]
            if left in pieces and piece[cut:] in pieces:
                merges.append((left, piece[cut:]))
    return merges
