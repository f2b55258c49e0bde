"""Who calls a module, read from the traces: the parent whose graph has the call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neuron_autoport.hosts.neuron.attention_form import NotThis
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.trace.ops import Op


def module_calls(plan: ClassPlan) -> Iterator[Op]:
    """The calls of child modules in a class's graph."""
    return (op for op in plan.graph.ops if op.name == "module")


def caller_of(where: Mapping[str, ClassPlan], path: str) -> tuple[str, ClassPlan, Op]:
    """(path, plan, call) of the module that calls the one at `path`.

    Raises:
        NotThis: nobody is seen to.
    """
    owner = path
    while owner:
        owner, _, _ = owner.rpartition(".")
        plan = where.get(owner)
        below = path.removeprefix(f"{owner}.")
        call = next((op for op in module_calls(plan) if op.target == below), None) if plan else None
        if plan is not None and call is not None:
            return owner, plan, call
    raise NotThis("nobody is seen to call the block")
