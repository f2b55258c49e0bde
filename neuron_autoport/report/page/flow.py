"""The data flow of one class as a small graph: its operations before, its calls after the rewrite."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from neuron_autoport.report.build import call_name
from neuron_autoport.report.cost import base_name, kind_of
from neuron_autoport.report.page.code import site_key
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.site import Site
from neuron_autoport.trace.ops import Op

# A picture of more nodes than this is no help.
MOST_NODES = 60


@dataclass(frozen=True, eq=False)
class FlowNode:
    """kind: input, module, op, site or output. key: of the site it belongs to, else empty."""

    label: str
    kind: str
    key: str = ""


def flow(plan: ClassPlan, fused: bool) -> nx.DiGraph | None:
    """The data flow of a class.

    Args:
        fused: each site is one node; else every operation is. Weights and changes of layout are left
            out, their values pass through.

    Returns:
        A graph of `FlowNode`, edges as the data goes; None if the trace did not end or has too many nodes.
    """
    if plan.trace.end is not None:
        return None
    graph = _Flow(plan, fused).graph()
    drawable = 1 < len(graph) <= MOST_NODES and nx.is_directed_acyclic_graph(graph)
    return graph if drawable else None


class _Flow:
    def __init__(self, plan: ClassPlan, fused: bool) -> None:
        self.plan, self.fused = plan, fused
        self.site_of: dict[Op, Site] = {op: s for s in plan.sites for op in s.match.interior}
        self.keys = {site: site_key(i) for i, site in enumerate(plan.sites)}
        self.of_site: dict[Site, FlowNode] = {}
        self.nodes: dict[Op, frozenset[FlowNode]] = {}

    def graph(self) -> nx.DiGraph:
        made = nx.DiGraph()
        for op in self.plan.graph.ops:
            self.add(op, made)
        out = FlowNode("output", "output")
        for op in self.plan.graph.outputs:
            made.add_edges_from((node, out) for node in self.nodes.get(op, ()))
        ends = [n for n in made if n.kind in ("output", "site")]
        useful = set(ends).union(*(nx.ancestors(made, n) for n in ends))
        made.remove_nodes_from([n for n in made if n not in useful])
        return made

    def add(self, op: Op, made: nx.DiGraph) -> None:
        """Add a node for `op`, or say which nodes its value comes from."""
        sources = frozenset(n for o in op.operands() for n in self.nodes.get(o, frozenset()))
        if op.name == "param" or (op.name == "input" and not op.shape):
            return
        site = self.site_of.get(op)
        if site is not None and self.fused:
            node = self.of_site.setdefault(site, self.site_node(site))
        elif kind_of(op) == "layout" or (not sources and op.name != "input"):
            self.nodes[op] = sources
            return
        else:
            node = FlowNode(_label(op), _kind(op), self.keys[site] if site is not None else "")
        made.add_node(node)
        made.add_edges_from((source, node) for source in sources if source is not node)
        self.nodes[op] = frozenset({node})

    def site_node(self, site: Site) -> FlowNode:
        return FlowNode(call_name(site.rule), "site", self.keys[site])


def _kind(op: Op) -> str:
    return op.name if op.name in ("input", "module") else "op"


def _label(op: Op) -> str:
    if op.name in ("input", "module"):
        return str(op.target)
    return base_name(op)
