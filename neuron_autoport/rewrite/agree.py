"""Do all the places where a match reads a value read the same one, whatever path the forward takes?

The call that replaces a match reads each input once. Where the original reads it under two names that an untaken
path tells apart, the match is refused, or the path is closed: `k = other if other is not None else x` says
`NF.moved(...)` for `other` then, so that no other input is silently ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import libcst as cst

from neuron_autoport.rewrite.operands import OperandText, operand_of
from neuron_autoport.rewrite.reaching import Meaning, is_false, meaning, stand_in
from neuron_autoport.rewrite.reasons import Refused
from neuron_autoport.rewrite.source import ForwardSource
from neuron_autoport.trace.ops import Op


@dataclass(frozen=True)
class Agreed:
    """What the inputs of a match mean, and where they are read first, by capture.

    closed: the arms of choices that must not be taken.
    """

    meanings: dict[str, Meaning] = field(default_factory=dict)
    texts: dict[str, cst.BaseExpression] = field(default_factory=dict)
    closed: dict[cst.BaseExpression, cst.IfExp] = field(default_factory=dict)

    def fails(self, source: ForwardSource, test: cst.BaseExpression) -> bool:
        """Is the condition false wherever none of the closed arms was taken?"""
        tests = (choice.test for arm, choice in self.closed.items() if choice.body is arm)
        return any(is_false(source, test, known) for known in tests)


def agree(source: ForwardSource, operands: OperandText, inputs: dict[str, Op]) -> Agreed:
    """Compare all reads of each input.

    Args:
        inputs: captured values that the new call reads.

    Raises:
        Refused: (AP209) they need not be one value.
    """
    found = Agreed()
    for name, op in inputs.items():
        places = [_under(source, op, e) for e in operands.expressions_of(op)]
        if not places or op.name == "param":
            continue
        found.texts[name] = places[0]
        # What is no name and no choice is computed there, and nowhere else.
        reads = {meaning(source, e): e for e in places if isinstance(e, cst.Name | cst.IfExp)}
        if not reads:
            continue
        plain = [m for m in reads if not isinstance(m, cst.IfExp)]
        wanted = plain[0] if len(plain) == 1 else next(iter(reads))
        for other in reads.keys() - {wanted}:
            arm = stand_in(source, other, wanted) if isinstance(other, cst.IfExp) else None
            if arm is None or not isinstance(other, cst.IfExp):
                text = " and ".join(sorted({f"`{source.code(e)}`" for e in reads.values()}))
                message = f"`{name}` is read as {text}, which another path may tell apart"
                raise Refused("AP209", message, op.spans[0] if op.spans else None)
            found.closed[arm] = other
        found.meanings[name] = wanted
    return found


def check_inner(source: ForwardSource, operands: OperandText, inner: Iterable[Op]) -> None:
    """Refuse (AP209) a value that is to go if its name may hold another one on another path."""
    for op in inner:
        for expression in operands.expressions_of(op):
            if isinstance(meaning(source, expression), cst.IfExp | frozenset):
                message = f"`{source.code(expression)}` may hold another value on another path"
                raise Refused("AP209", message, op.spans[0] if op.spans else None)


def _under(source: ForwardSource, op: Op, expression: cst.BaseExpression) -> cst.BaseExpression:
    """What a step that changes nothing, such as a cast to the dtype a value has, is applied to."""
    while op.name == "view" and op.attrs.get("same") and op.spans:
        inner = operand_of(source, expression, op, op.inputs[0])
        if inner is None or source.expression_at(op.spans[0]) is not expression:
            break
        op, expression = op.inputs[0], inner
    return expression
