"""The source of one `forward` as a concrete syntax tree, found by the spans of a trace.

The function is parsed with libcst inside a one-line class, so that its indentation stands as in the file and
lines and columns translate by a constant. All edits of a function are gathered and applied in one pass;
comments and layout of what is not edited survive.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from neuron_autoport.trace.spans import Span

Range = tuple[int, int, int, int]


class NoSource(Exception):
    """The source of a forward cannot be had or parsed."""


@dataclass
class Edits:
    """What to change in one function; nodes are those of one `ForwardSource`.

    settled: conditions that have one value for every module the trace holds for; only that branch stays.
    """

    replaced: dict[cst.CSTNode, str] = field(default_factory=dict)
    inserted: dict[cst.CSTNode, list[str]] = field(default_factory=dict)
    removed: set[cst.CSTNode] = field(default_factory=set)
    comments: dict[cst.CSTNode, list[str]] = field(default_factory=dict)
    settled: dict[cst.If | cst.IfExp, bool] = field(default_factory=dict)

    def merged(self, other: Edits) -> Edits:
        """Both together; they touch different expressions."""
        joined = lambda a, b: {k: [*a.get(k, []), *b.get(k, [])] for k in {**a, **b}}  # noqa: E731
        return Edits(
            {**self.replaced, **other.replaced},
            joined(self.inserted, other.inserted),
            self.removed | other.removed,
            joined(self.comments, other.comments),
            {**self.settled, **other.settled},
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
        self.positions = wrapper.resolve(PositionProvider)
        self.parents = wrapper.resolve(ParentNodeProvider)
        self.text_lines = self.tree.code.split("\n")  # a form feed ends no line
        self.function = next(n for n in self.nodes() if isinstance(n, cst.FunctionDef))
        self.expressions = {
            self.range(n): n for n in self.nodes() if isinstance(n, cst.BaseExpression)
        }
        self.lines = [n for n in self.nodes() if isinstance(n, cst.SimpleStatementLine)]

    def nodes(self) -> Iterator[cst.CSTNode]:
        return iter(self.positions)

    def range(self, node: cst.CSTNode) -> Range:
        place = self.positions[node]
        return (place.start.line, place.start.column, place.end.line, place.end.column)

    def to_range(self, span: Span) -> Range:
        """A span of the file in lines and character columns of the parsed text."""
        start, end = span.line - self.shift, span.end_line - self.shift
        return (start, self._column(start, span.column), end, self._column(end, span.end_column))

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
        return self.tree.code_for_node(node).strip()

    def apply(self, edits: Edits) -> str:
        """The function's new source text, with the indentation it has in its file."""
        kept: dict[cst.CSTNode, list[str]] = {}
        for expression in edits.replaced:
            statement = self.statement_of(expression)
            if statement is not None:
                kept.setdefault(statement, []).extend(_comments(expression))
        changed = self.tree.visit(_Apply(edits, kept))
        function = next(n for n in _walk(changed) if isinstance(n, cst.FunctionDef))
        if function is changed.body[0]:
            return changed.code
        bare = function.with_changes(leading_lines=function.leading_lines)
        return cst.Module(body=[bare]).code


@lru_cache(maxsize=256)
def _source_of(function: Callable[..., Any], owner: type | None) -> ForwardSource | None:
    try:
        return ForwardSource(function, owner)
    except NoSource:
        return None


def inside(inner: Range, outer: Range) -> bool:
    """Does `outer` hold `inner`?"""
    return inner[:2] >= outer[:2] and inner[2:] <= outer[2:]


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _walk(child)


def _comment(text: str) -> cst.EmptyLine:
    return cst.EmptyLine(comment=cst.Comment(text))


def _comments(node: cst.CSTNode) -> list[str]:
    """All comments of a node and below it."""
    return [n.value for n in _walk(node) if isinstance(n, cst.Comment)]


