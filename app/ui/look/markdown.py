"""An answer's Markdown as a list of segments: rich text for the text view, and code blocks to be shown on their own.

No HTML of the model's passes through, images become their descriptions, and code is coloured by Pygments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token as MarkdownToken
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound

from app.ui.look.tokens import Tokens

# Colouring much longer code thirty times a second would take longer than the pause between two drawings.
_COLOUR_LIMIT = 20_000

_CODE_COLOURS: dict[_TokenType, str] = {
    Comment: "code_comment",
    String: "code_string",
    Number: "code_number",
    Keyword: "code_keyword",
    Operator.Word: "code_keyword",
    Name.Function: "code_name",
    Name.Class: "code_name",
    Name.Decorator: "code_name",
    Name.Tag: "code_name",
}


@dataclass(frozen=True, slots=True)
class TextSegment:
    html: str


@dataclass(frozen=True, slots=True)
class CodeSegment:
    code: str
    language: str


Segment = TextSegment | CodeSegment


def _image(self: RendererHTML, tokens: Sequence[MarkdownToken], index: int, options: Any, env: Any) -> str:
    return f"<i>{escape(tokens[index].content or 'image')}</i>"


def _link_open(self: RendererHTML, tokens: Sequence[MarkdownToken], index: int, options: Any, env: Any) -> str:
    # Without the link's title: Qt shows that as a tooltip, takes it for HTML and loads the files it names.
    return f'<a href="{escape(str(tokens[index].attrGet("href") or ""))}">'


def _table_open(self: RendererHTML, tokens: Sequence[MarkdownToken], index: int, options: Any, env: Any) -> str:
    # Qt's rich text takes a table's lines and padding from attributes of the table.
    return '<table cellspacing="0" cellpadding="6" width="100%">'


def _heading_open(self: RendererHTML, tokens: Sequence[MarkdownToken], index: int, options: Any, env: Any) -> str:
    # Qt's rich text enlarges h1 to h6 by its own measure on top of the style; a paragraph with a class it leaves alone.
    return f'<p class="{tokens[index].tag}">'


def _heading_close(self: RendererHTML, tokens: Sequence[MarkdownToken], index: int, options: Any, env: Any) -> str:
    return "</p>"


_PARSER = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
_PARSER.add_render_rule("image", _image)
_PARSER.add_render_rule("link_open", _link_open)
_PARSER.add_render_rule("table_open", _table_open)
_PARSER.add_render_rule("heading_open", _heading_open)
_PARSER.add_render_rule("heading_close", _heading_close)


def segments(text: str) -> list[Segment]:
    """Split an answer at its top-level code blocks; text between them is HTML that Qt's rich text understands."""
    found: list[Segment] = []
    run: list[MarkdownToken] = []

    def flush() -> None:
        if run:
            found.append(TextSegment(_PARSER.renderer.render(run, _PARSER.options, {}).strip()))
            run.clear()

    for token in _PARSER.parse(text):
        if token.level == 0 and token.type in ("fence", "code_block"):
            flush()
            language = token.info.split()[0] if token.info.split() else ""
            found.append(CodeSegment(token.content.rstrip("\n"), language))
        else:
            run.append(token)
    flush()
    return found


def document_css(tokens: Tokens, base_px: int) -> str:
    """The style of text segments."""
    heading = f"color: {tokens.text}; font-weight: 600;"
    return f"""
    body, p, li, td, th {{ color: {tokens.text}; line-height: 128%; }}
    p {{ margin-top: 0; margin-bottom: 12px; }}
    .h1 {{ {heading} font-size: {base_px + 5}px; margin-top: 16px; margin-bottom: 8px; }}
    .h2 {{ {heading} font-size: {base_px + 3}px; margin-top: 16px; margin-bottom: 8px; }}
    .h3, .h4, .h5, .h6 {{ {heading} font-size: {base_px + 1}px; margin-top: 12px; margin-bottom: 6px; }}
    ul, ol {{ margin-top: 0; margin-bottom: 12px; }}
    li {{ margin-bottom: 4px; }}
    li p {{ margin-bottom: 4px; }}
    blockquote {{ margin-left: 16px; margin-right: 16px; }}
    blockquote p {{ color: {tokens.text2}; }}
    code, pre {{ font-family: "{tokens.mono}"; font-size: {base_px - 1}px; background-color: {tokens.code_bg}; }}
    table {{ border-collapse: collapse; margin-top: 8px; margin-bottom: 16px; }}
    th {{ font-weight: 600; text-align: left; border-bottom: 1px solid {tokens.text3}; }}
    td {{ border-bottom: 1px solid {tokens.hairline}; }}
    a {{ color: {tokens.link}; text-decoration: none; }}
    """


def code_html(code: str, language: str, tokens: Tokens) -> str:
    """The code with colours, as one preformatted block."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False) if language else None
    except ClassNotFound:
        lexer = None
    if lexer is None or len(code) > _COLOUR_LIMIT:
        return f"<pre>{escape(code)}</pre>"
    parts = []
    for kind, value in lexer.get_tokens(code):
        colour = _code_colour(kind, tokens)
        parts.append(f'<span style="color:{colour}">{escape(value)}</span>' if colour else escape(value))
    return f"<pre>{''.join(parts)}</pre>"


def _code_colour(kind: _TokenType, tokens: Tokens) -> str:
    """The colour of a token type, or of the nearest type above it that has one; empty for plain text."""
    found: _TokenType | None = kind
    while found is not None:
        if found in _CODE_COLOURS:
            return str(getattr(tokens, _CODE_COLOURS[found]))
        found = found.parent
    return ""
