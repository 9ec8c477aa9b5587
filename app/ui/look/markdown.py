"""How an answer's Markdown looks: its blocks as rich text for the text view, and code with colours.

No HTML of the model's passes through, images become their descriptions, and code is coloured by Pygments.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import import_module
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock, paragraph
from markdown_it.token import Token as MarkdownToken
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound

from app.ui.look.tokens import Tokens

# Colouring much longer code thirty times a second would take longer than the pause between two drawings.
_COLOUR_LIMIT = 20_000

# Rows shorter than their table's head are filled up with empty cells. The parser makes up to 65,536 of them, which
# takes half a second and Qt far longer.
_FILLED_CELLS = 256

# A list in a list in a list is six levels deep, a quote in a quote two.
_DEEPEST = 18

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


def _deep(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    return state.level >= _DEEPEST and paragraph(state, start_line, end_line, silent)


PARSER = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
# The parser drops what lies deeper than it goes, which is 20 levels; before that, blocks are text as it was written.
PARSER.block.ruler.before("table", "deep", _deep)
vars(import_module("markdown_it.rules_block.table"))["MAX_AUTOCOMPLETED_CELLS"] = _FILLED_CELLS
PARSER.add_render_rule("image", _image)
PARSER.add_render_rule("link_open", _link_open)
PARSER.add_render_rule("table_open", _table_open)
PARSER.add_render_rule("heading_open", _heading_open)
PARSER.add_render_rule("heading_close", _heading_close)


def parse(text: str, references: dict[str, Any]) -> tuple[list[MarkdownToken], dict[str, Any]]:
    """The text's blocks as tokens, and what its links may refer to: `references`, and its own definitions behind."""
    env: dict[str, Any] = {"references": dict(references)}
    tokens = PARSER.parse(text, env)
    found: dict[str, Any] = env["references"]
    return tokens, found


def render(tokens: Sequence[MarkdownToken]) -> str:
    """HTML that Qt's rich text understands."""
    html: str = PARSER.renderer.render(tokens, PARSER.options, {})
    return html.strip()


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
    table {{ border-collapse: collapse; margin: 0; }}
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
