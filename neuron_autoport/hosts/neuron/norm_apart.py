"""Why the norm and the residual sum before an MLP are calls of their own, though `NF.mlp` could hold both.

`NF.mlp` normalizes in the dtype of its input, and its kernel takes bfloat16 only (the plugin's contract). Norms of
models compute in float32 and round once or twice. Rounding the mean of squares, its root and each product as well
puts the result further from float32 than the model's own bfloat16 is, by 1.1 to 1.4 times
(`tests/nf/test_norm_order.py`): the order of rounding does not allow it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from neuron_autoport.hosts.neuron.attention_form import NotThis
from neuron_autoport.hosts.neuron.callers import caller_of
from neuron_autoport.hosts.neuron.rotation import under
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.trace.ops import Op

MLP = "NF.mlp"
_IN_FLOAT32 = ("layer_norm", "rms_norm")  # torch's own, whatever the dtype of their input
_ROLES = ("layer_norm", "rms_norm", "rms_norm_fp32_weightless")


def norm_before(where: Mapping[str, ClassPlan], path: str) -> tuple[str, str] | None:
    """(`norm`, or `residual sum and norm`; why it is not in `NF.mlp`) of the MLP at `path`; None without a norm."""
    try:
        owner, _, call = caller_of(where, path)
    except NotThis:
        return None
    norm = under(call.inputs[0]) if call.inputs and isinstance(call.inputs[0], Op) else None
    plan = (
        where.get(f"{owner}.{norm.target}") if norm is not None and norm.name == "module" else None
    )
    if norm is None or plan is None or not any(s.rule.role in _ROLES for s in plan.sites):
        return None
    what = "residual sum and norm" if _is_sum(norm.inputs[0]) else "norm"
    return what, _why(plan)


def _is_sum(op: Op) -> bool:
    return isinstance(op, Op) and under(op).name == "add"


def _why(plan: ClassPlan) -> str:
    name = plan.trace.module_class.__name__
    if computes_in_float32(plan):
        return f"{name} rounds after float32, {MLP} at every step in bfloat16, all its kernel takes"
    return f"no rule takes {name} into {MLP}"


def computes_in_float32(plan: ClassPlan) -> bool:
    """Does a norm divide by a root that is float32?"""
    ops = plan.graph.ops
    return any(op.name in _IN_FLOAT32 for op in ops) or any(
        op.name == "rsqrt" and op.dtype is torch.float32 for op in ops
    )
