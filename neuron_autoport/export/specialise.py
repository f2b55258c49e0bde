"""A forward for the one way the runner calls it: without branches and arguments that have no use there.

Training, caches of transformers, masks and returned attention maps go; what is computed stays as it is
written, with its comments. Statements are walked in order with what is known at each (`known.Known`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst

from neuron_autoport.export.expressions import Expressions, Setting
from neuron_autoport.export.record import SOMETHING, VARYING
from neuron_autoport.export.syntax import code
from neuron_autoport.rewrite.names import bound_names, walk

Statement = Any
_INTERFACES = "ALL_ATTENTION_FUNCTIONS"


def specialise(function: cst.FunctionDef, setting: Setting) -> cst.FunctionDef:
    """The function with what is known put in. Parameters are left to `tidy`."""
    more = function.params.star_kwarg
    setting.var_keyword = more.name.value if more is not None else ""
    for name, value in setting.constants.items():
        setting.known.note(name, value)
    body = _Walker(setting).block(function.body.body)
    return function.with_changes(body=function.body.with_changes(body=body))


class _Walker:
    """Goes over statements; `setting.known` is what holds at the one it is at."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.known = setting, setting.known

    def block(self, statements: Sequence[Statement]) -> list[Statement]:
        """The statements that are left of these."""
        left: list[Statement] = []
        for statement in statements:
            left += self.statement(statement)
            if left and _ends(left[-1]):
                break
        return left

    def statement(self, statement: Statement) -> list[Statement]:
        if isinstance(statement, cst.SimpleStatementLine):
            return self.line(statement)
        if isinstance(statement, cst.If):
            return self.branch(statement)
        if isinstance(statement, cst.For | cst.While | cst.With | cst.Try):
            return self.compound(statement)
        self.known.forget(bound_names(statement))
        return [self.expression(statement)]

    def line(self, line: cst.SimpleStatementLine) -> list[Statement]:
        kept = [new for small in line.body if (new := self.small(small)) is not None]
        return [line.with_changes(body=kept)] if kept else []

    def small(self, small: Any) -> Any:
        """One simple statement, or None if nothing is left of it."""
        if isinstance(small, cst.AnnAssign):
            if small.value is None:
                return None
            small = cst.Assign([cst.AssignTarget(small.target)], small.value)
        if isinstance(small, cst.Expr) and self._logs(small.value):
            return None
        if isinstance(small, cst.Return) and small.value is not None:
            return small.with_changes(value=self._returned(self.expression(small.value)))
        if not isinstance(small, cst.Assign):
            changed = self.expression(small)
            self.known.forget(bound_names(small))
            return changed
        if _names(small.value, _INTERFACES):
            self.setting.attention |= bound_names(small)
            return None
        new = small.with_changes(value=self.expression(small.value))
        target = small.targets[0].target
        if len(small.targets) == 1 and isinstance(target, cst.Name):
            self.known.note(target.value, self.known.value(code(small.value)))
        else:
            self.known.forget(bound_names(small))
        return new

    def branch(self, branch: cst.If) -> list[Statement]:
        value = self.known.value(code(branch.test))
        if value is VARYING or value is SOMETHING:
            return self.both(branch)
        before = [
            _assignment(n.target.value, n.value)
            for n in walk(branch.test)
            if isinstance(n, cst.NamedExpr) and isinstance(n.target, cst.Name)
        ]
        taken = branch.body if value else branch.orelse
        if taken is None:
            return [self.expression(b) for b in before]
        if isinstance(taken, cst.If):
            inner = taken.with_changes(leading_lines=branch.leading_lines)
            return [self.expression(b) for b in before] + self.branch(inner)
        suite = taken.body if isinstance(taken, cst.Else) else taken
        left = [*map(self.expression, before), *self.block(suite.body)]
        if left:
            lines = [*branch.leading_lines, *left[0].leading_lines]
            left[0] = left[0].with_changes(leading_lines=lines)
        return left

    def both(self, branch: cst.If) -> list[Statement]:
        """A branch that is decided while the model runs."""
        test = self.expression(branch.test)
        self.known.forget(bound_names(branch.test))
        states, suites = [], []
        for part in (branch.body, branch.orelse):
            walker = _Walker(self.setting)
            walker.known = self.known.copy()
            suites.append(None if part is None else walker.part(part))
            states.append(walker.known)
        body, orelse = suites
        self.known.forget(bound_names(branch))
        if body is None and orelse is None:
            return []
        if body is None:
            body = cst.IndentedBlock([cst.SimpleStatementLine([cst.Pass()])])
        return [branch.with_changes(test=test, body=body, orelse=orelse)]

    def part(self, part: Any) -> Any:
        """A suite, `else` or `elif`; None if nothing is left of it."""
        if isinstance(part, cst.If):
            left = self.branch(part)
            if len(left) == 1 and isinstance(left[0], cst.If):
                return left[0]
            return cst.Else(cst.IndentedBlock(left)) if left else None
        suite = part.body if isinstance(part, cst.Else) else part
        left = self.block(suite.body)
        if not left:
            return None
        new = suite.with_changes(body=left)
        return part.with_changes(body=new) if isinstance(part, cst.Else) else new

    def compound(self, statement: Any) -> list[Statement]:
        """A loop or the like: what it binds is not known in it."""
        self.known.forget(bound_names(statement))
        if isinstance(statement, cst.For):
            self._loop(statement)
        changes: dict[str, Any] = {}
        for name in ("iter", "test", "items"):
            part = getattr(statement, name, None)
            if isinstance(part, cst.CSTNode):
                changes[name] = self.expression(part)
            elif part is not None:
                changes[name] = [self.expression(p) for p in part]
        body = self.block(statement.body.body)
        if not body:
            return []
        changes["body"] = statement.body.with_changes(body=body)
        self.known.forget(bound_names(statement))
        return [statement.with_changes(**changes)]

    def _loop(self, loop: cst.For) -> None:
        """Which modules a loop goes over: `for layer in self.layers[...]`, or their enumeration."""
        over: Any = loop.iter
        target: Any = loop.target
        if isinstance(over, cst.Call) and code(over.func) == "enumerate":
            over = over.args[0].value
            target = target.elements[1].value if isinstance(target, cst.Tuple) else target
        elif isinstance(over, cst.Call) and code(over.func) == "zip":
            over = over.args[0].value
            target = target.elements[0].value if isinstance(target, cst.Tuple) else target
        while isinstance(over, cst.Subscript):
            over = over.value
        if isinstance(target, cst.Name):
            self.setting.loops[target.value] = code(over)

    def expression(self, node: Any) -> Any:
        return node.visit(Expressions(self.setting, self.known))

    def _logs(self, value: cst.BaseExpression) -> bool:
        return isinstance(value, cst.Call) and any(
            f"{code(value.func)}.".startswith(f"{name}.") for name in self.setting.logs
        )

    def _returned(self, value: Any) -> Any:
        """The one value that is wanted of an output class of transformers."""
        if not isinstance(value, cst.Call):
            return value
        wanted = self.setting.outputs.get(code(value.func))
        if wanted is None:
            return value
        named = [a.value for a in value.args if a.keyword and a.keyword.value == wanted]
        return named[0] if named else value.args[0].value


def _ends(statement: Statement) -> bool:
    """Does nothing after this statement run?"""
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[-1], cst.Return | cst.Raise
    )


def _assignment(name: str, value: cst.BaseExpression) -> cst.SimpleStatementLine:
    return cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], value)])


def _names(node: cst.CSTNode, name: str) -> bool:
    return any(isinstance(n, cst.Name) and n.value == name for n in walk(node))
