"""Helper functions that a forward calls: which argument a value came in by, which result it is.

Read from the helper's own source, and only what is plain there: a parameter that is read before anything binds
its name again, results that are names or expressions of one last `return`.
"""

from __future__ import annotations

import libcst as cst

from neuron_autoport.rewrite.names import bound_names, walk
from neuron_autoport.rewrite.source import ForwardSource
from neuron_autoport.rewrite.straight import returned_place
from neuron_autoport.trace.ops import Op


def argument_of(
    call: cst.BaseExpression,
    helper: ForwardSource,
    name: cst.BaseExpression | None,
    reader: cst.BaseExpression,
) -> cst.BaseExpression | None:
    """The argument of `call` that the parameter `name` holds where `reader`, in the helper, reads it."""
    if not isinstance(name, cst.Name) or not isinstance(call, cst.Call):
        return None
    place = helper.range(reader)
    for line in helper.lines:
        if name.value in bound_names(line) and helper.range(line)[:2] < place[:2]:
            own = helper.statement_of(reader)
            if line is not own:
                return None
    names = [p.name.value for p in helper.function.params.params]
    if helper.is_method:
        names = names[1:]
    if name.value not in names or any(a.star for a in call.args):
        return None
    plain = [a.value for a in call.args if a.keyword is None]
    index = names.index(name.value)
    if index < len(plain):
        return plain[index]
    named = {a.keyword.value: a.value for a in call.args if a.keyword is not None}
    return named.get(name.value)


def returned_by_helper(source: ForwardSource, outputs: list[Op]) -> bool:
    """Does one helper call return exactly these values, as a tuple in this order?"""
    if any(len(op.spans) < 2 or op.spans[:1] != outputs[0].spans[:1] for op in outputs):
        return False
    call = source.expression_at(outputs[0].spans[0])
    helper = source.called(call) if call is not None else None
    if helper is None:
        return False
    returns = [n for n in walk(helper.function) if isinstance(n, cst.Return)]
    if len(returns) != 1 or not isinstance(returns[0].value, cst.Tuple):
        return False
    values = [e.value for e in returns[0].value.elements]
    if len(values) != len(outputs):
        return False
    inner = all(_handed_up(source, op) for op in outputs)
    return inner and all(_is(helper, value, op) for value, op in zip(values, outputs, strict=True))


def _handed_up(source: ForwardSource, op: Op) -> bool:
    """Do the helpers that the helper calls return just the value?"""
    places = ((s.line, s.column, s.end_line, s.end_column) for s in op.spans[2:])
    made = (returned_place(s, source.owner, source.reads) for s in op.spans[2:])
    return all(one == other for one, other in zip(places, made, strict=True))


def _is(helper: ForwardSource, value: cst.BaseExpression, op: Op) -> bool:
    """Is the returned expression the value of `op`, or the call that gives it?"""
    made = helper.expression_at(op.spans[1])
    if made is None:
        return False
    if made is value:
        return True
    if not isinstance(value, cst.Name):
        return False
    binders = [line for line in helper.lines if value.value in bound_names(line)]
    last = max(binders, key=lambda line: helper.range(line)[:2], default=None)
    if last is None or helper.block_of(last) is not helper.function.body:
        return False
    (statement, *more) = last.body
    return (
        not more
        and isinstance(statement, cst.Assign)
        and statement.value is made
        and all(isinstance(t.target, cst.Name) for t in statement.targets)
    )
