"""What the experts of a mixture are, read from the graph of their module by operations only.

    rows of x sorted by expert:  g = x @ W_up[e] (+ b_up[e])      packed: gate and up in one weight
                                 h = act(gate) * up               or act(g) without a gate
                                 y = h @ W_down[e] (+ b_down[e])
    out = sum over the K chosen experts of y * weight

or, dense, every expert on a copy of all tokens. `UnknownRouting` says what is something else, and where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuron_autoport.trace.glu import Gate, read_gate
from neuron_autoport.trace.inline import inlined, source_of
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.ops import Op
from neuron_autoport.trace.routing import UnknownRouting, uncast, unknown


@dataclass(frozen=True)
class ExpertsFacts:
    """Experts in packed parameters. E experts, H hidden, I intermediate.

    up, down: names of the [E, ...] weights; up holds gate and up where `gate` says so.
    layout: `out_in` ([E, out, in]) or `in_out`. up_bias, down_bias: names of [E, out], or None.
    dense: every expert runs on every token, in place of the chosen ones.
    """

    experts: int
    hidden: int
    intermediate: int
    gate: Gate
    up: str
    down: str
    layout: str
    up_bias: str | None
    down_bias: str | None
    dense: bool

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of all parameters the facts speak of."""
        return tuple(n for n in (self.up, self.down, self.up_bias, self.down_bias) if n)

    def summary(self) -> str:
        """`8 experts 64→96→64, act=silu, packed gate|up`."""
        text = f"{self.experts} experts {self.hidden}→{self.intermediate}→{self.hidden}"
        bias = ", biases" if self.up_bias or self.down_bias else ""
        layout = ", weights kept transposed" if self.layout == "in_out" else ""
        dense = ", all of them on every token" if self.dense else ""
        return f"{text}, {self.gate.summary()}{bias}{layout}{dense}"


def read_experts(trace: ModuleTrace) -> ExpertsFacts:
    """The experts a traced module is.

    Raises:
        UnknownRouting: it computes something else, or was not traced to its end.
    """
    if trace.end is not None:
        raise UnknownRouting(f"not traced to its end: {trace.end.message}", None, trace.end.code)
    outputs = inlined(trace)
    if len(outputs) != 1:
        raise UnknownRouting("the experts return more than one tensor")
    inputs = {op.target: op for op in _reached(outputs[0]) if op.name == "input"}
    op = uncast(outputs[0])
    if op.name == "sum":
        return _chosen(op, inputs)
    return _facts(op, dense=True)[0]


def _reached(op: Any) -> list[Op]:
    seen: dict[Op, None] = {}
    todo = [op]
    while todo:
        one = todo.pop()
        if isinstance(one, Op) and one not in seen:
            seen[one] = None
            todo += one.operands()
    return list(seen)


def _chosen(op: Op, inputs: dict[str | None, Op]) -> ExpertsFacts:
    """Experts run on the rows that chose them, sorted by expert, and summed over the K of a token."""
    if op.attrs["dim"] != -2 or len(op.inputs[0].shape) != 3:
        raise unknown(op, "the output is not the sum over a token's experts")
    tokens, top_k = op.inputs[0].shape[:2]
    back = uncast(op.inputs[0])
    if back.name != "index":
        raise unknown(back, "the rows are not put back in their order")
    weighted, order = back.inputs
    weighted = uncast(weighted)
    weight, product = _weighted(weighted)
    facts, rows, product = _facts(product, dense=False)
    order = uncast(order)
    if order.name != "setitem":
        raise unknown(order, "the rows are not put back in their order")
    by_expert = uncast(order.inputs[1])
    _check_rows(rows, by_expert, int(top_k), inputs)
    if uncast(weight.inputs[1]) is not by_expert:
        raise unknown(weight, "the weights are not in the order of the rows")
    if _input_under(weight.inputs[0]) is None or tokens * top_k != rows.shape[0]:
        raise unknown(weight, "what the output is multiplied by is not given to the experts")
    return facts


def _weighted(op: Op) -> tuple[Op, Op]:
    """(weights [S, 1] indexed by row, product) of a multiplied product."""
    if op.name == "mul":
        for one, other in (op.inputs, op.inputs[::-1]):
            weight = uncast(one) if isinstance(one, Op) else None
            if weight is not None and weight.name == "index" and one.shape[-1] == 1:
                return weight, uncast(other)
    raise unknown(op, "the experts' output is not multiplied by their weights")


def _check_rows(rows: Op, by_expert: Op, top_k: int, inputs: dict[str | None, Op]) -> None:
    """rows = x[order // K] with order = argsort of the given indices."""
    rows = uncast(rows)
    if rows.name != "index" or _input_under(rows.inputs[0]) is None:
        raise unknown(rows, "the rows are not those of the experts' input")
    divided = uncast(rows.inputs[1])
    known = divided.name in ("unknown:__floordiv__", "unknown:floor_divide")
    if not known or uncast(divided.inputs[0]) is not by_expert or divided.inputs[1] != top_k:
        raise unknown(divided, "the rows are not taken once per chosen expert")
    sorted_ = by_expert.inputs[0] if by_expert.name == "getitem" else None
    if sorted_ is None or sorted_.name not in ("sort", "unknown:sort"):
        raise unknown(by_expert, "the rows are not sorted by expert")
    if _input_under(sorted_.inputs[0]) is None:
        raise unknown(sorted_, "the rows are not sorted by the given indices")


def _input_under(op: Any) -> Op | None:
    found = source_of(op)
    return found if isinstance(found, Op) and found.name == "input" else None


def _facts(down: Op, dense: bool) -> Any:
    """Facts from the second product back to the rows; (facts, rows, product) of chosen experts."""
    down, down_bias = _biased(down)
    down_weight, layout = _weight(down)
    gate, first = read_gate(source_of(down.inputs[0]))
    first, up_bias = _biased(first)
    up_weight, up_layout = _weight(first)
    if layout != up_layout:
        raise unknown(first, "the two weights are laid out in two ways")
    experts, *sizes = up_weight.shape
    wide, hidden = sizes if layout == "out_in" else sizes[::-1]
    inner = wide // 2 if gate.gated else wide
    wanted = (hidden, inner) if layout == "out_in" else (inner, hidden)
    if tuple(down_weight.shape) != (experts, *wanted):
        raise unknown(down, "the two weights do not fit each other")
    facts = ExpertsFacts(
        int(experts), int(hidden), int(inner), gate, str(up_weight.target),
        str(down_weight.target), layout, up_bias, down_bias, dense,
    )  # fmt: skip
    if dense:
        rows = source_of(first.inputs[0])
        if rows.name != "input":
            raise unknown(rows, "the experts do not read their input itself")
        return facts, rows, down
    return facts, source_of(first.inputs[0]), down


def _biased(op: Op) -> tuple[Op, str | None]:
    """(product, name of its bias) of product + bias[expert]."""
    op = uncast(op)
    if op.name != "add":
        return op, None
    bias = uncast(op.inputs[1])
    table = uncast(bias.inputs[0]) if bias.name == "index" else bias
    if table.name != "param" or len(table.shape) not in (2, 3):
        raise unknown(op, "what is added to the product is not a bias per expert")
    return uncast(op.inputs[0]), str(table.target)


def _weight(product: Op) -> tuple[Op, str]:
    """(parameter, layout) of the [E, ...] weight of a product."""
    if product.name not in ("grouped_mm", "matmul"):
        raise unknown(product, f"`{product.label}` is not a product with a weight per expert")
    weight, layout = uncast(product.inputs[1]), "in_out"
    if weight.name == "permute" and weight.attrs["order"] == (-3, -1, -2):
        weight, layout = uncast(weight.inputs[0]), "out_in"
    if weight.name != "param" or len(weight.shape) != 3:
        raise unknown(product, "the product's weight is not one parameter [experts, ...]")
    return weight, layout
