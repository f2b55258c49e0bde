"""Forwards without operations in place that the plugin's compiler does not take.

It rewrites `add_`, `copy_`, `index_put_` and slice assignment; `x /= y` or `x.scatter_(...)` end the
compilation. Where the trace of a class shows such an operation, its forward is written anew: `x /= y` as
`x = x / y`, a method with `_` as the method without. A value that had another name would then keep what it
was; the self-test would show it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import libcst as cst

from neuron_autoport.port import Port
from neuron_autoport.rewrite.apply import apply_edits
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.source import Edits, ForwardSource, NoSource

TAKEN = frozenset({"add", "iadd", "copy", "index_put", "setitem"})
_OPERATORS: dict[type[cst.BaseAugOp], type[cst.BaseBinaryOp]] = {
    cst.DivideAssign: cst.Divide,
    cst.MultiplyAssign: cst.Multiply,
    cst.SubtractAssign: cst.Subtract,
    cst.FloorDivideAssign: cst.FloorDivide,
    cst.PowerAssign: cst.Power,
    cst.ModuloAssign: cst.Modulo,
    cst.BitAndAssign: cst.BitAnd,
    cst.BitOrAssign: cst.BitOr,
    cst.BitXorAssign: cst.BitXor,
}


class OutOfPlacePlan(ClassPlan):
    """A class plan whose new source works out of place."""

    def new_source(self) -> str | None:
        text = super().new_source()
        if text is None:
            assert self.source is not None
            text = apply_edits(self.source, Edits())
        return cst.parse_module(text).visit(_OutOfPlace()).code


def refused_in_place(plan: ClassPlan) -> set[str]:
    """Names of the operations in place of a class that the compiler does not take."""
    found = set()
    for op in plan.graph.ops:
        if op.inplace and op.node is not None:
            name = getattr(op.node.target, "__name__", str(op.node.target)).strip("_")
            if name not in TAKEN:
                found.add(name)
    return found


def out_of_place(port: Port) -> Port:
    """The port with a new plan for every class that needs one and whose source can be written anew."""
    other: dict[ClassPlan, ClassPlan] = {}
    for plan in port.plans:
        if not refused_in_place(plan) or type(plan.trace.module_class) is not type:
            continue
        if plan.trace.module_class.forward is not plan.trace.forward:
            continue  # behind a decorator, which a subclass would lose
        made = _plan(plan)
        if made is not None:
            other[plan] = made
    plans = tuple(other.get(p, p) for p in port.plans)
    where = {path: other.get(p, p) for path, p in port.where.items()}
    return replace(port, plans=plans, where=where)


def _plan(plan: ClassPlan) -> ClassPlan | None:
    source = plan.source
    if source is None:
        try:
            source = ForwardSource(plan.trace.forward, plan.trace.module_class)
        except NoSource:
            return None
    given: dict[str, Any] = {f.name: getattr(plan, f.name) for f in fields(plan)}
    return OutOfPlacePlan(**{**given, "source": source})


class _OutOfPlace(cst.CSTTransformer):
    def leave_AugAssign(self, original_node: Any, updated_node: cst.AugAssign) -> Any:
        operator = _OPERATORS.get(type(updated_node.operator))
        if operator is None or not isinstance(updated_node.target, cst.Name):
            return updated_node
        right = updated_node.value
        if not isinstance(right, cst.Name | cst.Call | cst.Attribute | cst.Subscript):
            right = right.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        value = cst.BinaryOperation(updated_node.target, operator(), right)
        return cst.Assign([cst.AssignTarget(updated_node.target)], value)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """`x.scatter_(...)` as a value; a bare statement is handled where the statement is."""
        function = updated_node.func
        if not isinstance(function, cst.Attribute):
            return updated_node
        name = function.attr.value
        if not name.endswith("_") or name.startswith("_") or name.strip("_") in TAKEN:
            return updated_node
        return updated_node.with_changes(
            func=function.with_changes(attr=cst.Name(name.removesuffix("_")))
        )

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> Any:
        """`x.scatter_(...)` alone becomes `x = x.scatter(...)`."""
        before, call = original_node.value, updated_node.value
        if not isinstance(before, cst.Call) or not isinstance(call, cst.Call):
            return updated_node
        if before.func.deep_equals(call.func) or not isinstance(call.func, cst.Attribute):
            return updated_node
        owner = call.func.value
        if not isinstance(owner, cst.Name):
            return updated_node
        return cst.Assign([cst.AssignTarget(owner)], call)
