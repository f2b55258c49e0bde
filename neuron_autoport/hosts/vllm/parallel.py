"""Tensor- and pipeline-parallel plans read from the graphs, for models that declare none and where theirs does not fit.

A fused site says how its weights are shared. From there the shared values are followed through the graph of their
class: a linear layer that takes one closes it (its rows are shared, its sum is reduced); a norm over all columns gets
them gathered. Where neither is possible every rank computes the class whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)

from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.ops import Op

_SHARED = frozenset(("column", "heads"))
# These look at all of the last dimension at once.
_OVER_ALL = frozenset(("mean", "sum", "softmax", "var", "norm", "layer_norm", "amax", "cumsum"))


@dataclass(frozen=True)
class Sharing:
    """How the ranks share one class.

    whole: why every rank computes all of it, or None. columns, rows: linear modules outside of sites whose columns
    are shared, and that take shared values. gathers: modules that get all columns of a shared value, and give back
    this rank's. by_heads: each rank attends with its own heads.
    """

    whole: str | None
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    gathers: tuple[str, ...] = ()
    by_heads: bool = False


def sharing_of(plan: ClassPlan, module: nn.Module, columnwise: Callable[[str], bool]) -> Sharing:
    """Follow the shared values of a class.

    Args:
        module: of the class, with all its parameters. columnwise: does the model's own plan share the columns of
        this child?
    """
    opened, closing, free = _of_sites(plan, columnwise)
    shared: set[Op] = set()
    rows: list[str] = []
    gathers: list[str] = []
    heads = {x.shape[1] for op in plan.graph.ops if op.name == "attention" for x in op.inputs[:3]}
    for op in plan.graph.ops:
        taken = [x for x in op.operands() if x in shared]
        child = module.get_submodule(op.target) if op.name == "module" and op.target else None
        if child is not None and op.target in opened:
            if taken:
                return Sharing(f"{op.target} takes columns that are shared, and shares its own")
            shared.add(op)
        elif not taken:
            if op.target in closing:
                return Sharing(f"{op.target} takes columns that nobody shares")
        elif isinstance(child, nn.Linear) and op.target is not None:
            if op.target not in closing:
                rows.append(op.target)
        elif child is not None and next(child.parameters(), None) is not None and op.target:
            if _by_head(child, op):
                shared.add(op)
            elif len(taken) == 1 and op.shape == taken[0].shape:
                gathers.append(op.target)
                shared.add(op)
            else:
                return Sharing(f"{op.target} works on all columns at once")
        elif op.name == "attention" and op.inputs[0] not in shared:
            return Sharing("its keys are shared by head, its queries are not")
        elif (why := _mixed(op, taken) or _regroups(op, taken, heads)) is not None:
            return Sharing(why)
        else:
            shared.add(op)
    if any(op in shared for op in plan.graph.outputs):
        return Sharing("columns that are shared leave it")
    by_heads = any(op.name == "attention" for op in shared)
    columns = tuple(sorted(opened & free))
    return Sharing(
        None, columns, tuple(dict.fromkeys(rows)), tuple(dict.fromkeys(gathers)), by_heads
    )


def _of_sites(
    plan: ClassPlan, columnwise: Callable[[str], bool]
) -> tuple[set[str], set[str], set[str]]:
    """Modules whose columns are shared, those of sites whose rows are, and modules in no site."""
    opened: set[str] = set()
    closing: set[str] = set()
    held: set[str] = set()
    for weight in (w for site in plan.sites for w in site.weights):
        names = {p.module for p in weight.parts}
        held |= names
        if weight.shard in _SHARED or (weight.shard == "plan" and all(map(columnwise, names))):
            opened |= names
        elif weight.shard == "row":
            closing |= names
    calls = [op for op in plan.graph.ops if op.name == "module" and op.target]
    free = {str(op.target) for op in calls} - held
    opened |= {name for name in free if columnwise(name)}
    opened |= {str(op.target) for op in calls if op.target in free and _makes_heads(op, plan)}
    return opened, closing, free


def _makes_heads(op: Op, plan: ClassPlan) -> bool:
    """Is what a linear layer gives only ever unfolded into the heads of the class's attention?"""
    asked = next((x for x in plan.graph.ops if x.name == "attention"), None)
    if asked is None or op.trace is None or linear_of(op.trace) is None or not op.users:
        return False
    heads = {x.shape[1] for x in asked.inputs[:3]} - {1}
    return all(
        user.name == "view"
        and len(user.shape) == 4
        and user.shape[-2] in heads
        and user.shape[-2] * user.shape[-1] == op.shape[-1]
        for user in op.users
    )


