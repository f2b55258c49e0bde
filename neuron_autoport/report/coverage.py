"""What share of a model's work is in sites: every op of every module call, weighed by its cost.

Calls are walked, not paths: a module called twice counts twice. Where a site replaces child modules
(`mlp` its three projections), all work below them belongs to the site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

from neuron_autoport.port import Port
from neuron_autoport.report.cost import PRODUCTS, Cost, graph_costs, kind_of
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.site import Site
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.ops import Op


@dataclass(frozen=True, eq=False)
class Work:
    """One op of one class, called from one other class.

    cost: of one call. calls: in the whole model. site: the one that holds it, if any.
    plan: of the class whose forward has the op; caller: of the class that calls that one.
    name: of the module in its caller, e.g. `lm_head`; empty for the model itself.
    stated: names of rules that say the target has no function for it, or for what it is a part of.
    """

    op: Op
    plan: ClassPlan
    caller: ClassPlan | None
    name: str
    site: Site | None
    cost: Cost
    calls: int
    stated: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Coverage:
    """All work of a model, and what of its weights is used in sites.

    weight_bytes: of all parameters, tied ones once; claimed: those that sites read, by site.
    unused: parameters that no traced op reads. whole: every class was traced to its end.
    """

    work: tuple[Work, ...]
    parameters: int
    weight_bytes: int
    claimed: dict[Site, int]
    unused: dict[str, torch.Tensor]
    whole: bool

    @cached_property
    def missing(self) -> Cost:
        """Work that was not traced: one product with each weight matrix that was not reached."""
        if self.whole:
            return Cost()
        flops = sum(2.0 * p.numel() for p in self.unused.values() if p.dim() > 1)
        return Cost(flops, float(sum(_size(p) for p in self.unused.values())))

    @cached_property
    def fused(self) -> Cost:
        return total_cost(w for w in self.work if w.site is not None)

    @cached_property
    def total(self) -> Cost:
        return total_cost(self.work) + self.missing

    def products(self, in_sites: bool = False) -> int:
        """Matrix products of the whole model, every call of one counted; or those of them in sites."""
        work = (w for w in self.work if kind_of(w.op) in PRODUCTS)
        return sum(w.calls for w in work if w.site is not None or not in_sites)

    def of_site(self, site: Site) -> Cost:
        """Cost of one site, all its instances together."""
        return total_cost(w for w in self.work if w.site is site)


def total_cost(work: Iterable[Work]) -> Cost:
    """The sum over all calls."""
    total = Cost()
    for w in work:
        total += w.cost.times(w.calls)
    return total


def measure(port: Port) -> Coverage:
    """Weigh a planned port."""
    return _Measure(port).run()


_Key = tuple[Op, ClassPlan, "ClassPlan | None", str, "Site | None", frozenset[str]]


class _Measure:
    def __init__(self, port: Port) -> None:
        self.port = port
        self.plans = {plan.trace: plan for plan in port.plans}
        self.sites = {
            plan: {op: site for site in plan.sites for op in site.match.interior}
            for plan in port.plans
        }
        self.calls: Counter[_Key] = Counter()
        self.readers: dict[str, Site | None] = {}

    def run(self) -> Coverage:
        self.walk("", "", self.port.trace, None, None)
        costs = {plan: graph_costs(plan.graph, tokens=self.port.tokens) for plan in self.port.plans}
        work = tuple(
            Work(op, plan, caller, name, site, costs[plan][op], calls, stated)
            for (op, plan, caller, name, site, stated), calls in self.calls.items()
        )
        whole = all(plan.trace.end is None for plan in self.port.plans)
        return Coverage(work, *self.weights(), whole)

    def walk(
        self,
        path: str,
        name: str,
        trace: ModuleTrace,
        caller: ClassPlan | None,
        above: Site | None,
        said: frozenset[str] = frozenset(),
    ) -> None:
        """Count one call of a module at `path`.

        Args:
            above: the site that replaces all of it. said: rules that say why all of it stays.
        """
        plan = self.plans[trace]
        sites = self.sites[plan]
        for op in plan.graph.ops:
            site = above or sites.get(op)
            target = f"{path}.{op.target}" if path else str(op.target)
            stated = said | plan.stated.get(op, frozenset())
            if op.name == "module" and op.trace is not None:
                self.walk(target, _bare(str(op.target)), op.trace, plan, site, stated)
            elif op.name == "param":
                reading = (sites[user] for user in op.users if user in sites)
                site = site or next(reading, None)  # a weight that is read is no part of a match
                self.readers[target] = self.readers.get(target) or site
            else:
                self.calls[op, plan, caller, name, site, stated] += 1

    def weights(self) -> tuple[int, int, dict[Site, int], dict[str, torch.Tensor]]:
        """Parameters and their bytes, bytes by the site that reads them, and what nothing reads."""
        readers: dict[int, Site | None] = {}
        tensors: dict[int, tuple[str, torch.Tensor]] = {}
        for path, tensor in self.port.model.named_parameters(remove_duplicate=False):
            tensors.setdefault(id(tensor), (path, tensor))
            if path in self.readers:
                readers[id(tensor)] = readers.get(id(tensor)) or self.readers[path]
        claimed: Counter[Site] = Counter()
        for key, site in readers.items():
            if site is not None:
                claimed[site] += _size(tensors[key][1])
        unused = {path: t for key, (path, t) in tensors.items() if key not in readers}
        count = sum(t.numel() for _, t in tensors.values())
        size = sum(_size(t) for _, t in tensors.values())
        return count, size, dict(claimed), unused


def _bare(path: str) -> str:
    """A module's name in its caller without the numbers of equal siblings."""
    return ".".join(p for p in path.split(".") if not p.isdigit())


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize
