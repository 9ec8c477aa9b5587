"""What is handed out of an answer, however its text is divided into tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import NaiveStreamingDetokenizer, StreamingDetokenizer
from mlx_lm.utils import load_tokenizer

from app.engine.writing import Writer

PIECES = st.lists(st.text("ab \n", min_size=1, max_size=5), max_size=12)
STOPS = st.lists(st.text("ab \n", min_size=1, max_size=5), max_size=3).map(tuple)
# Characters of up to four bytes, and what takes several (families, flags). MLX-LM writes a zero byte as another
# character, and U+FFFD is what it writes for half a character.
CHARACTERS = st.characters(codec="utf-8", max_codepoint=0x1FFFF, exclude_characters="\0\ufffd")
ANY_TEXT = st.one_of(
    st.text(CHARACTERS, max_size=20),
    st.lists(
        st.sampled_from(["👩‍👩‍👧", "🇫🇷", "é", "e\u0301", "世界", " ", "  ", "\n", "Hello", "🙂"]), max_size=12
    ).map("".join),
)


class Pieces(StreamingDetokenizer):
    """A detokenizer whose tokens are these texts; a last space is kept back until more comes, as mlx-lm's do."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces
        self.reset()

    def reset(self) -> None:
        self.offset, self.text, self.tokens, self._kept = 0, "", [], ""

    def add_token(self, token: int) -> None:
        self.tokens.append(token)
        text = self._kept + self._pieces[token]
        self._kept = " " if text.endswith(" ") else ""
        self.text += text.removesuffix(" ")

    def finalize(self) -> None:
        self.text += self._kept
        self._kept = ""


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Any:
    return load_tokenizer(default_model_dir)


def told(writer: Writer, tokens: list[int]) -> str:
    """All that is handed out of an answer."""
    text = ""
    for token in tokens:
        text += writer.add(token)
        if writer.stopped:
            break
    return text + writer.end()


def up_to_a_stop(text: str, stops: tuple[str, ...]) -> str:
    return text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]


@settings(deadline=None)
@given(PIECES, STOPS)
@example(["a", "b", "a b"], ("b", "aba"))  # one stop text within the beginning of another that began before it
@example(["abab"], ("b", "abab"))
def test_the_text_up_to_the_first_stop_text_is_handed_out(pieces: list[str], stops: tuple[str, ...]) -> None:
    text = "".join(pieces)
    writer = Writer(Pieces(pieces), stops)
    assert told(writer, list(range(len(pieces)))) == up_to_a_stop(text, stops)
    assert writer.stopped == any(stop in text for stop in stops)


@settings(deadline=None)
@given(PIECES, STOPS)
def test_nothing_is_handed_out_that_may_belong_to_a_stop_text(pieces: list[str], stops: tuple[str, ...]) -> None:
    """At any moment: had a stop text come next, none of it would have been shown."""
    writer, shown, text = Writer(Pieces(pieces), stops), "", ""
    for token, piece in enumerate(pieces):
        shown += writer.add(token)
        text += piece
        for stop in stops:
            for n in range(1, len(stop)):
                if text.endswith(stop[:n]):
                    assert len(shown) <= len(text) - n
        if writer.stopped:
            break


@settings(deadline=None)
@given(PIECES, st.integers(0, 12), STOPS)
def test_an_answer_that_goes_on_hands_out_only_what_is_new(pieces: list[str], at: int, stops: tuple[str, ...]) -> None:
    """It was stopped by the person, who saw what had been held back, too."""
    detokenizer = Pieces(pieces)
    first, rest = list(range(len(pieces)))[:at], list(range(len(pieces)))[at:]
    before = "".join(pieces[:at])
    if any(stop in before for stop in stops):
        return
    shown = told(Writer(detokenizer, stops), first)
    assert shown == before
    detokenizer.reset()
    writer = Writer(detokenizer, stops, said=first)
    after = told(writer, rest)
    whole = up_to_a_stop("".join(pieces), stops)
    assert before + after == (whole if len(whole) > len(before) else before)
    assert writer.stopped == any(stop in "".join(pieces) for stop in stops)


@settings(deadline=None, max_examples=100)
@given(text=ANY_TEXT, stop=st.text(CHARACTERS, min_size=1, max_size=3))
def test_any_text_comes_through_the_real_tokenizer(tokenizer: Any, text: str, stop: str) -> None:
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assume(tokenizer.decode(tokens) == text)  # a few bytes are not in its vocabulary
    for detokenizer in (tokenizer.detokenizer, NaiveStreamingDetokenizer(tokenizer)):
        is_naive = isinstance(detokenizer, NaiveStreamingDetokenizer)
        shown = text if is_naive else text.removeprefix(" ")  # mlx-lm takes away a space that an answer begins with
        assert told(Writer(detokenizer), tokens) == shown
        detokenizer.reset()
        assert told(Writer(detokenizer, (stop,)), tokens) == up_to_a_stop(shown, (stop,))


@settings(deadline=None, max_examples=100)
@given(text=ANY_TEXT, at=st.integers(0, 40))
@example(text="a  b", at=2)  # between two spaces
@example(text="So: 🙂🙂!", at=4)  # in the middle of a character
@example(text="\n\x80", at=2)  # behind a new line, in the middle of a character
@example(text=" \n👩‍👩‍👧 \n x", at=5)
def test_the_real_tokenizers_answers_go_on_wherever_they_were_stopped(tokenizer: Any, text: str, at: int) -> None:
    tokens = tokenizer.encode(text, add_special_tokens=False)
    for make in (lambda: tokenizer.detokenizer, lambda: NaiveStreamingDetokenizer(tokenizer)):
        before = told(Writer(make()), tokens[:at])
        after = told(Writer(make(), said=tokens[:at]), tokens[at:])
        assert before + after == told(Writer(make()), tokens)


def test_an_answer_that_goes_on_keeps_its_leading_space(tokenizer: Any) -> None:
    said = tokenizer.encode("The sea", add_special_tokens=False)
    more = tokenizer.encode(" is blue", add_special_tokens=False)
    assert told(Writer(tokenizer.detokenizer, said=said), more) == " is blue"
    assert told(Writer(tokenizer.detokenizer), more) == "is blue"


def test_an_answer_does_not_end_with_half_a_character(tokenizer: Any) -> None:
    tokens = tokenizer.encode("So: 🙂🙂", add_special_tokens=False)
    assert tokenizer.decode(tokens[:-1]).endswith("\ufffd")  # the premise
    assert told(Writer(tokenizer.detokenizer), tokens[:-1]) == "So: 🙂"


def test_what_was_held_back_comes_when_the_answer_ends() -> None:
    writer = Writer(Pieces(["one END", "ING", " two EN"]), ("ENDLESS",))
    assert writer.add(0) == "one "
    assert writer.add(1) == "ENDING"
    assert writer.add(2) == " two "
    assert writer.end() == "EN"
    assert not writer.stopped