def _expression(text: str) -> cst.BaseExpression:
    """`text` parsed; in parentheses unless it binds tighter than any operator around it."""
    made = cst.parse_expression(text)
    if isinstance(made, cst.Call | cst.Name | cst.Attribute | cst.Subscript) or made.lpar:
        return made
    return made.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _branch(statement: cst.If, taken: bool) -> Any:
    """The statements of the branch that is taken."""
    rest = statement.body if taken else statement.orelse
    if rest is None:
        return cst.RemovalSentinel.REMOVE
    if isinstance(rest, cst.If):
        return rest
    block = rest.body if isinstance(rest, cst.Else) else rest
    first, *more = block.body
    if isinstance(first, cst.BaseStatement) and hasattr(first, "leading_lines"):
        first = first.with_changes(leading_lines=[*statement.leading_lines, *first.leading_lines])
    return cst.FlattenSentinel([first, *more])


class _Apply(cst.CSTTransformer):
    """One pass over the function: replace expressions, put statements in, take dead ones out.

    Args:
        kept: comments that stood inside replaced expressions, by statement.
    """

    def __init__(self, edits: Edits, kept: dict[cst.CSTNode, list[str]]) -> None:
        super().__init__()
        self.edits, self.kept = edits, kept
        self.dropped: dict[cst.CSTNode, list[str]] = {}  # with the comments that were on them
        self.emptied: set[Any] = set()  # stand-ins for all that a block held

    def on_leave(self, original: Any, updated: Any) -> Any:
        updated = super().on_leave(original, updated)
        if original in self.edits.replaced:
            return _expression(self.edits.replaced[original])
        if original in self.edits.removed:
            self.dropped[updated] = _comments(original)
            return updated
        notes = [*self.kept.get(original, ())]
        notes += [f"# autoport: {rule}" for rule in self.edits.comments.get(original, ())]
        before = self.edits.inserted.get(original, [])
        if not notes and not before:
            return updated
        new: list[Any] = [cst.parse_statement(text) for text in before]
        if isinstance(updated, cst.FlattenSentinel):
            kept = list(updated)
        else:
            kept = [] if updated is cst.RemovalSentinel.REMOVE else [updated]
        if new and kept:  # the blank lines and comments above go with the first statement
            new[0] = new[0].with_changes(leading_lines=kept[0].leading_lines)
            kept[0] = kept[0].with_changes(leading_lines=[])
        first, *rest = [*new, *kept]
        lead = [*first.leading_lines, *(_comment(n) for n in notes)]
        return cst.FlattenSentinel([first.with_changes(leading_lines=lead), *rest])

    def leave_IndentedBlock(self, original_node: Any, updated_node: Any) -> Any:
        """Take dropped statements out; their comments stay, above what follows."""
        body: list[Any] = []
        waiting: list[cst.EmptyLine] = []
        for statement in updated_node.body:
            if statement in self.dropped:
                waiting += [_comment(text) for text in self.dropped[statement]]
                continue
            if waiting or not body:
                own = list(statement.leading_lines)
                while not body and not waiting and own and own[0].comment is None and self.dropped:
                    own.pop(0)
                statement = statement.with_changes(leading_lines=[*waiting, *own])
                waiting = []
            body.append(statement)
        if not body:
            nothing = cst.SimpleStatementLine(
                [cst.Pass()], leading_lines=[line for line in waiting if line.comment is not None]
            )
            self.emptied.add(nothing)
            body = [nothing]
        return updated_node.with_changes(body=body)

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> Any:
        """A settled choice leaves the expression that is chosen."""
        value = self.edits.settled.get(original_node)
        if value is None:
            return updated_node
        chosen = updated_node.body if value else updated_node.orelse
        return chosen.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        """A settled `if` leaves one of its branches; one that lost all it held goes."""
        if original_node in self.edits.settled:
            return _branch(updated_node, self.edits.settled[original_node])
        block = updated_node.body
        empty = isinstance(block, cst.IndentedBlock) and set(block.body) <= self.emptied
        return cst.RemovalSentinel.REMOVE if empty and updated_node.orelse is None else updated_node
