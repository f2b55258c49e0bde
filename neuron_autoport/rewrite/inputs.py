"""How the new call reads what a match captured: a name that holds it there, or the expression itself.

`q = self.norm(self.proj(x))` where the norm is part of the match and `self.proj(x)` what it reads: the statement
stays as `q = self.proj(x)`, and the new call reads `q`.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from neuron_autoport.rewrite import safety
from neuron_autoport.rewrite.agree import Agreed
from neuron_autoport.rewrite.apply import Apply
from neuron_autoport.rewrite.names import parameter_text, walk
from neuron_autoport.rewrite.reasons import Refused
from neuron_autoport.rewrite.source import Edits, ForwardSource, inside
from neuron_autoport.trace.ops import Op, OpGraph


class InputTexts:
    """Source texts of the inputs of one match.

    Args:
        agreed: what each input is read as. interior: operations that go. at: the statement of the new call.
        outputs: expressions that the new call takes the place of. before: edits chosen already.
    """

    def __init__(
        self,
        source: ForwardSource,
        graph: OpGraph,
        agreed: Agreed,
        interior: set[Op],
        at: cst.CSTNode,
        outputs: list[cst.BaseExpression],
        before: Edits,
    ) -> None:
        self.source, self.graph, self.agreed, self.interior = source, graph, agreed, interior
        self.at, self.outputs, self.before = at, outputs, before

    def text(self, name: str, op: Op, edits: Edits) -> str:
        """Text that gives `op`, captured as `name`, where the new call stands; may add to `edits`.

        Raises:
            Refused: there is none.
        """
        if op.name == "param":
            return parameter_text(str(op.target))
        expression = self.agreed.texts.get(name)
        same = self.agreed.meanings.get(name, op.target) == op.target
        if op.name == "input" and same and self.is_parameter_name(op.target):
            try:
                safety.check_binding(self.source, str(op.target), None, self.at, edits)
                return str(op.target)
            except Refused:
                if expression is None:  # else another name still holds it
                    raise
        if expression is None:
            span = op.spans[0] if op.spans else None
            raise Refused("AP207", f"`{name}` ({op.label}) has no name in this forward", span)
        first_use = self.source.statement_of(expression)
        if isinstance(expression, cst.Name):
            return self.held(expression, op, edits)
        if any(_holds(o, expression) for o in self.outputs) or first_use is self.at:
            edits.quoted.add(expression)
            changed = expression.visit(Apply(self.before, {}))
            assert isinstance(changed, cst.CSTNode)  # an expression is replaced, never taken out
            return self.source.code(changed)
        whole, target = self.around(expression, op)
        if target is None or whole is None:
            raise Refused("AP207", f"`{name}` would be computed at another place", op.spans[0])
        safety.check_binding(self.source, target, first_use, self.at, edits, bound=True)
        edits.unwrapped[whole] = expression
        return target

    def held(self, name: cst.Name, op: Op, edits: Edits) -> str:
        """The name, if it still holds the value where the new call stands.

        `q = self.norm(q)` may go if the norm is part of the match: `q` is then what it was.
        """
        statement = self.source.statement_of(name)
        _, target = self.around(name, op)
        if target == name.value and statement is not None:
            edits.removed.add(statement)
        safety.check_binding(self.source, name.value, statement, self.at, edits)
        return name.value

    def around(
        self, expression: cst.BaseExpression, op: Op
    ) -> tuple[cst.BaseExpression | None, str | None]:
        """What the match makes of `expression`, and the name it is bound to by a line that does nothing else."""
        statement = self.source.statement_of(expression)
        target, whole = _assignment(statement)
        if statement is None or whole is None:
            return None, None
        here, kept = self.source.range(statement), self.source.range(expression)
        placed = self.source.placed(self.graph.ops)
        around = [o for o, place in placed if inside(place, here) and not inside(place, kept)]
        made = [o for o, place in placed if place == self.source.range(whole)]
        if not made or not set(around) <= self.interior | set(_unchanged(op)):
            return None, None
        return whole, target

    def is_parameter_name(self, name: str | None) -> bool:
        params = self.source.function.params
        return any(p.name.value == name for p in (*params.params, *params.kwonly_params))


def _unchanged(op: Op) -> Iterator[Op]:
    """The value, and those that steps which change nothing lead back to."""
    yield op
    while op.name == "view" and op.attrs.get("same"):
        op = op.inputs[0]
        yield op


def _assignment(
    statement: cst.CSTNode | None,
) -> tuple[str | None, cst.BaseExpression | None]:
    """(name, value) of a line that is one assignment to one name."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None, None
    assign = statement.body[0]
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None, None
    target = assign.targets[0].target
    return (target.value, assign.value) if isinstance(target, cst.Name) else (None, None)


def _holds(outer: cst.CSTNode, inner: cst.CSTNode) -> bool:
    return any(n is inner for n in walk(outer))
