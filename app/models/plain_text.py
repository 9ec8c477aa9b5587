"""Conversations as tokens, in which only the chat template's own text makes control tokens.

A tokenizer takes the name of a control token ("<|im_end|>") for the token wherever it stands, so a message that holds
one would end its own turn and begin another role's. Here such a name in a message is text: it is cut into tokens as
the tokenizer's model cuts any other. To tell the two apart, messages go through the template in disguise (see
app/models/disguise.py); what is found of control tokens behind it is the template's. Conversations in which no message
holds such a name get exactly what the tokenizer's own `apply_chat_template` gives.

An earlier answer is a message like any other: marks around what was thought are tokens where the template writes them.
Roles that a template writes as ordinary text ("### User:", or "[INST]" where that is no token) can be typed by anyone,
and nothing here can tell them from the template's.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from app.models.disguise import Disguise

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

# Names of ordinary text: vocabularies such as Gemma's have these as tokens of their own, as they have runs of spaces.
# "s" is not one of them, since it begins and ends texts in many.
_HTML = frozenset((
    "a", "b", "blockquote", "body", "br", "caption", "code", "dd", "div", "dl", "dt", "em", "footer", "form", "h1",
    "h2", "h3", "h4", "h5", "h6", "head", "header", "hr", "html", "i", "iframe", "img", "li", "link", "meta", "nav",
    "ol", "p", "pre", "script", "section", "span", "strong", "style", "sub", "sup", "table", "tbody", "td", "tfoot",
    "th", "thead", "title", "tr", "u", "ul",
))  # fmt: skip
_BRACKETS = frozenset("<>[]{}|｜【】«»")  # names of control tokens have some, and words don't
_PROBE = " Grüße,\n\n x = 1;\t<b> 世界\n"
_MOST_GAPS = 4096  # ids without a token, each of which is filled
_MOST_TRIES = 8


class PlainTextError(Exception):
    """A text can't be told from a control token, whatever is done."""


