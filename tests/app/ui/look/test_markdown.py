"""An answer is shown as what it says and can do nothing else."""

from __future__ import annotations

import re

import pytest

from app.ui.look.blocks import CodeSegment, TextSegment, segments
from app.ui.look.markdown import code_html
from app.ui.look.tokens import DARK

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src='http://example.com/a.png'>",
    "![a picture](http://example.com/a.png)",
    "![a picture][1]\n\n[1]: file:///etc/passwd",
    "<style>body { background: url(http://example.com/a.png) }</style>",
    "<link rel=stylesheet href=http://example.com/a.css>",
    "| a |\n|---|\n| <img src=x> ![b](http://example.com/b.png) |",
    "[x](javascript:alert(1))",
    "[x](file:///etc/passwd)",
    "`<img src=x>`",
    '[x](http://example.com "<img src=y>")',
]


def html_of(text: str) -> str:
    return "".join(part.html for part in segments(text) if isinstance(part, TextSegment))


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_in_an_answer_becomes_html_that_loads_or_runs(text: str) -> None:
    html = html_of(text).lower()
    tags = set(re.findall(r"<\s*/?\s*([a-z0-9]+)", html))
    assert tags <= {"p", "a", "i", "em", "strong", "code", "table", "thead", "tbody", "tr", "th", "td"}
    assert "src=" not in re.sub(r"&lt;.*?&gt;", "", html).replace("&quot;", "")
    assert not re.search(r'href="(javascript|file|vbscript):', html)


def test_a_picture_is_shown_as_its_description() -> None:
    assert "<i>a cat</i>" in html_of("![a cat](http://example.com/cat.png)")


def test_code_blocks_stand_on_their_own_between_texts() -> None:
    parts = segments("Before\n\n```python\nx = 1\n```\n\nAfter")
    assert [type(part) for part in parts] == [TextSegment, CodeSegment, TextSegment]
    assert parts[1] == CodeSegment("x = 1", "python")


def test_a_code_block_still_being_written_is_one_already() -> None:
    assert segments("```py\nx = ")[-1] == CodeSegment("x = ", "py")


def test_code_is_coloured_and_escaped() -> None:
    html = code_html("def f(): return '<b>'", "python", DARK)
    assert DARK.code_keyword in html
    assert "<b>" not in html


@pytest.mark.parametrize("language", ["", "no-such-language", "<img>"])
def test_code_in_an_unknown_language_is_plain(language: str) -> None:
    assert code_html("a < b", language, DARK) == "<pre>a &lt; b</pre>"


def test_an_empty_answer_has_no_segments() -> None:
    assert segments("") == []
