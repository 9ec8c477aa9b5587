"""An answer that comes in pieces is shown as if it had come at once, and only its end is looked at again."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it.token import Token as MarkdownToken
from PySide6.QtCore import QTextBoundaryFinder
from PySide6.QtGui import QTextDocument
from PySide6.QtWidgets import QApplication

from app.ui.look.blocks import (
    CODE_PIECE,
    LIMIT,
    LINES,
    PIECE,
    CodeSegment,
    MarkdownStream,
    PlainSegment,
    Segment,
    TextSegment,
    joined,
    plain_segments,
    plain_text,
    segments,
    slices,
)
from app.ui.look.markdown import PARSER
from app.ui.look.settling import weight, window_end

# One of each kind, and what comes near to being one: what follows may still make something else of it.
FRAGMENTS = [
    *(
        "words",
        "two\nlines",
        "a  \nb\\\nc",
        "**b** _e_ ~~s~~ `c`",
        "\\*x\\* &amp; &copy; &#0;",
        "<http://a.b>",
        "\\",
        "    ",
    ),
    *("# h", "## h | x", "#", "a\n===", "a\n---", "===", "--", "---", "* * *"),
    *(
        "- i",
        "- i\n  - n\n    - m",
        "1. o\n2. p",
        "7) q",
        "* s\n\n  more",
        "-",
        "1",
        "1)",
        "- - a",
        "+ - 1. x",
        "\t- t",
        "- # h",
    ),
    *("> q\nlazy", "> > qq", ">", "> - a\n> - b", "> ```\n> x", "- > q\n\n  r"),
    *("|a|b|\n|-|-|\n|1|2|", "a|b\n:-|-:", "|-|-|", "a|b", "| x |", "- |a|\n  |-|\n  |b|"),
    *(
        "```py\ncode\n```",
        "```\nopen",
        "  ~~~ a|b\n  \tx\n-|-\n~~~",
        "``` x|y\n-|-",
        "```",
        "~~~~",
        "- ```\n  x",
        "```a`b",
    ),
    *("    indented\n\n    code", "\tx"),
    *("[a]: /u", "[b]: /v 'tit\nle'", "[c]: /w 'open", "close'", "[a]:\n/u2", "[A\nb]: /l", "[foo\n===\nbar]: /x"),
    *(
        "[a]",
        "[x][b] ![c]",
        "[ a\nB ]",
        "[l](/m 'n')",
        "![p [a]](q)",
        "[open",
        "]: /z",
        "- [a]: /q\n'ti",
        "> [b]: /r",
        "[a]: /u x",
    ),
    *("<b>x</b>", "<!-- c", "<div>\n\nx\n\n</div>", "<script>"),
    *("שלום *עולם*", "مرحبا `كود`", "👩‍🚀 👍🏽 🇩🇪🇫🇷", "e\u0301", "x\u2028y\u2029z", "\x0c", "\x00", "a\u00a0b\x85c"),
]
SEPARATORS = ["\n", "\n", "\n\n", "\n\n", "\n \t\n", "", " ", "\r\n", "\r", "\n\n\n"]
INDENTS = ["", "", "", " ", "   ", "    ", "\t", "> ", "- ", "1. "]
NASTY = "-+*#>|`~=[]():!1. \t\n\\&<a'\r\x00"


def indented(fragment: str, by: str) -> str:
    """The fragment indented or nested, its later lines too where that is how it goes on."""
    later = " " * len(by) if by in ("- ", "1. ") else by
    return by + fragment.replace("\n", "\n" + later)


DOCUMENTS = st.one_of(
    st.lists(
        st.tuples(
            st.builds(indented, st.sampled_from(FRAGMENTS), st.sampled_from(INDENTS)), st.sampled_from(SEPARATORS)
        ),
        max_size=9,
    ).map(lambda parts: "".join(part + separator for part, separator in parts)),
    st.text(NASTY, max_size=60),
)


def in_pieces(text: str, cuts: Iterable[int]) -> list[str]:
    """The text as an engine's detokenizer hands it out whose tokens end at these bytes."""
    data = text.encode()
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    decoder = codecs.getincrementaldecoder("utf-8")()
    return [decoder.decode(data[a:b]) for a, b in pairwise(places)]