def chat_tokens(tokenizer: Any, turns: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> list[int]:
    """The tokens of a conversation.

    Args:
        tokenizer: mlx-lm's, or one like it.
        turns: Messages, each with a "role" and its "content".
        add_generation_prompt: Whether an answer is to follow.

    Raises:
        PlainTextError: A message holds what no cutting makes text.
    """
    contents = [turn["content"] for turn in turns]
    controls = _controls_of(tokenizer)
    if controls is not None and controls.may_be_in(contents):
        disguise = controls.disguise(contents)
        hidden = [{**turn, "content": disguise.of(turn["content"])} for turn in turns]
        written = tokenizer.apply_chat_template(hidden, add_generation_prompt=add_generation_prompt, tokenize=False)
        written = str.__str__(written)  # not a text in disguise any more, but what it is made of
        if controls.are_typed(contents, written, disguise):
            return controls.encode(tokenizer, written, disguise)
    tokens: list[int] = tokenizer.apply_chat_template(
        [dict(turn) for turn in turns], add_generation_prompt=add_generation_prompt
    )
    return tokens


def text_tokens(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text that somebody, or a model, wrote.

    Raises:
        PlainTextError: It holds what no cutting makes text.
    """
    controls = _controls_of(tokenizer)
    if controls is not None and controls.may_be_in([text]):
        disguise = controls.disguise([text])
        if controls.are_typed([text], disguise.hide(text), disguise):
            return controls.encode(tokenizer, disguise.hide(text), disguise)
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


_known: WeakKeyDictionary[Any, _Controls | None] = WeakKeyDictionary()


def _controls_of(tokenizer: Any) -> _Controls | None:
    """The tokenizer's control tokens; None where it finds none in texts."""
    if tokenizer not in _known:
        added = getattr(tokenizer, "added_tokens_decoder", None) or {}
        ends = set(getattr(tokenizer, "eos_token_ids", None) or ())
        template = getattr(tokenizer, "chat_template", None)
        template = template if isinstance(template, str) else ""
        control = {
            str(token): number
            for number, token in added.items()
            if _is_control(str(token), token.special or number in ends, template)
        }
        _known[tokenizer] = _Controls(tokenizer, added, control, template) if control else None
    return _known[tokenizer]


def _is_control(name: str, special: bool, template: str) -> bool:
    """Whether a token that is found in texts means more than its letters, as a template uses it.

    Others are found in texts, too, only to be one token: runs of spaces, HTML's tags, letters. Messages are full of
    them, so they stay what they are.
    """
    if not name or name.isspace():
        return False
    if special:
        return True
    if len(name) == 1 or name.isalnum():
        return False
    is_html = name[0] == "<" and name[-1] == ">" and name[1:-1].removeprefix("/").lower() in _HTML
    return name in template or (not is_html and not _BRACKETS.isdisjoint(name))


class _Controls:
    """The control tokens of a tokenizer, and how to keep them out of texts.

    Args:
        added: All tokens that the tokenizer finds in texts before it does anything else, by id.
        control: The names among them that no message may have as tokens, and their ids.
        template: The chat template, where it is a text.
    """

    def __init__(self, tokenizer: Any, added: Mapping[int, Any], control: Mapping[str, int], template: str) -> None:
        self._names = list(control)
        self._ids = control
        self._added = added
        self._taken = frozenset().union(template, *control)
        self._unknown = getattr(tokenizer, "unk_token_id", None)
        backend = _backend(tokenizer)
        self._normalizer = backend.normalizer if backend is not None else None
        if not any(token.normalized for token in added.values() if str(token) in control):
            self._normalizer = None
        known = {name: which for which, name in enumerate(control)}  # some by more than one name
        if self._normalizer is not None:
            known = {self._normalized(name): which for name, which in known.items()} | known
        self._finder = _Finder(known, {str(token) for token in added.values() if token.single_word})
        # A name has both of its ends in the message where the whole of it has: a template that writes one end, a
        # message, and the other end is none.
        self._ends = sorted({end for name in control for end in (name.strip()[0], name.strip()[-1])})
        self._backend = backend
        self._encoder: _Encoder | None = None

    def may_be_in(self, contents: Sequence[str]) -> bool:
        """Whether messages may hold a name, or the beginning or end of one. Quick, and never wrongly False."""
        if self._normalizer is not None:
            return True
        return any(end in content for content in contents for end in self._ends)

    def disguise(self, contents: Sequence[str]) -> Disguise:
        return Disguise(self._ends, [*contents, self._taken])

    def are_typed(self, contents: Sequence[str], written: str, disguise: Disguise) -> bool:
        """Whether a name is in a message, or stands in the whole only because of one.

        Args:
            contents: The messages.
            written: What became of them, in disguise.
        """
        if any(self._finder.spans(content) for content in contents):
            return True
        if self._normalizer is not None and any(self._finder.spans(self._normalized(text)) for text in contents):
            return True
        return self._finder.spans(disguise.reveal(written)) != self._finder.spans(written)

    def encode(self, tokenizer: Any, written: str, disguise: Disguise) -> list[int]:
        """The tokens of a text in disguise: names in what is not disguised are tokens, all else is text."""
        pieces, at = [], 0
        for start, end, which in self._finder.spans(written):
            pieces += [disguise.reveal(written[at:start]), _mark(disguise.spare, which)]
            at = end
        marked = "".join([*pieces, disguise.reveal(written[at:])])
        if self._encoder is None and self._backend is not None and _n_gaps(self._backend) > _MOST_GAPS:
            self._backend = None
        if self._backend is None:
            return self._encode_in_pieces(tokenizer, marked, disguise.spare)
        if self._encoder is None or self._encoder.spare != disguise.spare:
            self._encoder = _Encoder(self._backend, self._added, self._ids, self._unknown, disguise.spare)
        return self._encoder.encode(marked)

    def _encode_in_pieces(self, tokenizer: Any, marked: str, spare: str) -> list[int]:
        """With a tokenizer of which nothing is known: names in texts are taken apart into characters."""
        pieces, at = [], 0
        for start, end, _ in self._finder.spans(marked):
            pieces += [(marked[at:start], False), *((letter, True) for letter in marked[start:end])]
            at = end
        tokens: list[int] = []
        letters: dict[str, list[int]] = {}
        for piece, taken_apart in [*pieces, (marked[at:], False)]:
            if not taken_apart:
                tokens += tokenizer.encode(self._unmarked(piece, spare), add_special_tokens=False) if piece else []
                continue
            if piece not in letters:
                letters[piece] = list(tokenizer.encode(piece, add_special_tokens=False))
                if (set(self._ids.values()) - {self._unknown}).intersection(letters[piece]):
                    raise PlainTextError(f"the tokenizer can't write {piece!r} as text")
            tokens += letters[piece]
        return tokens

    def _unmarked(self, marked: str, spare: str) -> str:
        parts = marked.split(spare)  # the marks' insides are every second one
        parts[1::2] = [self._names[int(which)] for which in parts[1::2]]
        return "".join(parts)

    def _normalized(self, text: str) -> str:
        assert self._normalizer is not None
        normalized: str = self._normalizer.normalize_str(text)
        return normalized


class _Finder:
    """Finds names in texts, the leftmost ones first and the longest of those, as tokenizers do.

    Args:
        names: What is looked for, and the number of each.
        words: Those that are no names within a word.
    """

    def __init__(self, names: Mapping[str, int], words: Container[str]) -> None:
        from tokenizers import AddedToken, Tokenizer, models

        self._which = [-1, *names.values()]
        self._tokenizer = Tokenizer(models.WordLevel({"": 0}, unk_token=""))  # all that is no name is its only token
        self._tokenizer.add_tokens([AddedToken(name, single_word=name in words, normalized=False) for name in names])

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Where names are: begin, end, and the name's number."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return [(*span, self._which[token]) for span, token in zip(found.offsets, found.ids, strict=True) if token]


class _Encoder:
    """A tokenizer with the same model that knows control tokens by other names than everybody does.

    Args:
        backend: The tokenizer. Its model is shared: it may be large.
        added: All tokens that it finds in texts, by id.
        control: Names and ids of those that get other names.
        unknown: The id of what the model has no token for.
        spare: A character that is in no text.
    """

    def __init__(
        self,
        backend: Tokenizer,
        added: Mapping[int, AddedToken],
        control: Mapping[str, int],
        unknown: int | None,
        spare: str,
    ) -> None:
        from tokenizers import AddedToken, Tokenizer

        self.spare = spare
        self._control = {number: name for name, number in control.items()}
        self._unknown = unknown
        self._tokenizer = Tokenizer(backend.model)
        if backend.normalizer is not None:
            self._tokenizer.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            self._tokenizer.pre_tokenizer = backend.pre_tokenizer
        # New tokens get numbers from the vocabulary's size on, which some of its own tokens have where others lack.
        gaps = [_mark(spare, f"gap {i}") for i in range(_n_gaps(backend))]
        order = {name: which for which, name in enumerate(control)}
        names = {number: str(token) for number, token in added.items()}
        names |= {number: _mark(spare, order[name]) for number, name in names.items() if name in control}
        self._tokenizer.add_tokens(
            [
                *(AddedToken(name, normalized=False) for name in [*gaps, _mark(spare, "cut")]),
                *(self._renamed(token, names[number]) for number, token in sorted(added.items())),
            ]
        )
        self._cut = self._tokenizer.token_to_id(_mark(spare, "cut"))
        self._numbers = {self._tokenizer.token_to_id(name): number for number, name in names.items()}

    def _renamed(self, token: AddedToken, name: str) -> AddedToken:
        """The same token under a name by which it is found where the old one was."""
        from tokenizers import AddedToken

        normalizer = self._tokenizer.normalizer
        is_mark = name != str(token)
        return AddedToken(
            name,
            single_word=token.single_word and not is_mark,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            # A normalizer that puts a space before texts puts one before names, too, which a mark need not have.
            normalized=token.normalized
            and not (is_mark and normalizer is not None and normalizer.normalize_str(name) != name),
        )

    def encode(self, marked: str) -> list[int]:
        """The tokens of a text with marks where control tokens are to be."""
        for _ in range(_MOST_TRIES):
            encoded = self._tokenizer.encode(marked, add_special_tokens=False)
            ids = encoded.ids
            forged = self._forged(ids, encoded, marked)
            if not forged:
                return [self._numbers.get(token, token) for token in ids if token != self._cut]
            # A model may have the name of a control token among its words, as Unigram ones do.
            pieces, at = [], 0
            for start, end in forged:
                if start >= at:
                    pieces += [marked[at:start], _mark(self.spare, "cut").join(marked[start:end])]
                    at = end
            marked = "".join([*pieces, marked[at:]])
        raise PlainTextError("the tokenizer can't write the name of one of its control tokens as text")

    def _forged(self, ids: list[int], encoded: Any, marked: str) -> list[tuple[int, int]]:
        """Where the model made control tokens of text."""
        made = [i for i, token in enumerate(ids) if token in self._control and token not in self._numbers]
        if not made:
            return []
        offsets = encoded.offsets  # made anew each time
        spans = [(ids[i], *offsets[i]) for i in made]
        return [
            (start, end)
            for token, start, end in spans
            if token != self._unknown or self._control[token] in marked[start:end]
        ]


def _mark(spare: str, what: object) -> str:
    return f"{spare}{what}{spare}"


def _n_gaps(backend: Tokenizer) -> int:
    """Numbers below the vocabulary's last that are no token's."""
    numbers = backend.get_vocab(with_added_tokens=False).values()
    return max(numbers, default=-1) + 1 - len(numbers)


def _backend(tokenizer: Any) -> Tokenizer | None:
    """The tokenizer of the tokenizers package that does all of the work, if that is how this one works."""
    from tokenizers import Tokenizer

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return None
    same = backend.encode(_PROBE, add_special_tokens=False).ids == tokenizer.encode(_PROBE, add_special_tokens=False)
    return backend if same else None
