"""What a rule's `replace`, its operations and conditions may say: a rule is data, never a program.

A replacement becomes source code that runs. It may call functions of NF and NK, a few tensor methods that
change layout or dtype, and read weights and shapes of what the pattern captured; nothing else.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import Any

from neuron_autoport.nearest import near
from neuron_autoport.rules.check_call import Fault, check_arguments
from neuron_autoport.rules.expressions import parts_of

METHODS = frozenset(
    {"split", "chunk", "flatten", "unflatten", "view", "reshape", "transpose", "permute", "squeeze",
     "unsqueeze", "contiguous", "to", "type_as", "float"}
)  # fmt: skip
TENSOR = frozenset({"shape", "ndim", "dtype", "device", "real", "imag"})
WEIGHT = frozenset({"weight", "bias", "sizes"})
# What conditions may ask: of a captured linear module, and of a captured value.
LINEAR_FACTS = frozenset({"in_features", "out_features", "layout", "weight", "bias"})
VALUE_FACTS = frozenset({"shape", "ndim", "dtype", "rows", "linears"})
_ALLOWED = (
    ast.Name, ast.Load, ast.Attribute, ast.Call, ast.keyword, ast.Constant, ast.Subscript, ast.Slice,
    ast.Tuple, ast.List, ast.UnaryOp, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div,
    ast.FloorDiv, ast.Mod,
)  # fmt: skip


def check_code(
    tree: ast.expr,
    weights: Collection[str],
    names: Collection[str],
    roles: Collection[str] = (),
) -> Iterator[Fault]:
    """Faults of a piece of replacement code.

    Args:
        weights: names that stand for weights. roles: for modules with a role; `**norm` passes on what
            the rule of that role passes. names: all other names the pattern binds.
    """
    yield from _Code(weights, names, roles).check(tree)


class _Code:
    def __init__(
        self, weights: Collection[str], names: Collection[str], roles: Collection[str]
    ) -> None:
        self.weights, self.names, self.roles = weights, names, roles

    def check(self, node: ast.AST) -> Iterator[Fault]:
        if not isinstance(node, _ALLOWED):
            yield f"{type(node).__name__} is not allowed here", _placed(node)
        elif isinstance(node, ast.Call):
            yield from self.call(node)
        elif isinstance(node, ast.Attribute):
            yield from self.attribute(node)
        elif isinstance(node, ast.Name):
            yield from self.name(node)
        else:
            for child in ast.iter_child_nodes(node):
                yield from self.check(child)

    def name(self, node: ast.Name) -> Iterator[Fault]:
        if node.id in self.weights:
            yield f"`{node.id}` is a module: say `{node.id}.weight` or `{node.id}.bias`", node
        elif node.id in self.roles and node.id not in self.names:
            yield (
                f"`{node.id}` is a module: say `**{node.id}` for what its rule passes, or "
                f"`{node.id}.name` for one of it",
                node,
            )
        elif node.id in ("NF", "NK"):
            yield f"`{node.id}` stands alone: say `{node.id}.name`", node
        elif node.id not in self.names:
            known = {*self.names, *self.weights, "NF", "NK"}
            yield f"`{node.id}` is bound by nothing{near(node.id, known)}", node

    def attribute(self, node: ast.Attribute) -> Iterator[Fault]:
        base = node.value
        if isinstance(base, ast.Name) and base.id in ("NF", "NK"):
            if member(base.id, node.attr) is None:
                yield f"{base.id} has no `{node.attr}`{near(node.attr, _space(base.id))}", node
        elif (kind := _enum(base)) is not None:
            if node.attr not in kind.__members__:
                yield (
                    f"{ast.unparse(base)} has no `{node.attr}`{near(node.attr, kind.__members__)}",
                    node,
                )
        elif isinstance(base, ast.Name) and base.id in self.roles:
            pass  # what its rule passes under this name; the library knows whether it does
        elif isinstance(base, ast.Name) and base.id in self.weights:
            if node.attr not in WEIGHT:
                yield f"a weight has no `{node.attr}`{near(node.attr, WEIGHT)}", node
        else:
            if node.attr not in TENSOR:
                yield f"a value has no `{node.attr}` here{near(node.attr, TENSOR)}", node
            yield from self.check(base)

    def call(self, node: ast.Call) -> Iterator[Fault]:
        function = node.func
        if isinstance(function, ast.Attribute):
            base = function.value
            if isinstance(base, ast.Name) and base.id in ("NF", "NK"):
                yield from self.signature(node, base.id, function.attr)
            else:
                if function.attr not in METHODS:
                    yield (
                        f"method `{function.attr}` is not allowed{near(function.attr, METHODS)}",
                        node,
                    )
                yield from self.check(base)
        else:
            yield "call a function of NF or NK, or a method of a value", node
        named = [k.arg for k in node.keywords if k.arg is not None]
        for keyword in node.keywords:
            if keyword.arg is not None and named.count(keyword.arg) > 1:
                yield f"`{keyword.arg}` is given twice", keyword
            if keyword.arg is not None:
                yield from self.check(keyword.value)
            elif not (isinstance(keyword.value, ast.Name) and keyword.value.id in self.roles):
                yield "`**` takes a captured module that has a role", keyword.value
        for argument in node.args:
            yield from self.check(argument)

    def signature(self, node: ast.Call, space: str, name: str) -> Iterator[Fault]:
        """The function must exist and take these arguments."""
        function = member(space, name)
        if not inspect.isfunction(inspect.unwrap(function)) if function else True:
            yield f"{space} has no function `{name}`{near(name, _space(space))}", node
            return
        assert function is not None
        for message, place in check_arguments(node, inspect.signature(function)):
            yield f"{space}.{name} {message}", place


def _space(name: str) -> list[str]:
    from neuron_autoport import kernels, nf

    return list(nf.__all__) if name == "NF" else kernels.names()


def member(space: str, name: str) -> Callable[..., Any] | None:
    """The function or enumeration of NF or NK with this name."""
    from neuron_autoport import kernels, nf

    found = getattr({"NF": nf, "NK": kernels}[space], name, None) if name in _space(space) else None
    return found if callable(found) else None


def _enum(node: ast.AST) -> type[Enum] | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        found = member(node.value.id, node.attr) if node.value.id in ("NF", "NK") else None
        if isinstance(found, type) and issubclass(found, Enum):
            return found
    return None


def check_condition(
    tree: ast.AST, linears: Collection[str], names: Collection[str], roles: Collection[str] = ()
) -> Iterator[Fault]:
    """Names and attributes of a condition that nothing will have, those below what is not allowed too."""
    todo = [tree]
    while todo:
        node = todo.pop()
        todo += parts_of(node)
        if isinstance(node, ast.Name) and node.id not in names:
            yield f"unknown name `{node.id}`{near(node.id, names)}", node
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            # A role has what its rule captures; a private name is refused already.
            if node.value.id in roles or node.attr.startswith("_"):
                continue
            facts = LINEAR_FACTS if node.value.id in linears else VALUE_FACTS
            if node.value.id in names and node.attr not in facts:
                hint = near(node.attr, facts) or f"; there are {', '.join(sorted(facts))}"
                yield f"no `{node.attr}` on `{node.value.id}`{hint}", node


def _placed(node: ast.AST) -> ast.AST:
    """The node itself, or the first below it that has a place in the text."""
    return next((n for n in ast.walk(node) if hasattr(n, "lineno")), node)
