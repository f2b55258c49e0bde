"""Read a rule's pattern: Python-looking statements, parsed once into the tree of `pattern.py`.

`y = down(act(gate(x)) * up(x))`: names called that the rule declares are captured modules or chosen
operations, other called names are canonical operations, plain names are captured values, the left side is
what the match gives to the rest of the code. `q, k, v = split(p(x))` stands for slices of the last
dimension that follow each other and fill it; `cut(p(x))` for parts of any layout, such as every third
head, that together are all of it. `after(q)` is any value computed from `q`, `past(q)` one with no linear
map in between. `fp32(x)`, `like(v, x)` are casts. `a | b` is one of two spellings. `norm?(x)` and
`x * scale?` are parts that may be missing: `x` alone stands there then.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from neuron_autoport.nearest import near
from neuron_autoport.rules.check_equations import check_equations
from neuron_autoport.rules.pattern import (
    ARITY,
    OPERATIONS,
    REDUCTIONS,
    After,
    ChoicePattern,
    Const,
    Either,
    Like,
    Maybe,
    ModulePattern,
    OpPattern,
    Past,
    Pattern,
    Statement,
    Var,
)
from neuron_autoport.rules.places import character

_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
_OPTIONAL = re.compile(r"([A-Za-z_]\w*)\?")


class PatternError(Exception):
    """The pattern text is wrong; line and column are relative to it, from 1.

    all: this fault and the others of the text, in the order of their places.
    """

    def __init__(
        self, message: str, node: ast.AST | None = None, line: int = 1, column: int = 1
    ) -> None:
        super().__init__(message)
        self.line = getattr(node, "lineno", line)
        self.column = getattr(node, "col_offset", column - 1) + 1
        self.all: tuple[PatternError, ...] = (self,)


def parse_pattern(text: str, modules: set[str], choices: set[str]) -> tuple[Statement, ...]:
    """Parse the statements of a `match` or `given` field.

    Args:
        text: the field.
        modules: names declared as modules in `where`; choices: names declared as operations there.

    Raises:
        PatternError: with the place and, for an unknown operation, the nearest known one. It has the other
            faults, too.
    """
    plain = _OPTIONAL.sub(r"\1 ", text)  # the same length: places stay right
    try:
        body = ast.parse(plain).body
    except SyntaxError as error:
        message = f"not an equation: {error.msg}"
        raise PatternError(message, None, error.lineno or 1, error.offset or 1) from None
    parser = _Parser(modules, choices, _places_of_optional(text))
    found = [parser.read(node) for node in body]
    parser.faults += [PatternError(message, node) for message, node in check_equations(body)]
    if not parser.faults:
        return tuple(s for s in found if s is not None)
    for fault in parser.faults:  # ast counts bytes
        fault.column = character(text, fault.line, fault.column - 1)
    faults = sorted(parser.faults, key=lambda f: (f.line, f.column))
    faults[0].all = tuple(faults)
    raise faults[0]


def words_of(text: str) -> tuple[set[str], set[str]]:
    """Of a pattern that may be wrong: names that stand alone, and names that are called.

    Where the text is not even Python, any word may be either; all are said to be called.
    """
    try:
        tree = ast.parse(_OPTIONAL.sub(r"\1 ", text))
    except SyntaxError:
        return set(), set(re.findall(r"\w+", text))
    functions = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
    called = {f.id for f in functions if isinstance(f, ast.Name)}
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - called, called


def _parts(node: ast.AST) -> list[ast.expr]:
    """What inside a wrong node may have faults of its own: calls and sums, not what only fails to be one."""
    if isinstance(node, ast.Assign | ast.Expr):
        value = node.value
        named = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
        whole = named and value.func.id in ("split", "cut")  # type: ignore[attr-defined]
        return _parts(value) if whole else [value]
    operands: list[ast.expr] = []
    if isinstance(node, ast.Call):
        operands = node.args
    elif isinstance(node, ast.BinOp):
        operands = [node.left, node.right]
    return [n for n in operands if isinstance(n, ast.Call | ast.BinOp | ast.UnaryOp)]


def _places_of_optional(text: str) -> set[tuple[int, int]]:
    """Line and UTF-8 column, as ast counts them, of every name with a question mark."""
    lines = enumerate(text.split("\n"), 1)
    return {
        (number, len(line[: found.start()].encode()))
        for number, line in lines
        for found in _OPTIONAL.finditer(line)
    }


class _Parser:
    def __init__(self, modules: set[str], choices: set[str], optional: set[tuple[int, int]]):
        self.modules, self.choices, self.optional = modules, choices, optional
        self.faults: list[PatternError] = []
        self.known: dict[int, Pattern] = {}  # by node: none is read, or blamed, twice

    def read(self, node: ast.stmt) -> Statement | None:
        """A statement; None if it is wrong, and then its operands have been looked through as well."""
        try:
            return self.statement(node)
        except PatternError as error:
            self.wrong(error, node)
            return None

    def wrong(self, error: PatternError, node: ast.AST) -> None:
        self.faults.append(error)
        for part in _parts(node):
            self.expression(part)

    def statement(self, node: ast.stmt) -> Statement:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            raise PatternError("expected an equation, `name = expression`", node)
        target = node.targets[0]
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        if not all(isinstance(n, ast.Name) for n in names):
            raise PatternError("the left side takes plain names", node)
        targets = tuple(n.id for n in names if isinstance(n, ast.Name))
        value = node.value
        how = self.called(value) if isinstance(value, ast.Call) else ""
        if isinstance(value, ast.Call) and how in ("split", "cut"):
            self.arguments(value, how, 1)
            whole = self.expression(value.args[0])
            return Statement(targets, whole, split=how == "split", cut=how == "cut")
        if len(targets) != 1:
            raise PatternError(
                "several names on the left need `split(...)` or `cut(...)` on the right", node
            )
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
        """What the node says; if that is wrong, the fault is kept and a name stands for it."""
        if id(node) not in self.known:
            try:
                self.known[id(node)] = self.understood(node)
            except PatternError as error:
                self.known[id(node)] = Var("_")
                self.wrong(error, node)
        return self.known[id(node)]

    def understood(self, node: ast.expr) -> Pattern:
        if isinstance(node, ast.Name):
            return Var(node.id)
        number = node.value if isinstance(node, ast.Constant) else ...
        if number is None or (isinstance(number, int | float) and not isinstance(number, bool)):
            return Const(number)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.expression(node.operand)
            number = inner.value if isinstance(inner, Const) else None
            return Const(-number) if number is not None else OpPattern("neg", (inner,))
        if isinstance(node, ast.BinOp):
            return self.binary(node)
        if isinstance(node, ast.Call):
            call = self.call(node)
            if not self.is_optional(node.func):
                return call
            return Maybe(call, self.expression(node.args[0]))
        raise PatternError("expected a name, a number, an operator or a call", node)

    def is_optional(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and (node.lineno, node.col_offset) in self.optional

    def binary(self, node: ast.BinOp) -> Pattern:
        left, right = self.expression(node.left), self.expression(node.right)
        if isinstance(node.op, ast.BitOr):
            options = left.options if isinstance(left, Either) else (left,)
            return Either((*options, right))
        if isinstance(node.op, ast.Pow) and right == Const(2):
            return OpPattern("square", (left,))
        if isinstance(node.op, ast.Pow):
            return OpPattern("pow", (left, right))
        name = _BINARY.get(type(node.op))
        if name is None:
            raise PatternError("operators are + - * / ** and | for another spelling", node)
        whole = OpPattern(name, (left, right))
        if self.is_optional(node.left):
            return Maybe(whole, right)
        return Maybe(whole, left) if self.is_optional(node.right) else whole

    def call(self, node: ast.Call) -> Pattern:
        name = self.called(node)
        if name in self.modules or name in self.choices:
            kind = ModulePattern if name in self.modules else ChoicePattern
            self.arguments(node, name, None if name in self.modules else 1)
            return kind(name, tuple(self.expression(a) for a in node.args))
        if name not in OPERATIONS:
            known = (*OPERATIONS, *self.modules, *self.choices)
            hint = near(name, known) or "; `autoport explain` lists them"
            raise PatternError(f"unknown operation `{name}`{hint}", node)
        if name == "after" and len(node.args) == 1 and isinstance(node.args[0], ast.Name):
            return After(node.args[0].id)
        if name == "past" and len(node.args) == 1 and isinstance(node.args[0], ast.Name):
            return Past(node.args[0].id)
        if name == "like" and len(node.args) == 2 and isinstance(node.args[1], ast.Name):
            return Like(self.expression(node.args[0]), node.args[1].id)
        if name in ("after", "past", "like", "split", "cut"):
            raise PatternError(f"`{name}` is not used like this; see `autoport rules show`", node)
        if name in REDUCTIONS:
            return self.reduction(name, node)
        self.arguments(node, name, ARITY.get(name, 1))
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
