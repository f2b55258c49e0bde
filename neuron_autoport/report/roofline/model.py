"""Time of one decode step by the roofline: each call takes max(FLOPs / peak FLOP/s, bytes / peak bytes/s).

Unfused, every operation is a call that reads its operands from device memory and writes its result there.
Fused, a site is one call: weights, what comes in and what goes out are moved, what lies between is not. A
site whose kernel limits do not hold counts as unfused.

Products, attention, the cache and their weights are divided by the ranks; everything else is done by each rank.
Collectives, launches and the host are left out. S. Williams, A. Waterman, D. Patterson, "Roofline: an
insightful visual performance model for multicore architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

import torch

from neuron_autoport.port import Port
from neuron_autoport.report.cost import PRODUCTS, graph_costs, kind_of, size_of, static_ops
from neuron_autoport.report.fold import range_name
from neuron_autoport.report.limits import broken_limits
from neuron_autoport.report.roofline.chips import Chip
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.site import Site
from neuron_autoport.rules.load_code import scope_of
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.ops import Op

_LAYER = re.compile(r"^(.*?)(?:^|\.)(\d+)(?=\.|$)")
OUTSIDE = "outside the layers"


@dataclass(frozen=True)
class Step:
    """What is asked: sequences of the step, positions each attends to, tensor-parallel ranks."""

    batch: int
    context: int
    tp: int


@dataclass
class Total:
    """Sums of one rank's calls. seconds: by the roofline; memory_bound: those bound by bytes."""

    flops: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    memory_bound: float = 0.0

    def add(self, flops: float, moved: float, chip: Chip, dtype: torch.dtype) -> None:
        """Add one call."""
        compute, memory = flops / chip.rank_flops(dtype), moved / chip.rank_memory
        self.flops += flops
        self.bytes += moved
        self.seconds += max(compute, memory)
        self.memory_bound += memory if memory >= compute else 0.0

    def plus(self, other: Total) -> Total:
        """Both together."""
        names = ("flops", "bytes", "seconds", "memory_bound")
        return Total(*(getattr(self, n) + getattr(other, n) for n in names))


@dataclass
class Row:
    """Equal layers, or all that is in none. name: of their modules; count: how many."""

    name: str
    count: int
    fused: Total
    unfused: Total


@dataclass
class _Layer:
    fused: Total = field(default_factory=Total)
    unfused: Total = field(default_factory=Total)
    calls: dict[tuple[str, Site], list[float]] = field(default_factory=dict)


def roofline(port: Port, chip: Chip, step: Step, dtype: torch.dtype) -> list[Row]:
    """One row per group of equal layers and one for the rest, for one rank, in the model's order.

    Args:
        dtype: whose peak holds.
    """
    walk = _Walk(port, chip, step, dtype)
    walk.enter("", port.trace, None)
    rows: dict[tuple[str, str], list[tuple[str, _Layer]]] = defaultdict(list)
    for name, layer in walk.layers.items():
        alike = "" if name == OUTSIDE else repr((layer.fused, layer.unfused))
        rows[_LAYER.sub(r"\1", name), alike].append((name, layer))
    return [_row(group) for group in rows.values()]


def _row(group: list[tuple[str, _Layer]]) -> Row:
    """All of a group together."""
    names = [name for name, _ in group]
    head = names[0]
    if head != OUTSIDE:
        head = range_name(re.sub(r"\d+$", "*", head), names)
    fused, unfused = Total(), Total()
    for _, layer in group:
        fused, unfused = fused.plus(layer.fused), unfused.plus(layer.unfused)
    return Row(head, len(group), fused, unfused)


class _Walk:
    def __init__(self, port: Port, chip: Chip, step: Step, dtype: torch.dtype) -> None:
        self.port, self.chip, self.step, self.dtype = port, chip, step, dtype
        self.plans = {plan.trace: plan for plan in port.plans}
        self.layers: dict[str, _Layer] = defaultdict(_Layer)
        self.costs = {
            p: graph_costs(p.graph, step.context, port.tokens, step.batch) for p in port.plans
        }
        self.sites = {
            p: {op: s for s in p.sites for op in s.match.interior if self.runs(s)} for p in port.plans
        }  # fmt: skip

    def runs(self, site: Site) -> bool:
        """Is it one call, or do its limits not hold?"""
        broken = broken_limits(site, self.step.tp, self.chip.name)
        return all(scope_of(limit.text) == "prefill" for limit in broken)

    def enter(self, path: str, trace: ModuleTrace, above: list[float] | None) -> None:
        """Weigh one call of a module. above: FLOPs and bytes of the fused call it is part of."""
        plan = self.plans[trace]
        layer = self.layers[_layer_of(path)]
        calls: dict[Site, list[float]] = {}
        for site in dict.fromkeys(self.sites[plan].values()) if above is None else ():
            calls[site] = [0.0, self.traffic(plan, site)]
        for op in plan.graph.ops:
            site_of = self.sites[plan].get(op)
            call = above if above is not None else calls[site_of] if site_of is not None else None
            if op.name == "module" and op.trace is not None:
                self.enter(f"{path}.{op.target}" if path else str(op.target), op.trace, call)
            elif op.name == "param" and above is not None:
                above[1] += size_of(op) / self.step.tp
            elif op.name != "param":
                self.weigh(op, plan, layer, call)
        for flops, moved in calls.values():
            layer.fused.add(flops, moved, self.chip, self.dtype)

    def weigh(self, op: Op, plan: ClassPlan, layer: _Layer, call: list[float] | None) -> None:
        cost = self.costs[plan][op]
        ranks = self.step.tp if kind_of(op) in PRODUCTS | {"attention"} else 1
        flops, moved = cost.flops / ranks, cost.bytes / ranks
        if not flops and not moved:
            return
        layer.unfused.add(flops, moved, self.chip, self.dtype)
        if call is None:
            layer.fused.add(flops, moved, self.chip, self.dtype)
        else:
            call[0] += flops

    def traffic(self, plan: ClassPlan, site: Site) -> float:
        """Bytes that cross the border of a site, without the weights of child modules."""
        inside = set(site.match.interior)
        static = static_ops(plan.graph)
        share = self.step.batch / self.port.tokens
        come = {o for op in inside for o in op.operands() if o not in inside}
        ends = set(plan.graph.outputs)
        go = {op for op in inside if op in ends or any(u not in inside for u in op.users)}
        ranks = self.step.tp if any(w.shard != "replicate" for w in site.weights) else 1
        weights = sum(size_of(o) for o in come if o in static) / ranks
        return weights + share * sum(size_of(o) for o in (come | go) - static)


def _layer_of(path: str) -> str:
    found = _LAYER.match(path)
    return found.group(0) if found is not None else OUTSIDE
