"""What a child module is, read from its own graph: a linear map, with its sizes and layout."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from neuron_autoport.trace.canonical import canonical_graph
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.ops import Op


@dataclass(frozen=True)
class LinearFacts:
    """y = x @ W (+ b). `layout` says how the module keeps W: `out_in` or `in_out`."""

    in_features: int
    out_features: int
    layout: str
    weight: str
    bias: str | None


@lru_cache(maxsize=4096)
def linear_of(trace: ModuleTrace) -> LinearFacts | None:
    """The linear map a module is, or None if its forward does anything else."""
    if trace.end is not None:
        return None
    graph = canonical_graph(trace)
    products = [op for op in graph.ops if op.name == "linear"]
    inside = {op for product in graph.ops for op in product.absorbed}
    products = [op for op in products if op not in inside]
    plain = ("linear", "input", "param", "view")
    others = [op for op in graph.ops if op.name not in plain and op not in inside]
    if len(products) != 1 or others or len(graph.outputs) != 1 or len(graph.inputs()) != 1:
        return None
    product = products[0]
    value, weight, bias = product.inputs
    if _under_views(graph.outputs[0]) is not product or _under_views(value).name != "input":
        return None
    if not _is_param(weight, 2) or not (bias is None or _is_param(bias, 1)):
        return None
    rows, columns = weight.shape
    layout = product.attrs["layout"]
    sizes = (columns, rows) if layout == "out_in" else (rows, columns)
    given = graph.inputs()[0].shape
    if given[-1:] != sizes[:1] or graph.outputs[0].shape != (*given[:-1], sizes[1]):
        return None  # it views its input as rows of another width
    return LinearFacts(*sizes, layout, weight.target, bias.target if bias else None)


def _under_views(op: Op) -> Op:
    while op.name == "view":
        op = op.inputs[0]
    return op


def _is_param(op: object, rank: int) -> bool:
    return isinstance(op, Op) and op.name == "param" and len(op.shape) == rank
