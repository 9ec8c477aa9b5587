"""Chat templates, run so that a hostile one can't hold the app up.

A chat template is a Jinja program that comes with a model. transformers runs it in Jinja's sandbox, which keeps it from
files and from Python's insides, but not from looping for ever or from filling the memory, and a single expression
(10 ** 10 ** 10) may take a thread with it that nothing can stop. Here the same programs give the same text, and
everything that can cost much is counted before it is done: characters made, list items looked at, turns of loops.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from app.models.disguise import joined

_MAX_TEMPLATE = 300_000  # characters; the longest in use have some 30,000
_SECONDS = 1.0  # of computing; usual is a thousandth
_WORK = 100_000_000  # characters and items, and as many again for each ...
_WORK_PER_CHARACTER = 100  # ... of the conversation
_MAX_NUMBER = 10_000  # that says how large something is to be
_MAX_BITS = 4096  # of whole numbers
# Filters that chat templates have no use for, and whose cost can't be told from the size of what they get.
_UNUSED_FILTERS = ("forceescape", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
_SIZED = (str, bytes, list, tuple, set, frozenset, dict)
# Filters whose cost has nothing to do with what is in the items of a list; those of all others may have.
_SHALLOW_FILTERS = (
    "attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "reject", "rejectattr",
    "reverse", "select", "selectattr", "slice",
)  # fmt: skip
_COMPARISONS = ("==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", "ge", ">=", "<", "lt", "lessthan", "<=",
                "le", "in")  # fmt: skip
# Functions whose cost is the product of their arguments' lengths, or of a text's length and a number.
_PRODUCTS = ("join", "strip", "lstrip", "rstrip", "trim", "rfind", "rindex", "rsplit", "rpartition")
# Those that make something as large as they are told to.
_NUMBERED = (
    "batch", "center", "expandtabs", "indent", "ljust", "rjust", "round", "slice", "to_bytes", "tojson", "zfill",
)  # fmt: skip
_TIMES = ("indent", "expandtabs", "tojson")
_WIDE = re.compile(r"\d{5}|\*|\{[^{}]*\{")  # in a format: a large width, or one that comes from elsewhere


class ChatTemplateError(Exception):
    """A chat template doesn't work, or doesn't take the conversation; the message says why, in a few words."""


class _LimitError(Exception):
    """A template does more than any chat template needs."""


class ChatTemplate:
    """A chat template, ready to run. May be used from one thread at a time.

    Args:
        text: The program.
        special: Names that it may use, such as "bos_token".

    Raises:
        ChatTemplateError: the program can't be understood.
    """

    def __init__(self, text: str, special: Mapping[str, str]) -> None:
        if len(text) > _MAX_TEMPLATE:
            raise ChatTemplateError(f"it has {len(text):,} characters; {_MAX_TEMPLATE:,} is the most that is taken")
        self._special = dict(special)
        self._environment = _Environment()
        try:
            self._template = self._environment.from_string(text)
        except Exception as error:  # a program somebody sent; constants in it are computed here
            raise _failed(error) from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **values: Any
    ) -> str:
        """The text of a conversation.

        Raises:
            ChatTemplateError: the program failed, refused the conversation, or took more than it may.
        """
        chat = [dict(message) for message in messages]
        meter = self._environment.meter
        meter.start(sum(len(str(value)) for message in chat for value in message.values()))
        given = {"tools": None, "documents": None, **self._special, **values}
        pieces = []
        try:
            for piece in self._template.generate(messages=chat, add_generation_prompt=add_generation_prompt, **given):
                meter.charge(len(piece))
                pieces.append(piece)
        except Exception as error:  # a program somebody sent may raise anything
            raise _failed(error) from error
        return "".join(pieces)


def _failed(error: Exception) -> ChatTemplateError:
    words = " ".join(str(error).split())[:300] or type(error).__name__
    return ChatTemplateError(words.removesuffix("."))


class _Meter:
    """What a template may still do."""

    def __init__(self) -> None:
        self.start(0)

    def start(self, n_characters: int) -> None:
        self._left = _WORK + _WORK_PER_CHARACTER * n_characters
        self._end = time.thread_time() + _SECONDS

    def charge(self, work: int) -> None:
        self._left -= 1 + work
        if self._left < 0 or time.thread_time() > self._end:
            raise _LimitError("it does far more than a chat template needs to")

    def extent(self, value: Any) -> int:
        """Characters of a text, items of a list: what it costs to make one like it."""
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise _LimitError("it computes with enormous numbers")
        return len(value) if isinstance(value, _SIZED) else 1

    def whole_extent(self, value: Any) -> int:
        """The same with all that is in a list, which counts as often as it occurs: what it costs to write or compare.

        Lists that hold lists twice, which hold lists twice ... are soon more than can be counted, so that is charged.
        """
        total = self.extent(value)
        if isinstance(value, Mapping):
            inside: Iterable[Any] = (part for pair in value.items() for part in pair)
        elif isinstance(value, list | tuple | set | frozenset):
            inside = value
        else:
            return total
        for part in inside:
            self.charge(0)
            total += self.whole_extent(part)
        return total


class _Counted(NodeTransformer):
    """Sends through the environment what Jinja would compute by itself."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_turns")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "_whole")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "_whole")
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _filtered(node.key, "_whole")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        joined = nodes.List(node.nodes, lineno=node.lineno)
        return _filtered(joined, "_joined")


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(jinja2.ext.Extension):
    """The block by which templates mark, for training, what the model said: its text is written as it is."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class _Namespace(jinja2.utils.Namespace):
    """Jinja's, without names that lead into Python's insides."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that a template may have a value called `self`
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        jinja2.utils.Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja as transformers sets it up for chat templates, with a meter at all that can cost much."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        self.meter = _Meter()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
            finalize=self._whole,
            cache_size=0,
        )
        self.concat = self._concat  # type: ignore[method-assign]  # what blocks and macros join their pieces with
        for name in _UNUSED_FILTERS:
            self.filters.pop(name, None)
        self.filters["tojson"] = _tojson
        for name, function in dict[str, Any](self.filters).items():
            self.filters[name] = self._metered(name, function, whole=name not in _SHALLOW_FILTERS)
        for name, function in dict[str, Any](self.tests).items():
            self.tests[name] = self._metered(name, function, whole=name in _COMPARISONS)
        self.filters |= {"_turns": self._turns, "_whole": self._whole, "_joined": self._joined}
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": strftime_now,
            "namespace": _Namespace,
            "dict": _dict,
        }
        for name in ("lipsum", "cycler", "joiner"):
            self.globals.pop(name, None)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Counted().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        work = self.meter.extent(left) + self.meter.extent(right)
        if isinstance(left, int) and isinstance(right, int):
            if operator == "**" and left.bit_length() * abs(right) > _MAX_BITS:
                raise _LimitError("it computes with enormous numbers")
        elif operator == "*":
            # A text or list so many times; the number may come first.
            work *= max([1, *(value for value in (left, right) if isinstance(value, int))])
        elif operator == "%" and isinstance(left, str | bytes):
            _check_format(left)
            work += self.meter.whole_extent(right) * str(left).count("%")
        self.meter.charge(work)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # Named so, as in Jinja, that a template's own arguments may have any name.
        name, owner = getattr(__obj, "__name__", ""), getattr(__obj, "__self__", None)
        args = tuple(map(_settled, args))
        given = [*args, *kwargs.values()]
        if isinstance(owner, str | bytes):
            __self._charge_for(name, [owner, *given], whole=name == "join")
        elif name in ("index", "count"):  # of a list: where something is, and how often
            __self._charge_for(name, [owner, *given], whole=True)
        else:
            # What is given by name becomes a value; the rest may become a key, whose cost is that of all in it.
            __self._charge_for(name, args, whole=not isinstance(__obj, Macro))
            __self._charge_for(name, list(kwargs.values()), whole=False)
        result = super().call(__context, __obj, *args, **kwargs)
        __self.meter.charge(__self.meter.extent(result))
        return result

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, str | int | slice):
            self.meter.charge(self.meter.whole_extent(argument))
        result = super().getitem(obj, argument)
        if isinstance(argument, slice):
            self.meter.charge(self.meter.extent(result))
        return result

    def wrap_str_format(self, value: Any) -> Any:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = value.__self__
        _check_format(text)

        def metered(*args: Any, **kwargs: Any) -> str:
            self.meter.charge(len(text) + self.meter.whole_extent([args, kwargs]) * text.count("{"))
            made: str = wrapped(*args, **kwargs)
            return made

        return metered

    def _metered(self, name: str, function: Callable[..., Any], *, whole: bool) -> Callable[..., Any]:
        """A filter or test that is charged for what it gets, and for what it gives."""
        # Jinja puts a context, or itself, before the arguments of functions that are marked so.
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        def metered(*args: Any, **kwargs: Any) -> Any:
            args = tuple(map(_settled, args))
            self._charge_for(name, [*args[first:], *kwargs.values()], whole=whole)
            result = function(*args, **kwargs)
            self.meter.charge(self.meter.extent(result))
            return result

        if first:
            metered.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
        return metered

    def _charge_for(self, name: str, values: Sequence[Any], *, whole: bool) -> None:
        """Charge for the most that a function may cost by what it gets."""
        sizes = [self.meter.whole_extent(value) if whole else self.meter.extent(value) for value in values]
        numbers = [abs(value) for value in values if isinstance(value, int)] if name in _NUMBERED else []
        if max(numbers, default=0) > _MAX_NUMBER:
            raise _LimitError("it asks for something enormous")
        work = sum(sizes) + sum(numbers)
        if name == "sum":  # of lists: each is copied as often as there are others behind it
            work = work**2
        elif name == "replace" and len(sizes) > 2:
            work += (sizes[0] + 1) // max(1, sizes[1]) * sizes[2]
        elif name in _PRODUCTS and sizes:
            work += sizes[0] * max(sizes[1:], default=1)
        elif name in _TIMES and sizes:
            work += sizes[0] * max(numbers, default=1)
        elif name == "translate":
            raise _LimitError("it translates characters")
        elif name in ("format", "strftime_now") and values and isinstance(values[0], str):
            _check_format(values[0])
        self.meter.charge(work)

    def _turns(self, values: Any) -> _Turns:
        return _Turns(values, self.meter)

    def _whole(self, value: Any) -> Any:
        self.meter.charge(self.meter.whole_extent(value))
        return value

    def _joined(self, values: Sequence[Any]) -> str:
        self._whole(values)
        return joined(map(str, values))

    def _concat(self, pieces: Iterable[str]) -> str:
        pieces = list(pieces)
        self.meter.charge(sum(map(len, pieces)))
        return joined(pieces)


class _Turns:
    """A loop's values, each charged for when its turn comes."""

    def __init__(self, values: Iterable[Any], meter: _Meter) -> None:
        self._values = values
        self._meter = meter

    def __len__(self) -> int:
        return len(self._values)  # type: ignore[arg-type]  # where it has none, Jinja takes all the values first

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self._meter.charge(10)
            yield value


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace can't hold {name!r}")


def _check_format(text: str | bytes) -> None:
    if _WIDE.search(text if isinstance(text, str) else text.decode("latin-1")):
        raise _LimitError("it asks for something enormous")


def _settled(value: Any) -> Any:
    """A list of what is still to be computed, so that its size can be told."""
    return list(value) if isinstance(value, Iterator) else value


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def strftime_now(text: str) -> str:
    return datetime.now().strftime(text)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