def _by_head(child: nn.Module, op: Op) -> bool:
    """Does a module with parameters work on one head at a time? Then its input has an axis of heads before."""
    width = op.shape[-1] if op.shape else 0
    return len(op.shape) > 3 and all(tuple(p.shape) == (width,) for p in child.parameters())


def _mixed(op: Op, taken: list[Op]) -> str | None:
    """Why an operation cannot run on this rank's part of a shared value alone."""
    flat = all(len(x.shape) <= 3 for x in taken)
    if op.name in _OVER_ALL and flat and -1 in _axes(op):
        return f"`{op.label}` works on all columns at once"
    width = max(x.shape[-1] if x.shape else 1 for x in taken)
    for other in op.operands():
        if other not in taken and other.shape and other.shape[-1] == width and flat and width > 1:
            return f"`{op.label}` joins shared columns with others"
    return None


def _regroups(op: Op, taken: list[Op], heads: set[int]) -> str | None:
    """Why an operation pairs heads that may be on different ranks: it takes some of them, or joins or repeats them."""
    if op.name not in ("slice", "cat", "unknown:repeat") or len(op.shape) != 4:
        return None
    for x in (x for x in taken if len(x.shape) == 4):
        for axis in (-3, -2):
            if x.shape[axis] != op.shape[axis] and {x.shape[axis], op.shape[axis]} & heads:
                return f"`{op.label}` takes, joins or repeats some of the heads"
    return None


def _axes(op: Op) -> tuple[int, ...]:
    dim = op.attrs.get("dim", -1)
    return tuple(dim) if isinstance(dim, list | tuple) else (dim,)


def gather_around(module: Any) -> None:
    """Let a module see all columns of its input, and give back this rank's of what it makes of them."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        whole = type(module).forward(
            module, tensor_model_parallel_all_gather(x.contiguous(), dim=-1)
        )
        ranks, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
        return whole.chunk(ranks, dim=-1)[rank].contiguous()

    module.forward = forward


def share_linears(plan: ClassPlan, module: nn.Module, sharing: Sharing) -> dict[str, str]:
    """The style of every linear layer of a class that is in no site, by the name of the child."""
    held = {p.module for site in plan.sites for w in site.weights for p in w.parts}
    styles = {}
    for name, child in module.named_children():
        if not isinstance(child, nn.Linear) or name in held:
            continue
        if sharing.whole is not None:
            styles[name] = "replicate"
        elif name in sharing.rows:
            styles[name] = "rowwise"
        else:
            styles[name] = "colwise" if name in sharing.columns else "replicate"
    return styles


def pipeline_plan(trace: ModuleTrace, base: nn.Module) -> dict[str, Any]:
    """The parts of a model in the order they run, in the form of transformers' own plans.

    Parts before the list of layers belong to the first stage, those after it to the last; what has no weights
    is on every stage.

    Args:
        trace: of the base model. base: that model.
    """
    names = dict.fromkeys(call.path.partition(".")[0] for call in trace.children)
    weighted = [n for n in names if next(base.get_submodule(n).parameters(), None) is not None]
    return {name: (["hidden_states"], ["hidden_states"]) for name in weighted}


def columns_shared(tp_plan: dict[str, str]) -> Callable[[str], bool]:
    """Does the model's parallel plan share the columns of the linear module at a path?"""
    patterns = [
        re.compile(re.escape(path).replace(r"\*", "[^.]+"))
        for path, style in tp_plan.items()
        if style == "colwise"
    ]
    return lambda path: any(p.fullmatch(path) for p in patterns)


def below(path: str, holds: Callable[[str], bool]) -> Callable[[str], bool]:
    """What holds for a path, asked of a child of the module at `path`."""
    return lambda child: holds(f"{path}.{child}")
