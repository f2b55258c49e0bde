"""A rule's pattern: Python-looking statements, parsed once into a small tree.

`y = down(act(gate(x)) * up(x))`: names called that the rule declares are captured modules or chosen
operations, other called names are canonical operations, plain names are captured values, the left side is
what the match gives to the rest of the code. `q, k, v = split(p(x))` stands for slices of the last dimension that
follow each other and fill it. `after(q)` is any value computed from `q`. `fp32(x)`, `like(v, x)` are casts.
"""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from typing import Any, TypeAlias

from neuron_autoport.rules.places import character

Pattern: TypeAlias = "Var | Const | OpPattern | ModulePattern | ChoicePattern | After | Like"

UNARY = frozenset(
    {"square", "rsqrt", "sqrt", "exp", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "relu", "neg",
     "cos", "sin", "abs", "log", "softplus", "reciprocal"}
)  # fmt: skip
REDUCTIONS = frozenset({"mean", "sum"})
OPERATIONS = UNARY | REDUCTIONS | {"attention", "fp32", "like", "after", "split", "matmul"}
COMMUTATIVE = frozenset({"add", "mul"})
_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}


@dataclass(frozen=True)
class Var:
    """Any value; the same value wherever the name stands again."""

    name: str


@dataclass(frozen=True)
class Const:
    value: float | int


@dataclass(frozen=True)
class OpPattern:
    """A canonical operation on these operands, with these attributes."""

    name: str
    inputs: tuple[Pattern, ...]
    attrs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class ModulePattern:
    """A call of a child module that is captured under `name`."""

    name: str
    inputs: tuple[Pattern, ...]


@dataclass(frozen=True)
class ChoicePattern:
    """One of several operations; which one is captured under `name`."""

    name: str
    inputs: tuple[Pattern, ...]


@dataclass(frozen=True)
class After:
    """A value computed from the captured one, and from no other of the rule's outputs."""

    name: str


@dataclass(frozen=True)
class Like:
    """`value` cast to the dtype of the captured `model`."""

    value: Pattern
    model: str


@dataclass(frozen=True)
class Statement:
    """One equation. `targets` are the names left of `=`; `split` marks consecutive slices."""

    targets: tuple[str, ...]
    pattern: Pattern
    split: bool = False


class PatternError(Exception):
    """The pattern text is wrong; line and column are relative to it, from 1."""

    def __init__(
        self, message: str, node: ast.AST | None = None, line: int = 1, column: int = 1
    ) -> None:
        super().__init__(message)
        self.line = getattr(node, "lineno", line)
        self.column = getattr(node, "col_offset", column - 1) + 1


def parse_pattern(text: str, modules: set[str], choices: set[str]) -> tuple[Statement, ...]:
    """Parse the statements of a `match` or `given` field.

    Args:
        text: the field.
        modules: names declared as modules in `where`; choices: names declared as operations there.

    Raises:
        PatternError: with the place and, for an unknown operation, the nearest known one.
    """
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        message = f"not an equation: {error.msg}"
        raise PatternError(message, None, error.lineno or 1, error.offset or 1) from None
    parser = _Parser(modules, choices)
    try:
        return tuple(parser.statement(node) for node in body)
    except PatternError as error:  # ast counts bytes
        error.column = character(text, error.line, error.column - 1)
        raise


