"""Conditions of a forward that have one value whenever the runner calls it.

A condition is evaluated from what is known: constant arguments, attributes that are the same plain value on
every module of the class, names that are certainly not None. Anything else is not known.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn
from transformers import PretrainedConfig

from neuron_autoport.export.record import PLAIN, SOMETHING, VARYING


class NotKnown(Exception):
    """The value is not known."""


_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


class Known:
    """Values by name, and attributes of `self` that all modules of a class share.

    values: by local name; SOMETHING is not None, a missing name is not known.
    """

    def __init__(self, values: dict[str, Any], modules: Sequence[nn.Module]) -> None:
        self.values, self.modules = dict(values), list(modules)

    def copy(self) -> Known:
        """The same knowledge, changed apart from this."""
        return Known(self.values, self.modules)

    def note(self, name: str, value: Any) -> None:
        """Note what a name means from here on; VARYING forgets it."""
        if value is VARYING:
            self.values.pop(name, None)
        else:
            self.values[name] = value

    def forget(self, names: Iterable[str]) -> None:
        """These names may mean anything from here on."""
        for name in names:
            self.values.pop(name, None)

    def value(self, code: str) -> Any:
        """The plain value of an expression, SOMETHING, or VARYING."""
        try:
            return self._value(ast.parse(code.strip(), mode="eval").body)
        except (NotKnown, SyntaxError, TypeError, AttributeError):
            return VARYING

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            if node.id not in self.values:
                raise NotKnown
            return self.values[node.id]
        if isinstance(node, ast.NamedExpr):
            value = self._value(node.value)
            self.note(node.target.id, value)
            return value
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self._plain(node.operand)
        if isinstance(node, ast.BoolOp):
            return self._bool(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
            return self._plain(node.left) ^ self._plain(node.right)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compare(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.IfExp):
            return self._value(node.body if self._plain(node.test) else node.orelse)
        raise NotKnown

    def _plain(self, node: ast.expr) -> Any:
        value = self._value(node)
        if value is SOMETHING:
            raise NotKnown
        return value

    def _bool(self, node: ast.BoolOp) -> Any:
        """With the short cuts of `and` and `or`, so that one known operand may be enough."""
        stop = isinstance(node.op, ast.Or)
        unknown, value = False, not stop
        for operand in node.values:
            try:
                value = self._plain(operand)
            except NotKnown:
                unknown = True
                continue
            if bool(value) is stop:
                return value
        if unknown:
            raise NotKnown
        return value

    def _compare(self, node: ast.Compare) -> Any:
        left, right = self._value(node.left), self._value(node.comparators[0])
        kind = node.ops[0]
        if isinstance(kind, ast.Is | ast.IsNot):
            if left is SOMETHING and right is SOMETHING:
                raise NotKnown
            same = left is right
            return same if isinstance(kind, ast.Is) else not same
        if left is SOMETHING or right is SOMETHING:
            raise NotKnown
        return _COMPARE[type(kind)](left, right)

    def _call(self, node: ast.Call) -> Any:
        """`isinstance` of a plain value with a builtin class; `getattr` and `hasattr` of self."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "isinstance" and isinstance(node.args[1], ast.Name):
            kind = {"dict": dict, "tuple": tuple, "list": list, "int": int, "bool": bool}.get(
                node.args[1].id
            )
            value = self._plain(node.args[0])
            if kind is not None:
                return isinstance(value, kind)
        if name == "hasattr" and isinstance(node.args[1], ast.Constant):
            owners = self._owners(node.args[0])
            found = {hasattr(o, str(node.args[1].value)) for o in owners}
            if len(found) == 1:
                return found.pop()
        raise NotKnown

    def _owners(self, node: ast.expr) -> list[Any]:
        """The object an attribute is read from, for every module: self, its parts, its configuration."""
        if isinstance(node, ast.Name) and node.id == "self":
            return list(self.modules)
        if isinstance(node, ast.Attribute):
            owners = self._owners(node.value)
            if all(isinstance(o, nn.Module | PretrainedConfig) for o in owners):
                return [getattr(o, node.attr) for o in owners]
        raise NotKnown

    def _attribute(self, node: ast.Attribute) -> Any:
        values = self._owners(node)
        first = values[0]
        if not all(isinstance(v, PLAIN) for v in values):
            if all(v is not None for v in values):
                return SOMETHING
            raise NotKnown
        if any(type(v) is not type(first) or v != first for v in values):
            raise NotKnown
        return first