def fed(pieces: Iterable[str]) -> list[Segment]:
    stream = MarkdownStream()
    for piece in pieces:
        before = list(stream.segments)
        changed = stream.feed(piece)
        assert changed == first_change(before, stream.segments)
    before = list(stream.segments)
    assert stream.finish() == first_change(before, stream.segments)
    return stream.segments


def first_change(before: Sequence[Segment], after: Sequence[Segment]) -> int:
    same = 0
    while same < min(len(before), len(after)) and before[same] is after[same]:
        same += 1
    return same


def at_once(text: str) -> list[tuple[str, ...]]:
    """What the parser makes of the whole text, block by block."""
    blocks: list[list[MarkdownToken]] = [[]]
    for token in PARSER.parse(text):
        blocks[-1].append(token)
        if token.level == 0 and token.nesting <= 0:
            blocks.append([])
    shown: list[tuple[str, ...]] = []
    for block in blocks[:-1]:
        if block[0].type in ("fence", "code_block"):
            shown.append(("code", block[0].content.removesuffix("\n"), (block[0].info.split() or [""])[0]))
        else:
            shown.append(("text", PARSER.renderer.render(block, PARSER.options, {}).strip()))
    return shown


def whole(parts: Sequence[Segment]) -> list[tuple[str, ...]]:
    """The segments with the pieces of each code block put together."""
    shown: list[tuple[str, ...]] = []
    pieces: list[CodeSegment] = []
    for part in parts:
        if isinstance(part, CodeSegment):
            assert part.starts == (not pieces)
            pieces.append(part)
            if part.ends:
                shown.append(("code", joined(pieces), part.language))
                pieces = []
        else:
            assert not pieces
            assert isinstance(part, TextSegment)
            shown.append(("text", part.html))
    assert not pieces
    return shown


MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(DOCUMENTS, st.lists(st.integers(0, 400), max_size=40))
def test_whatever_the_pieces_the_answer_is_that_of_the_whole_text(text: str, cuts: list[int]) -> None:
    assert whole(fed(in_pieces(text, cuts))) == at_once(text)


@settings(MANY, max_examples=100)
@given(DOCUMENTS)
def test_what_is_shown_on_the_way_is_what_has_come(text: str) -> None:
    """Except for links of finished blocks whose definition has not been finished yet, so it is tried without any."""
    text = text.replace("]:", "];")
    stream = MarkdownStream()
    for end in range(1, len(text) + 1):
        stream.feed(text[end - 1])
        assert whole(stream.segments) == at_once(text[:end])


LETTERS = [
    "".join(fragment + separator for fragment in FRAGMENTS for separator in SEPARATORS),
    "".join(f"{fragment}\n\n" for fragment in FRAGMENTS),
]


@pytest.mark.parametrize("text", LETTERS)
def test_one_letter_at_a_time_through_every_kind(text: str) -> None:
    assert fed(text) == fed([text])


MIXED = """# Title

Some **bold** text with `code`, a [link](http://x.y) and prose.

- item one
- item *two*
  - nested

```python
def f(x):
    return x
```

| a | b |
|---|---|
| 1 | 2 |

> quoted

1. first
2. second

"""


def test_finished_blocks_stay_the_same_objects() -> None:
    stream = MarkdownStream()
    stream.feed(MIXED * 20)
    before = list(stream.segments)
    assert len(before) == 7 * 20
    for letter in "More words of a paragraph.\n\n- and\n- a list\n":
        assert stream.feed(letter) >= len(before) - 1
    assert all(one is other for one, other in zip(before[:-1], stream.segments, strict=False))


def test_an_end_costs_the_same_however_long_the_answer_is() -> None:
    costs = []
    for repeats in (1, 200):
        stream = MarkdownStream()
        for part in slices(MIXED * repeats):
            stream.feed(part)
        parsed = stream.parsed
        for letter in MIXED:
            stream.feed(letter)
        costs.append(stream.parsed - parsed)
    assert costs[0] == costs[1]


def test_code_that_is_still_open_is_not_parsed() -> None:
    stream = MarkdownStream()
    stream.feed("See [this](x):\n```py\n\n")
    parsed = stream.parsed
    for _ in range(1000):
        stream.feed("x = [1]\n")
    assert stream.parsed == parsed
    assert len(stream.segments) == 12


