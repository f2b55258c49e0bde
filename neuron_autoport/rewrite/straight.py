"""Does a helper function run straight through, and what does it return?

The call of a helper is replaced as a whole, so a branch of it that did not run would be lost. A condition on
attributes of the module is no branch: the trace holds only for modules whose attributes have these values.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from neuron_autoport.rules.expressions import ExpressionError, evaluate, parse_expression
from neuron_autoport.trace.spans import Span

_BRANCHING = (
    ast.If, ast.For, ast.While, ast.Try, ast.With, ast.Match, ast.IfExp, ast.BoolOp, ast.ListComp,
    ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda, ast.Yield, ast.Await, ast.AugAssign,
    ast.FunctionDef, ast.Global, ast.Nonlocal, ast.Delete, ast.Raise,
)  # fmt: skip
Place = tuple[int, int, int, int]


class Unknown:
    """An attribute whose value is only known to be something: any question but `is None` fails."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("its value is not known")

    def __bool__(self) -> bool:
        raise TypeError("its value is not known")

    __hash__ = object.__hash__


def value_of(test: str, reads: Mapping[str, Any]) -> bool | None:
    """What a condition on attributes of `self` is for these values; None if they do not tell."""
    known = {
        n: v if isinstance(v, bool | int | float | str | None) else Unknown()
        for n, v in reads.items()
    }
    try:
        return bool(evaluate(parse_expression(test), {"self": SimpleNamespace(**known)}))
    except (ExpressionError, TypeError):
        return None


def returned_place(span: Span, owner: type | None, reads: Mapping[str, Any]) -> Place | None:
    """Where the expression is whose value the function around `span` returns.

    Args:
        span: of an operation inside it. owner: class of the module. reads: values of its attributes.

    Returns:
        None if it has branches that are not settled, or effects.
    """
    if span.function.endswith(">"):  # a lambda or a comprehension
        return None
    function = _function(span.file, span.line, span.function.rpartition(".")[2])
    if function is None:
        return None
    own = owner is not None and any(function.name in vars(c) for c in owner.__mro__)
    ran = _ran(function.body, reads if own else {})
    if ran is None or not isinstance(ran[-1], ast.Return):
        return None
    nodes = [n for statement in ran for n in ast.walk(statement)]
    stores = (n for n in nodes if isinstance(n, ast.Attribute | ast.Subscript))
    if any(isinstance(n, _BRANCHING) for n in nodes) or any(
        isinstance(n.ctx, ast.Store) for n in stores
    ):
        return None
    value = _held(ran[-1].value, ran)
    if value is None:
        return None
    return value.lineno, value.col_offset, value.end_lineno or 0, value.end_col_offset or 0


def _ran(body: list[ast.stmt], reads: Mapping[str, Any]) -> list[ast.stmt] | None:
    """The statements that run up to the first `return`; None if a condition is not settled."""
    ran: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.If):
            value = value_of(ast.unparse(statement.test), reads)
            inner = _ran(statement.body if value else statement.orelse, reads)
            if value is None or inner is None:
                return None
            ran += inner
        else:
            ran.append(statement)
        if ran and isinstance(ran[-1], ast.Return):
            return ran
    return ran


def _held(value: ast.expr | None, ran: list[ast.stmt]) -> ast.expr | None:
    """The expression a returned name was last bound to by a plain assignment; else the value itself."""
    if not isinstance(value, ast.Name):
        return value
    for statement in reversed(ran[:-1]):
        if value.id in _bound(statement):
            if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                return None
            return statement.value if isinstance(statement.targets[0], ast.Name) else None
    return None  # a parameter


def _bound(statement: ast.stmt) -> Iterator[str]:
    stored = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
    return (n.id for n in stored if isinstance(n.ctx, ast.Store))


@lru_cache(maxsize=1 << 12)
def _function(file: str, line: int, name: str) -> ast.FunctionDef | None:
    """The innermost function around a line. Only the text of one called `name` is parsed, if that is it."""
    lines = linecache.getlines(file)
    head = re.compile(rf"\s*def {re.escape(name)}\b")
    start = next((i for i in reversed(range(line)) if head.match("".join(lines[i : i + 1]))), None)
    if start is not None:
        block = "".join(inspect.getblock(lines[start:]))
        indented = block[:1].isspace()
        found = _innermost(f"class _:\n{block}" if indented else block, start - indented, line)
        if found is not None and found.name == name:
            return found
    return _innermost("".join(lines), 0, line)


def _innermost(text: str, before: int, line: int) -> ast.FunctionDef | None:
    """The innermost function around a line, in a text with so many lines of its file before it."""
    try:
        tree = ast.increment_lineno(ast.parse(text), before)
    except SyntaxError:
        return None
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    around = [f for f in functions if f.lineno <= line <= (f.end_lineno or 0)]
    return max(around, key=lambda f: f.lineno, default=None)
