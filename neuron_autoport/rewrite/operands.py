"""Which expression of the source stands for a value that a match reads.

The value is found as an operand of an operation of the match; where that operation is inside a helper
function, the helper's parameter is traced back to the argument of its call.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from neuron_autoport.rewrite.helpers import argument_of
from neuron_autoport.rewrite.source import ForwardSource
from neuron_autoport.trace.ops import Op


class OperandText:
    """Expressions for the inputs of one match.

    Args:
        source: of the forward. interior: operations of the match.
    """

    def __init__(self, source: ForwardSource, interior: set[Op]) -> None:
        self.source, self.interior = source, interior

    def expression_of(self, op: Op) -> cst.BaseExpression | None:
        """The expression that stands for `op` where the match first reads it."""
        return next(self.expressions_of(op), None)

    def expressions_of(self, op: Op) -> Iterator[cst.BaseExpression]:
        """The expressions that stand for `op` where the match reads it, in the order they run."""
        readers = [u for user in op.users for u in (user, *user.absorbed) if op in u.inputs]
        for user in sorted(readers, key=lambda u: u.index):
            if user in self.interior and user.spans:
                found = self.in_forward(user, op)
                if found is not None:
                    yield found

    def in_forward(self, user: Op, op: Op) -> cst.BaseExpression | None:
        expression = self.source.expression_at(user.spans[0])
        if expression is None:
            return None
        if user.attrs.get("implicit"):  # a cast that a product does, with no text of its own
            around = [u for u in user.users if u.spans == user.spans]
            return self.in_forward(around[0], user) if around else None
        calls = [(self.source, expression)]  # the innermost last
        for span in user.spans[1:]:
            source, call = calls[-1]
            helper = source.called(call)
            inner = helper.expression_at(span) if helper is not None else None
            if helper is None or inner is None:
                return None
            calls.append((helper, inner))
        found = operand_of(*calls[-1], user, op)
        for (_, call), (helper, inner) in zip(calls[-2::-1], calls[:0:-1], strict=True):
            found = argument_of(call, helper, found, inner)
        return found


def operand_of(
    source: ForwardSource, expression: cst.BaseExpression, user: Op, op: Op
) -> cst.BaseExpression | None:
    """The part of `user`'s expression that is its operand `op`."""
    place = next((i for i, v in enumerate(user.inputs) if v is op), None)
    if place is None:
        return None
    if isinstance(expression, cst.BinaryOperation) and user.name in ("add", "sub", "mul", "div"):
        return (expression.left, expression.right)[place] if len(user.inputs) == 2 else None
    if not isinstance(expression, cst.Call):
        return expression.value if isinstance(expression, cst.Subscript) and place == 0 else None
    if user.target is not None:  # a child module, also one that is an activation
        return _given_to_child(expression, place, user, op)
    if not isinstance(expression.func, cst.Attribute):
        plain = [a.value for a in expression.args if a.keyword is None and not a.star]
        return plain[place] if place < len(plain) else None
    owner = expression.func.value
    if source.names_module(owner):
        named = [a.value for a in expression.args if a.keyword and a.keyword.value == "input"]
        if place == 0 and named:
            return named[0]
        arg = expression.args[place] if place < len(expression.args) else None
        return arg.value if arg is not None and arg.keyword is None else None
    return owner if place == 0 else None


def _given_to_child(call: cst.Call, place: int, user: Op, op: Op) -> cst.BaseExpression | None:
    """The argument of a child's call at this place of its forward, by place or by keyword; None behind `*xs`."""
    plain = [a for a in call.args if a.keyword is None and a.star != "**"]
    if any(a.star for a in plain[: place + 1]):
        return None
    if place < len(plain):
        return plain[place].value
    given = user.node.kwargs if user.node is not None else {}
    names = {name for name, value in given.items() if value is op.node}
    named = (a.value for a in call.args if a.keyword is not None and a.keyword.value in names)
    return next(named, None)