def test_a_late_definition_makes_links_of_earlier_blocks_and_leaves_others_alone() -> None:
    stream = MarkdownStream()
    stream.feed("See [the\n Docs].\n\nNot [these].\n\nNor \\[the docs\\].\n\n# Then\n\nend\n\n")
    before = list(stream.segments)
    assert stream.feed("[THE docs]: http://a.b\n\n[the docs]: http://second\n\nLast\n\n") == 0
    after = stream.segments
    assert isinstance(after[0], TextSegment)
    assert 'href="http://a.b"' in after[0].html
    assert [one is other for one, other in zip(before, after, strict=False)] == [False, True, True, True, True]


def test_a_definition_at_the_end_holds_once_the_answer_is_finished() -> None:
    stream = MarkdownStream()
    stream.feed("See [a].\n\n- x\n\nend\n\n[a]: /b")
    assert stream.finish() == 0
    assert whole(stream.segments) == at_once("See [a].\n\n- x\n\nend\n\n[a]: /b")


ENDLESS = {
    "prose": "word and *word* " * 2000,
    "one word": "x" * 30_000,
    "emoji": "👩‍🚀" * 6000,
    "list": "- item [a]\n" * 800,
    "numbered": "".join(f"{n}. item\n\n   more of it\n\n" for n in range(1, 500)),
    "lines": "line of text\n" * 1200,
    "quote": "> quoted\n> text\n>\n" * 500,
    "table": "| a | b |\n|---|---|\n" + "| 1 | `2` |\n" * 600 + "\nafter\n",
    "wide table": "|a" * 60 + "|\n" + "|-" * 60 + "|\n" + "|\n" * 600,
    "definitions": "".join(f"[l{n}]: /{n}\n" for n in range(800)) + "\n[l7] [l799]",
    "brackets": "[" * 2500,
    "after a fence": "```\nx\n```\n\n\n[a]: /b\n\n" + "w " * 7000,
    "fence in a list": "- a\n\n  ```\n" + "  code\n\n" * 700,
    "spaces": " " * 30_000 + "x",
}


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("size", [997, 16_384])
def test_where_a_text_without_end_is_cut_does_not_depend_on_its_pieces(text: str, size: int) -> None:
    assert fed(text[at : at + size] for at in range(0, len(text), size)) == fed([text])


@settings(MANY, max_examples=10)
@given(st.sampled_from(list(ENDLESS.values())), st.lists(st.integers(0, 20_000), max_size=12), DOCUMENTS, DOCUMENTS)
def test_nor_on_what_stands_around_it(endless: str, cuts: list[int], before: str, after: str) -> None:
    text = before + endless[:15_000] + after
    assert fed(in_pieces(text, cuts)) == segments(text)


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_no_more_than_the_limit_is_parsed_at_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights: list[int] = []
    parse = PARSER.parse

    def weighed(text: str, env: dict[str, Any]) -> list[MarkdownToken]:
        weights.append(weight(text))
        return parse(text, env)

    monkeypatch.setattr(PARSER, "parse", weighed)
    segments(text)
    assert max(weights) <= LIMIT


def test_a_table_that_is_cut_goes_on_as_a_table_with_its_head() -> None:
    parts = segments(ENDLESS["table"])
    assert len(parts) > 3
    texts = [part for part in parts if isinstance(part, TextSegment)]
    assert [part.kind for part in texts] == ["table"] * (len(parts) - 1) + ["paragraph"]
    assert all("<th>a</th>" in part.html for part in texts[:-1])
    assert sum(part.html.count("<code>2</code>") for part in texts) == 600


def test_a_list_that_is_cut_loses_no_item() -> None:
    parts = [part for part in segments(ENDLESS["list"]) if isinstance(part, TextSegment)]
    assert {part.kind for part in parts} == {"list"}
    assert sum(part.html.count("<li>item [a]</li>") for part in parts) == 800