class _Parser:
    def __init__(self, modules: set[str], choices: set[str]) -> None:
        self.modules, self.choices = modules, choices

    def statement(self, node: ast.stmt) -> Statement:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            raise PatternError("expected an equation, `name = expression`", node)
        target = node.targets[0]
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        if not all(isinstance(n, ast.Name) for n in names):
            raise PatternError("the left side takes plain names", node)
        targets = tuple(n.id for n in names if isinstance(n, ast.Name))
        value = node.value
        if isinstance(value, ast.Call) and self.called(value) == "split":
            self.arguments(value, "split", 1)
            return Statement(targets, self.expression(value.args[0]), split=True)
        if len(targets) != 1:
            raise PatternError("several names on the left need `split(...)` on the right", node)
        return Statement(targets, self.expression(value))

    def called(self, node: ast.Call) -> str:
        function = node.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            if function.value.id in ("F", "torch"):
                return function.attr
        elif isinstance(function, ast.Name):
            return function.id
        raise PatternError("call an operation by name, or as F.name or torch.name", node)

    def expression(self, node: ast.expr) -> Pattern:
        if isinstance(node, ast.Name):
            return Var(node.id)
        number = node.value if isinstance(node, ast.Constant) else None
        if isinstance(number, int | float) and not isinstance(number, bool):
            return Const(number)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.expression(node.operand)
            return Const(-inner.value) if isinstance(inner, Const) else OpPattern("neg", (inner,))
        if isinstance(node, ast.BinOp):
            return self.binary(node)
        if isinstance(node, ast.Call):
            return self.call(node)
        raise PatternError("expected a name, a number, an operator or a call", node)

    def binary(self, node: ast.BinOp) -> Pattern:
        left, right = self.expression(node.left), self.expression(node.right)
        if isinstance(node.op, ast.Pow) and right == Const(2):
            return OpPattern("square", (left,))
        if isinstance(node.op, ast.Pow):
            return OpPattern("pow", (left, right))
        name = _BINARY.get(type(node.op))
        if name is None:
            raise PatternError("operators are + - * / **", node)
        return OpPattern(name, (left, right))

    def call(self, node: ast.Call) -> Pattern:
        name = self.called(node)
        if name in self.modules or name in self.choices:
            kind = ModulePattern if name in self.modules else ChoicePattern
            self.arguments(node, name, None if name in self.modules else 1)
            return kind(name, tuple(self.expression(a) for a in node.args))
        if name not in OPERATIONS:
            near = difflib.get_close_matches(name, [*OPERATIONS, *self.modules, *self.choices], 1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise PatternError(f"unknown operation `{name}`{hint}", node)
        if name == "after" and len(node.args) == 1 and isinstance(node.args[0], ast.Name):
            return After(node.args[0].id)
        if name == "like" and len(node.args) == 2 and isinstance(node.args[1], ast.Name):
            return Like(self.expression(node.args[0]), node.args[1].id)
        if name in ("after", "like", "split"):
            raise PatternError(f"`{name}` is not used like this; see `autoport rules show`", node)
        if name in REDUCTIONS:
            return self.reduction(name, node)
        self.arguments(node, name, {"attention": 3, "matmul": 2}.get(name, 1))
        return OpPattern(name, tuple(self.expression(a) for a in node.args))

    def arguments(self, node: ast.Call, name: str, count: int | None) -> None:
        """Plain positional operands, `count` of them, or at least one."""
        if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            raise PatternError(f"`{name}` takes its operands by position", node)
        if len(node.args) != count if count is not None else not node.args:
            wanted = (
                "at least one operand" if count is None else f"{count} operand{'s' * (count > 1)}"
            )
            raise PatternError(f"`{name}` takes {wanted}, found {len(node.args)}", node)

    def reduction(self, name: str, node: ast.Call) -> Pattern:
        given = dict(zip(("value", "dim", "keepdim"), node.args, strict=False))
        given |= {k.arg: k.value for k in node.keywords if k.arg}
        if set(given) - {"value", "dim", "keepdim"} or not node.args or len(node.args) > 3:
            raise PatternError(f"`{name}` takes (value, dim, keepdim=...)", node)
        attrs: dict[str, Any] = {"keepdim": False}
        for key in sorted(set(given) - {"value"}):
            try:
                attrs[key] = ast.literal_eval(given[key])
            except ValueError:
                raise PatternError(
                    f"`{key}` must be a number or True or False", given[key]
                ) from None
        if type(dim := attrs.get("dim")) is not int or dim >= 0:
            raise PatternError("`dim` counts from the end: -1 is the last", given.get("dim", node))
        return OpPattern(name, (self.expression(node.args[0]),), tuple(sorted(attrs.items())))


def count_steps(pattern: Pattern) -> int:
    """How many operations a pattern asks for: the measure of how far a match got."""
    if isinstance(pattern, Like):
        return 1 + count_steps(pattern.value)
    if isinstance(pattern, OpPattern | ModulePattern | ChoicePattern):
        return 1 + sum(count_steps(p) for p in pattern.inputs)
    return 1 if isinstance(pattern, After) else 0


def names_in(pattern: Pattern) -> set[str]:
    """All captures a pattern binds or reads."""
    if isinstance(pattern, Var | After):
        return {pattern.name}
    if isinstance(pattern, Like):
        return names_in(pattern.value) | {pattern.model}
    if isinstance(pattern, Const):
        return set()
    own = set() if isinstance(pattern, OpPattern) else {pattern.name}
    return own.union(*(names_in(p) for p in pattern.inputs)) if pattern.inputs else own


def looks_at_casts(pattern: Pattern) -> bool:
    """Does the pattern name a cast? Then all casts count; else they are transparent."""
    if isinstance(pattern, Like):
        return True
    if isinstance(pattern, OpPattern):
        return pattern.name == "fp32" or any(looks_at_casts(p) for p in pattern.inputs)
    if isinstance(pattern, ModulePattern | ChoicePattern):
        return any(looks_at_casts(p) for p in pattern.inputs)
    return False
