"""The safe expression language of `require` and `neuron`: names, attributes, arithmetic, comparison.

Parsed with `ast`, evaluated by walking the tree: no `eval`, no calls, no subscripts but plain indices.
A rule file is data and can run nothing.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping
from typing import Any

from neuron_autoport.rules.places import character

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_ALLOWED = (
    ast.Expression, ast.Name, ast.Load, ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp,
    ast.Compare, ast.BoolOp, ast.Subscript, ast.And, ast.Or, ast.Not, ast.USub,
    *_BINARY, *_COMPARE,
)  # fmt: skip


_CONSTANTS = (bool, int, float, str, type(None))
_MOST = 2**63 - 1  # no size is larger, and Python takes long over the digits of one that is
_NUMBERS = "arithmetic takes numbers"
# Facts that are no numbers, whatever they are asked of: sizes, and words.
_NO_NUMBERS = frozenset({"shape", "rows", "dtype", "layout"})


class ExpressionError(Exception):
    """The text is not an expression of this language; `column` counts from 1. all: this fault and any others."""

    def __init__(self, message: str, column: int = 1) -> None:
        super().__init__(message)
        self.column = column
        self.all: tuple[ExpressionError, ...] = (self,)


def parse_expression(text: str) -> ast.Expression:
    """Parse, and refuse anything but names, attributes, indices, arithmetic and comparison.

    Raises:
        ExpressionError: the first fault; its `all` has every one.
    """
    tree, faults = read_expression(text)
    if faults or tree is None:
        first = faults[0]
        first.all = tuple(faults)
        raise first
    return tree


def read_expression(text: str) -> tuple[ast.Expression | None, list[ExpressionError]]:
    """The tree of a text, with all that the language does not have; None if it is no expression at all."""
    try:
        tree = ast.parse(text, mode="eval")
        return tree, list(_faults(tree, 0, text))
    except SyntaxError as error:
        return None, [ExpressionError(f"not an expression: {error.msg}", error.offset or 1)]
    except (RecursionError, MemoryError):  # Python's parser raises either
        return None, [ExpressionError("nested too deeply")]


def _faults(node: ast.AST, byte: int, text: str) -> Iterator[ExpressionError]:
    """Faults of a node and of all below it."""
    byte = getattr(node, "col_offset", byte)  # an operator has no place: that of its operation
    column = character(text, getattr(node, "lineno", 1), byte)
    if not isinstance(node, _ALLOWED):
        yield ExpressionError(f"{type(node).__name__} is not allowed here", column)
    if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        yield ExpressionError(f"attribute {node.attr} is not allowed", column)
    if isinstance(node, ast.Constant) and not isinstance(node.value, _CONSTANTS):
        yield ExpressionError(f"{node.value!r} is not allowed here", column)
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > _MOST:
        yield ExpressionError(f"a number is at most {_MOST}", column)
    for operand in _operands(node):
        if _no_number(operand):
            place = character(text, operand.lineno, operand.col_offset)
            yield ExpressionError(f"`{ast.unparse(operand)}` is no number: {_NUMBERS}", place)
    for child in parts_of(node):
        yield from _faults(child, byte, text)


def parts_of(node: ast.AST) -> list[ast.AST]:
    """What stands below a node and has a meaning of its own, whatever is wrong with the node.

    Of a call these are its arguments; what else the language does not have is wrong as a whole.
    """
    if isinstance(node, ast.Call):
        return [*node.args, *(k.value for k in node.keywords)]
    return list(ast.iter_child_nodes(node)) if isinstance(node, _ALLOWED) else []


def _operands(node: ast.AST) -> list[ast.expr]:
    """What arithmetic is done with at this node."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    return [node.operand] if minus and isinstance(node, ast.UnaryOp) else []


def _no_number(node: ast.expr) -> bool:
    """Is it known without a match that the value is no number?"""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | None)
    return isinstance(node, ast.Attribute) and node.attr in _NO_NUMBERS


def evaluate(tree: ast.AST, names: Mapping[str, Any]) -> Any:
    """The value of a parsed expression.

    Raises:
        ExpressionError: a name is not known, an attribute is not there, or the values do not fit the
        operation (a comparison with None, a division by zero, an index beyond the end).
    """
    try:
        return _value(tree, names)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ExpressionError(f"{ast.unparse(tree)}: {error}") from None
    except (MemoryError, RecursionError):
        raise ExpressionError("it takes too much memory to work this out") from None


def _value(tree: ast.AST, names: Mapping[str, Any]) -> Any:
    if isinstance(tree, ast.Expression):
        return _value(tree.body, names)
    if isinstance(tree, ast.Constant):
        return tree.value
    if isinstance(tree, ast.Name):
        if tree.id not in names:
            raise ExpressionError(f"unknown name `{tree.id}`", tree.col_offset + 1)
        return names[tree.id]
    if isinstance(tree, ast.Attribute):
        return _attribute(tree, _value(tree.value, names))
    if isinstance(tree, ast.Subscript):
        return _value(tree.value, names)[_value(tree.slice, names)]
    if isinstance(tree, ast.BinOp):
        left, right = _value(tree.left, names), _value(tree.right, names)
        return _BINARY[type(tree.op)](_number(tree.left, left), _number(tree.right, right))
    if isinstance(tree, ast.UnaryOp):
        value = _value(tree.operand, names)
        return not value if isinstance(tree.op, ast.Not) else -_number(tree.operand, value)
    if isinstance(tree, ast.BoolOp):
        return _bool(tree, names)
    if isinstance(tree, ast.Compare):
        return _compare(tree, names)
    raise ExpressionError(f"{type(tree).__name__} is not allowed here")


def _number(tree: ast.expr, value: Any) -> Any:
    """An operand of arithmetic. A tuple or a text times a large number would fill the memory."""
    if not isinstance(value, bool | int | float):
        raise TypeError(f"`{ast.unparse(tree)}` is no number, {_NUMBERS}")
    return value


def _attribute(tree: ast.Attribute, value: Any) -> Any:
    if not hasattr(value, tree.attr):
        raise ExpressionError(
            f"no `{tree.attr}` on `{ast.unparse(tree.value)}`", tree.col_offset + 1
        )
    return getattr(value, tree.attr)


def _bool(tree: ast.BoolOp, names: Mapping[str, Any]) -> Any:
    wanted = isinstance(tree.op, ast.Or)
    value: Any = not wanted
    for part in tree.values:
        value = _value(part, names)
        if bool(value) is wanted:
            return value
    return value


def _compare(tree: ast.Compare, names: Mapping[str, Any]) -> bool:
    left = _value(tree.left, names)
    for op, part in zip(tree.ops, tree.comparators, strict=True):
        right = _value(part, names)
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True
