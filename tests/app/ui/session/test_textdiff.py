"""Where two answers first differ, and what is said of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ui.session.textdiff import describe, first_difference

FINISHED = [
    ("a b c", "a b c", "Same answer as fp16"),
    ("a b c", "a  b\nc ", "Same answer as fp16"),
    ("a b c", "a b d", "Same as fp16 for 2 words, then differs"),
    ("a b c", "a b", "Same as fp16 for 2 words, then differs"),
    ("a b", "a b c", "Same as fp16 for 2 words, then differs"),
    ("a b", "a c", "Same as fp16 for 1 word, then differs"),
    ("a b", "x b", "Differs from fp16 from the first word"),
    ("", "", "Same answer as fp16"),
    ("Paris.", "Paris", "Differs from fp16 from the first word"),
]


@pytest.mark.parametrize(("reference", "text", "says"), FINISHED)
def test_finished_answers(reference: str, text: str, says: str) -> None:
    assert describe(first_difference(reference, text), "fp16") == says


def test_the_differing_rest_begins_at_its_first_word() -> None:
    text = "The light bends here"
    difference = first_difference("The light turns there", text)
    assert difference.at is not None
    assert text[difference.at :] == "bends here"


def test_a_word_being_written_does_not_differ_yet() -> None:
    assert first_difference("The rainbow", "The rain", True, False).at is None
    assert first_difference("The rain", "The rainbow", False, True).at is None
    assert first_difference("The rain", "The sun", False, False).at == 4


def test_a_reference_still_being_written_lacks_nothing() -> None:
    assert first_difference("a b", "a b c d", False, True).at is None
    assert describe(first_difference("a b", "a b c d", False, True), "fp16") == "Same as fp16 so far"


@given(st.text(), st.text())
def test_what_comes_before_the_difference_is_in_both(reference: str, text: str) -> None:
    difference = first_difference(reference, text)
    assert difference.complete
    same = text if difference.at is None else text[: difference.at]
    assert same.split() == reference.split()[: difference.words]
    assert (difference.at is None) == (reference.split() == text.split())


@given(st.text())
def test_a_text_does_not_differ_from_itself(text: str) -> None:
    assert first_difference(text, text).at is None
