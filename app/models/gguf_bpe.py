"""Byte-level BPE tokenizers ("gpt2" in GGUF files) as Hugging Face's tokenizers package runs them.

A GGUF file carries tokens and merges, but only a name (`tokenizer.ggml.pre`) for how text is cut before pairs are
merged. What the names stand for is written in llama.cpp (src/llama-vocab.cpp); the expressions are those of the models'
own tokenizer.json files, where llama.cpp quotes them. Each is applied to what the one before left uncut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.models.gguf_vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text becomes words.

    Attributes:
        patterns: Expressions (Oniguruma's) whose matches become words, as does what lies between them.
        ignore_merges: Whether a word that is a token is taken whole, even where merges lead elsewhere.
        nfc: Whether text is brought into Unicode's composed form first.
        add_bos: Whether texts begin with BOS where the file doesn't say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False


_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # endings that are words of their own
_SPACES = r"\s+(?!\S)|\s+"
_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"


def _tiktoken(
    numbers: str, *, begin: str = _ENGLISH + "|", newlines: str = r"\s*[\r\n]+", spaces: str = _SPACES
) -> str:
    """The expression of GPT-4's tokenizer, which most newer ones vary."""
    return (
        rf"{begin}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{newlines}|{spaces}"
    )  # fmt: skip


def _cased(numbers: str, end: str) -> str:
    """The expression of GPT-4o's tokenizer, which cuts before capitals."""
    before, upper, lower = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (
        rf"{before}{upper}*{lower}+{end}|{before}{upper}+{lower}*{end}"
        rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
    )


_LLAMA3 = _tiktoken(r"\p{N}{1,3}")
_QWEN2 = _tiktoken(r"\p{N}")
_QWEN35 = (
    rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    rf"|\s*[\r\n]+|{_SPACES}"
)
_POWERS = "|".join(rf"\s{{{1 << i}}}(?!\S)" for i in range(9, 1, -1))  # runs of 512, 256 ... 4 spaces
_JAIS2 = _tiktoken(r"\p{N}{1,3}", spaces=_POWERS + r"|\s{1,2}(?!\S)|\s{1}")
_SENTENCES = " ?[^(\\s|.,!?…。，、।۔،)]+"
_CJK = "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
_CJK_AND_KOREAN = "[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
)
# Letters that have a case, as the tokenizer's authors listed them (some scripts' are left out).
_DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}"
    r"\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}"
    r"\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}"
    r"\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}"
    r"\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}"
    r"\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}"
    r"\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}"
    r"\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}"
    r"\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}"
    r"\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}"
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+"
)
_DEEPSEEK_MARKS = r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"

_KINDS: dict[PreTokenizer, str] = {
    # What llama.cpp does for files made before tokenizers were named, too.
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): "default",
    PreTokenizer((_GPT2,)): "gpt-2 phi-2 gigachat a.x-4.0 mellum mpt olmo jais trillion granite-docling exaone4",
    PreTokenizer((r"\p{N}", _GPT2)): ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"
    ),
    PreTokenizer((_LLAMA3,)): "smaug-bpe dbrx glm4 chatglm-bpe",
    PreTokenizer((_QWEN2,), nfc=True): "qwen2 deepseek-r1-qwen megrez f2llmv2",
    PreTokenizer((_QWEN2,)): "kormo hunyuan solar-open grok-2 stablelm2",
    PreTokenizer((_QWEN35,), nfc=True): "qwen35",
    PreTokenizer((_cased(r"\p{N}", ""),), ignore_merges=True, add_bos=True): "tekken",
    PreTokenizer((_cased(r"\p{N}{1,3}", _ENGLISH + "?"),)): "gpt-4o llama4 kanana2 talkie",
    PreTokenizer((r"[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_MARKS, r"\s+$", _CJK_AND_KOREAN, r"\p{N}+")): "deepseek-llm",
    PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_AND_KOREAN, r"\p{N}")): "deepseek-coder",
    PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK3)): "deepseek-v3 hunyuan-dense joyai-llm",
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")): "falcon",
    PreTokenizer((r"\p{N}{1,3}", _tiktoken(r"\p{N}+")), ignore_merges=True): "minicpm5",
    PreTokenizer(
        (_tiktoken(r"\p{N}", begin="'(?i:[sdmt]|ll|ve|re)|", newlines=r"\s*[\r\n]"),)
    ): "bailingmoe bailingmoe2 llada-moe",
    PreTokenizer(
        (rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|{_SPACES}",)
    ): "seed-coder",
    PreTokenizer((_tiktoken(r"\p{N}", begin=""),)): "ufakzeka",
    PreTokenizer((_JAIS2,)): "jais-2",
    PreTokenizer((_SENTENCES,)): "poro-chat bloom gpt3-finnish",
    PreTokenizer((_SENTENCES, r"\p{N}")): "viking",
}
PRE_TOKENIZERS = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def byte_level_tokenizer(vocabulary: Vocabulary, merges: Sequence[str], pre: PreTokenizer) -> Tokenizer:
    """A tokenizer without added tokens.

    Args:
        vocabulary: The tokens, in which bytes are written as GPT-2 writes them.
        merges: The pairs that are merged, most important first, each written as the two with a space between.
        pre: How text is cut.

    Raises:
        ModelFileError: a merge is no pair of tokens that make up a token.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pairs = []
    for merge in merges:
        at = merge.find(" ", 1)  # a token that begins with a space is possible, if only as the first
        left, right = merge[:at], merge[at + 1 :]
        if at < 0 or not vocabulary.holds(left, right, left + right):
            raise vocabulary.refused(f"its tokenizer merges {merge[:60]!r}, which are not two tokens that make one")
        pairs.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary.ids, merges=pairs, ignore_merges=pre.ignore_merges))
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
