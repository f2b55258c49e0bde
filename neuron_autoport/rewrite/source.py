"""The source of one `forward` as a concrete syntax tree, found by the spans of a trace.

The function is parsed with libcst inside a one-line class, so that its indentation stands as in the file and
lines and columns translate by a constant. All edits of a function are gathered and applied in one pass;
comments and layout of what is not edited survive.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from neuron_autoport.rewrite.nodes import Kinds, NodesByKind, parents_in
from neuron_autoport.trace.ops import Op
from neuron_autoport.trace.spans import Span

Range = tuple[int, int, int, int]


class NoSource(Exception):
    """The source of a forward cannot be had or parsed."""


def _joined(
    one: dict[cst.CSTNode, list[str]], other: dict[cst.CSTNode, list[str]]
) -> dict[cst.CSTNode, list[str]]:
    return {k: [*one.get(k, []), *other.get(k, [])] for k in {**one, **other}}


@dataclass
class Edits:
    """What to change in one function; nodes are those of one `ForwardSource`.

    settled: conditions that have one value for every module the trace holds for; only that branch stays.
    unwrapped: expressions of which only a part stays in their place, and that part.
    quoted: expressions that stand in the new text as they are, with what was changed in them before.
    """

    replaced: dict[cst.CSTNode, str] = field(default_factory=dict)
    inserted: dict[cst.CSTNode, list[str]] = field(default_factory=dict)
    removed: set[cst.CSTNode] = field(default_factory=set)
    comments: dict[cst.CSTNode, list[str]] = field(default_factory=dict)
    settled: dict[cst.If | cst.IfExp, bool] = field(default_factory=dict)
    unwrapped: dict[cst.CSTNode, cst.BaseExpression] = field(default_factory=dict)
    quoted: set[cst.CSTNode] = field(default_factory=set)

    def merged(self, other: Edits) -> Edits:
        """Both together; they touch different expressions."""
        return Edits(
            {**self.replaced, **other.replaced},
            _joined(self.inserted, other.inserted),
            self.removed | other.removed,
            _joined(self.comments, other.comments),
            {**self.settled, **other.settled},
            {**self.unwrapped, **other.unwrapped},
            self.quoted | other.quoted,
        )


class ForwardSource:
    """Syntax tree of a forward.

    Args:
        owner: class of the forward, where methods it calls are looked up.
        reads: values of the module's attributes the trace holds for, by name.

    Raises:
        NoSource: the function has no source file, or it does not parse.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        owner: type | None = None,
        reads: Mapping[str, Any] | None = None,
    ) -> None:
        self.callable, self.owner, self.reads = function, owner, dict(reads or {})
        self.is_method = owner is not None
        try:
            lines, first = inspect.getsourcelines(function)
            self.file = inspect.getsourcefile(function) or "?"
        except (OSError, TypeError) as error:
            raise NoSource(str(error)) from None
        text = "".join(lines)
        indented = text[:1] in (" ", "\t")
        try:
            module = cst.parse_module("class _:\n" + text if indented else text)
        except cst.ParserSyntaxError as error:
            raise NoSource(error.message) from None
        self.shift = first - (2 if indented else 1)
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.tree = wrapper.module
        self.ranges = {n: _range(p) for n, p in wrapper.resolve(PositionProvider).items()}
        self.kinds = NodesByKind(self.ranges)
        self.parents = parents_in(self.tree)
        self.text_lines = self.tree.code.split("\n")  # a form feed ends no line
        self.function = next(n for n in self.nodes() if isinstance(n, cst.FunctionDef))
        self.expressions = {
            self.range(n): n for n in self.nodes() if isinstance(n, cst.BaseExpression)
        }
        self.lines = [n for n in self.nodes() if isinstance(n, cst.SimpleStatementLine)]
        self.codes: dict[cst.CSTNode, str] = {}

    @classmethod
    def of(
        cls, function: Callable[..., Any], owner: type, reads: Mapping[str, Any]
    ) -> ForwardSource:
        """The same, parsed once for all traces of a class."""
        made = copy.copy(_parsed(function, owner))
        made.reads = dict(reads)
        return made

    def nodes(self, kinds: Kinds | None = None) -> tuple[cst.CSTNode, ...]:
        """All nodes, or those that are of one of these kinds."""
        return self.kinds.order if kinds is None else self.kinds.of(kinds)

    def range(self, node: cst.CSTNode) -> Range:
        return self.ranges[node]

    def to_range(self, span: Span) -> Range:
        """A span of the file in lines and character columns of the parsed text."""
        start, end = span.line - self.shift, span.end_line - self.shift
        return (start, self._column(start, span.column), end, self._column(end, span.end_column))

    def placed(self, ops: Iterable[Op]) -> list[tuple[Op, Range]]:
        """Those of the operations that have a place in the source, with it."""
        return [(op, self.to_range(op.spans[0])) for op in ops if op.spans]

    def _column(self, line: int, byte: int) -> int:
        if not 1 <= line <= len(self.text_lines):
            return byte
        return len(self.text_lines[line - 1].encode()[:byte].decode(errors="ignore"))

    def expression_at(self, span: Span) -> cst.BaseExpression | None:
        found = self.expressions.get(self.to_range(span))
        return found if isinstance(found, cst.BaseExpression) else None

    def called(self, call: cst.BaseExpression) -> ForwardSource | None:
        """Source of the plain function, or method of `self`, that an expression calls."""
        if not isinstance(call, cst.Call):
            return None
        target, owner = call.func, None
        found: Any = None
        if isinstance(target, cst.Name):
            found = getattr(self.callable, "__globals__", {}).get(target.value)
        elif self.owner is not None and self.code(target).startswith("self."):
            owner = self.owner
            found = inspect.getattr_static(owner, self.code(target).removeprefix("self."), None)
        if not inspect.isfunction(found) or hasattr(found, "__wrapped__"):
            return None
        return _source_of(found, owner)

    def names_module(self, node: cst.BaseExpression) -> bool:
        """Is the expression the dotted name of a Python module, as `F` or `torch.nn.functional` is?"""
        if not isinstance(node, cst.Name | cst.Attribute):
            return False
        root, *path = self.code(node).split(".")
        found = getattr(self.callable, "__globals__", {}).get(root)
        for name in path:
            found = getattr(found, name, None)
        return inspect.ismodule(found)

    def statement_of(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The statement line, or head of a compound statement, that holds `node`."""
        current: cst.CSTNode | None = node
        while current is not None:
            if isinstance(current, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                return current
            current = self.parents.get(current)
        return None

    def statement_at(self, span: Span) -> cst.CSTNode | None:
        """The innermost statement whose range holds the span."""
        wanted, best = self.to_range(span), None
        for line in self.lines:
            if inside(wanted, self.range(line)):
                best = line
        if best is not None:
            return best
        expression = self.expression_at(span)
        return self.statement_of(expression) if expression is not None else None

    def block_of(self, statement: cst.CSTNode) -> cst.CSTNode | None:
        return self.parents.get(statement)

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node, without the space around it."""
        if node not in self.ranges:  # a changed one
            return self.tree.code_for_node(node).strip()
        if node not in self.codes:
            self.codes[node] = self.tree.code_for_node(node).strip()
        return self.codes[node]


@lru_cache(maxsize=256)
def _parsed(function: Callable[..., Any], owner: type) -> ForwardSource:
    return ForwardSource(function, owner)


@lru_cache(maxsize=256)
def _source_of(function: Callable[..., Any], owner: type | None) -> ForwardSource | None:
    try:
        return ForwardSource(function, owner)
    except NoSource:
        return None


def _range(place: CodeRange) -> Range:
    return (place.start.line, place.start.column, place.end.line, place.end.column)


def inside(inner: Range, outer: Range) -> bool:
    """Does `outer` hold `inner`?"""
    return inner[:2] >= outer[:2] and inner[2:] <= outer[2:]
