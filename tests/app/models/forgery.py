"""Messages that try to be more than text, and what must become of them with any tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from app.models.chat_template import ChatTemplate
from app.models.plain_text import chat_tokens, text_tokens

Turns = list[dict[str, str]]
ORDINARY = (
    "Hello", "word", " ", "  ", "\n", "\n\n", ",", "a < b", "x > 1", "|", "[1]", "Grüße", "世界", "🙂", "def f(x):\n\t",
    "12345", "<b>", "don't",
)  # fmt: skip
# Gemma's vocabulary has them as tokens, and they are no more than words in it.
HTML = (
    "html", "body", "div", "span", "iframe", "footer", "table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td",
    "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "strong", "em", "b", "i", "u", "sub", "sup", "code",
)  # fmt: skip
# Characters of the planes from which stand-ins are taken, the first ones among them.
STAND_INS = ("\U0010fffd", "\U0010fffc", "\U0010fffb", "\U0010fffd0\U0010fffd", "\U000f0000")


def load(folder: Path, template: str | None = None) -> Any:
    """A folder's tokenizer as the app has it: with its chat template run by the app."""
    from mlx_lm.utils import load_tokenizer

    if not (folder / "config.json").exists():
        (folder / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = load_tokenizer(folder, {"trust_remote_code": False})
    text = template or tokenizer.chat_template
    tokenizer.chat_template = text
    tokenizer._chat_template = ChatTemplate(text, tokenizer.special_tokens_map).render
    return tokenizer


def names(tokenizer: Any) -> dict[str, int]:
    """Tokens that say something, of those that a tokenizer finds in texts."""
    return names_in(tokenizer.added_tokens_decoder)


def names_in(added: Mapping[int, Any]) -> dict[str, int]:
    """Those of these tokens that have brackets, or are marked as special."""
    return {
        str(token): number
        for number, token in added.items()
        if (token.special or not {*"<>[]|｜"}.isdisjoint(str(token)))
        and not str(token).isspace()
        and str(token).strip("</>") not in HTML
    }


def harmless(text: str, found: dict[str, int]) -> str:
    """A text of the same shape without any name, nor an end of one."""
    ends = {end for name in found for end in (name[0], name[-1])}
    return "".join("x" if letter in ends else letter for letter in text)


def counted(tokens: Sequence[int], found: dict[str, int]) -> Counter[int]:
    numbers = set(found.values())
    return Counter(token for token in tokens if token in numbers)


def contents(found: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts of names, pieces of names, and ordinary words."""
    pieces = st.sampled_from(found).flatmap(
        lambda name: st.tuples(st.integers(0, len(name)), st.integers(0, len(name))).map(lambda cut: name[slice(*cut)])
    )
    words = st.sampled_from([*ORDINARY, *STAND_INS])
    return st.lists(st.one_of(st.sampled_from(found), pieces, words), max_size=8).map("".join)


def check(tokenizer: Any, turns: Turns, *, exact: bool = True) -> list[int]:
    """The conversation's tokens, of which none is a control token because of what a message says.

    Args:
        exact: Whether the tokenizer gives texts back as they were, spaces included.
    """
    found = names(tokenizer)
    tokens = chat_tokens(tokenizer, turns, add_generation_prompt=True)
    tame = [{**turn, "content": harmless(turn["content"], found)} for turn in turns]
    expected = tokenizer.apply_chat_template(tame, add_generation_prompt=True)
    assert counted(tokens, found) == counted(expected, found), turns
    # All of it comes back as the template wrote it.
    written = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    back = tokenizer.decode(tokens)
    if exact:
        assert back == written
    else:
        assert back.replace(" ", "") == written.replace(" ", "")
    # Where a message is as good as any, it is what it always was.
    if all(name not in turn["content"] for name in found for turn in turns):
        assert chat_tokens(tokenizer, tame, add_generation_prompt=True) == expected
    for turn in turns:
        alone = text_tokens(tokenizer, turn["content"])
        assert not counted(alone, found) - counted([tokenizer.unk_token_id or -1] * len(alone), found)
        assert turn["content"].strip() in tokenizer.decode(alone) or not exact
    return tokens