@pytest.mark.parametrize("opening", ["```py\n", "~~~~ py x\n", "  ```py\n"])
@pytest.mark.parametrize("closing", ["", "\n```\n\nafter", "\n~~~~\n\nafter"])
def test_long_code_comes_in_pieces_that_join_to_the_code(opening: str, closing: str) -> None:
    code = "\n".join([*("x = 1" for _ in range(250)), "", "long " * 3000, "", "", "# " + "👩‍🚀" * 2000])
    parts = fed(in_pieces(opening + code + closing, range(0, 30_000, 777)))
    pieces = [part for part in parts if isinstance(part, CodeSegment)]
    if opening.strip()[0] == closing.strip()[:1] or not closing:
        assert joined(pieces) == code
    assert joined(pieces).startswith(code)
    assert len(pieces) >= 6
    assert [piece.starts for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(len(piece.code) <= CODE_PIECE and piece.code.count("\n") < LINES for piece in pieces)
    assert {piece.language for piece in pieces} == {"py"}


def test_code_that_is_only_indented_is_cut_in_the_same_way() -> None:
    parts = segments("    x\n" * 250)
    assert [part.code.count("\n") for part in parts if isinstance(part, CodeSegment)] == [99, 99, 49]


@pytest.mark.parametrize("text", [">" * 500 + " deep", "> " * 500 + "deep", "- " * 500 + "deep"])
def test_nothing_is_lost_however_deep_it_is_nested(text: str) -> None:
    (part,) = segments(text)
    assert "deep" in plain_text(part)


def test_nothing_is_lost_below_a_list_nested_200_deep() -> None:
    parts = segments("".join("  " * level + f"- level{level}\n" for level in range(200)) + "\nafter\n")
    text = "\n".join(plain_text(part) for part in parts)
    assert all(f"level{level}" in text for level in range(200))
    assert text.endswith("after")


def test_short_rows_of_a_wide_table_are_not_filled_up_without_end() -> None:
    """Two kilobytes of Markdown would be 40,000 cells."""
    html = "".join(part.html for part in segments(ENDLESS["wide table"]) if isinstance(part, TextSegment))
    assert html.count("<td></td>") < 1000


@given(st.text("[|*-\n <&x1. `", max_size=200), st.integers(0, 200), st.integers(0, 200))
def test_a_part_of_a_text_never_weighs_more(text: str, start: int, end: int) -> None:
    """Which is what makes the place of a cut independent of the pieces."""
    start = text.rfind("\n", 0, start) + 1
    assert weight(text[start:end]) <= weight(text)
    assert weight(text[: window_end(text, 50)]) <= 50 or window_end(text, 50) == 1


WRITTEN = st.lists(
    st.one_of(
        st.text("ab \n\r\u0301\u200d", max_size=30),
        st.sampled_from(["👩‍🚀", "👍🏽", "🇩🇪", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "각", "\u1100\u1161\u11a8", "\r\n", "नि"]),
        st.sampled_from(["x" * 1500, "y " * 900, "\n" * 70]),
    ),
    max_size=40,
).map("".join)


@MANY
@given(WRITTEN)
def test_what_a_person_wrote_comes_in_pieces_that_join_to_it(text: str) -> None:
    pieces = plain_segments(text)
    assert joined(pieces) == text
    at = 0
    characters = QTextBoundaryFinder(QTextBoundaryFinder.BoundaryType.Grapheme, text)
    for piece in pieces:
        assert len(piece.text + piece.cut) > 0
        assert len(piece.text) <= PIECE
        assert len(piece.text.splitlines()) <= LINES or "\r" in piece.text
        at += len(piece.text)
        for place in (at, at + len(piece.cut)):
            characters.setPosition(len(text[:place].encode("utf-16-le")) // 2)
            assert characters.isAtBoundary()
        at += len(piece.cut)


def test_a_long_line_is_cut_after_a_space() -> None:
    pieces = plain_segments("word " * 2000)
    assert [piece.text[-5:] for piece in pieces] == ["word "] * len(pieces)
    assert plain_segments("a\r\nb\n") == [PlainSegment("a\r\nb\n")]
    assert plain_segments("") == []


@settings(MANY, max_examples=150, derandomize=True)
@given(DOCUMENTS)
def test_plain_text_is_what_qt_says(qapp: QApplication, text: str) -> None:
    for part in segments(text):
        if isinstance(part, TextSegment):
            document = QTextDocument()
            document.setHtml(part.html)
            assert plain_text(part) == document.toPlainText()


def test_plain_text_of_code_and_of_what_a_person_wrote_is_itself() -> None:
    assert plain_text(CodeSegment("a\n  b", "py")) == "a\n  b"
    assert plain_text(PlainSegment("<b> *c*")) == "<b> *c*"
