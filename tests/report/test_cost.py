"""FLOPs and bytes of single operations and of calls, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neuron_autoport.port import BATCH, TOKENS, plan_trace
from neuron_autoport.report.cost import Cost, graph_costs, kind_of
from neuron_autoport.report.coverage import measure
from neuron_autoport.report.leftovers import leftovers
from neuron_autoport.rules.library import load_rules
from neuron_autoport.trace.canonical import canonical_graph
from neuron_autoport.trace.ops import Op, OpGraph
from neuron_autoport.trace.tracer import trace_model

BF16 = torch.bfloat16


class Calls(nn.Module):
    """y = function(self, x)."""

    def __init__(self, function: Callable[..., Tensor], **weights: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        for name, shape in weights.items():
            setattr(self, name, nn.Parameter(torch.empty(shape, dtype=BF16, device="meta")))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def _cost(function: Callable[..., Tensor], **weights: tuple[int, ...]) -> Cost:
    """Cost of a function of x [2, 7, 16] in bfloat16."""
    x = torch.empty(BATCH, TOKENS, 16, dtype=BF16, device="meta")
    trace = trace_model(Calls(function, **weights), (x,))
    assert trace.end is None
    total = Cost()
    for cost in graph_costs(canonical_graph(trace)).values():
        total += cost
    return total


# FLOPs and bytes per token; a token is 16 numbers of 2 bytes
CASES: dict[str, tuple[Callable[..., Any], dict[str, tuple[int, ...]], float, float]] = {
    "linear": (lambda m, x: nn.functional.linear(x, m.w), {"w": (24, 16)}, 768, 768 + 32 + 48),
    "linear with bias": (
        lambda m, x: nn.functional.linear(x, m.w, m.b),
        {"w": (24, 16), "b": (24,)},
        768 + 24,
        768 + 48 + 32 + 48,
    ),
    "matmul": (lambda m, x: x @ m.w, {"w": (16, 24)}, 768, 768 + 32 + 48),
    "einsum": (lambda m, x: torch.einsum("bsi,io->bso", x, m.w), {"w": (16, 24)}, 768, 848),
    # each of 16 channels: 2 * 3 multiply-adds; length stays 7 by the padding
    "depthwise conv": (
        lambda m, x: nn.functional.conv1d(x.transpose(1, 2), m.w, padding=1, groups=16),
        {"w": (16, 1, 3)},
        16 * 2 * 3,
        2 * 48 + 32 + 32,
    ),
    "add": (lambda m, x: x + x, {}, 16, 3 * 32),
    "silu": (lambda m, x: nn.functional.silu(x), {}, 16, 64),
    "mean": (lambda m, x: x.mean(-1, keepdim=True), {}, 16, 32 + 2),
    "softmax": (lambda m, x: x.softmax(-1), {}, 80, 64),
    "layer norm": (
        lambda m, x: nn.functional.layer_norm(x, (16,), m.w, m.w),
        {"w": (16,)},
        80,
        64 + 2 * 32,
    ),
    "cast": (lambda m, x: x.float(), {}, 0, 32 + 64),
    "cat": (lambda m, x: torch.cat((x, x), -1), {}, 0, 2 * 32 + 64),
    "views": (lambda m, x: x.view(2, 7, 4, 4).transpose(1, 2)[..., :2], {}, 0, 0),
    # made of weights alone: once per step, not spread over the tokens
    "weights alone": (lambda m, x: 1 + m.w, {"w": (16,)}, 16, 64),
}


@pytest.mark.parametrize("case", CASES)
def test_cost_of_an_operation(case: str) -> None:
    function, weights, flops, moved = CASES[case]
    cost = _cost(function, **weights)
    assert (cost.flops, cost.bytes) == pytest.approx((flops, moved))


def test_embedding_reads_one_row() -> None:
    table = Op("param", shape=(1000, 16), dtype=BF16, target="w")
    ids = Op("input", shape=(2, 7), dtype=torch.long)
    row = Op("embedding", (ids, table), shape=(2, 7, 16), dtype=BF16)
    graph = OpGraph((table, ids, row), (row,))
    assert graph_costs(graph)[row] == Cost(0.0, 64.0)


@pytest.mark.parametrize(("window", "positions"), [(None, 1024), (512, 512), (4096, 1024)])
def test_attention_at_the_reference_context(window: int | None, positions: int) -> None:
    query, key = (Op("input", shape=(2, heads, 7, 64), dtype=BF16) for heads in (8, 2))
    value = Op("input", shape=(2, 2, 7, 32), dtype=BF16)
    attrs = {"sliding_window": window} if window else {}
    op = Op("attention", (query, key, value), attrs, shape=(2, 7, 8, 32), dtype=BF16)
    cost = graph_costs(OpGraph((query, key, value, op), (op,)))[op]
    assert cost.flops == 2 * 8 * positions * (64 + 32) + 5 * 8 * positions
    assert cost.bytes == 2 * 2 * positions * (64 + 32) + 2 * (8 * 64 + 8 * 32)


def test_grouped_experts_read_the_active_ones() -> None:
    # 14 tokens, each through 2 of 8 experts: 28 rows
    rows = Op("input", shape=(28, 16), dtype=BF16)
    weights = Op("param", shape=(8, 16, 24), dtype=BF16, target="w")
    op = Op("unknown:_grouped_mm", (rows, weights), shape=(28, 24), dtype=BF16)
    cost = graph_costs(OpGraph((rows, weights, op), (op,)))[op]
    assert kind_of(op) == "grouped_mm"
    assert cost.flops == 2 * 2 * 16 * 24
    assert cost.bytes == 2 * (2 * 16 * 24 + 2 * 16 + 2 * 24)


class Gated(nn.Module):
    """A gated MLP, 16 -> 32 -> 16."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(16, 32, bias=False), nn.Linear(16, 32, bias=False)
        self.down = nn.Linear(32, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Twice(nn.Module):
    """Calls one MLP twice, then a head; `value` asks for a tensor's value, which ends a trace."""

    def __init__(self, stops: bool) -> None:
        super().__init__()
        self.mlp, self.head, self.stops = Gated(), nn.Linear(16, 100, bias=False), stops

    def forward(self, x: Tensor) -> Tensor:
        x = self.mlp(self.mlp(x)) + x
        if self.stops:
            x = x * x.sum().item()
        return self.head(x)


def _twice(stops: bool) -> Any:
    model = Twice(stops).to(device="meta", dtype=BF16)
    x = torch.empty(BATCH, TOKENS, 16, dtype=BF16, device="meta")
    return plan_trace(model, trace_model(model, (x,)), load_rules())


def test_a_module_called_twice_counts_twice() -> None:
    coverage = measure(_twice(stops=False))
    # twice three products of 16 * 32, silu and product of 32; the weights once
    assert coverage.fused.flops == 2 * (3 * 2 * 16 * 32 + 2 * 32)
    assert sum(coverage.claimed.values()) == 3 * 2 * 16 * 32
    assert coverage.weight_bytes == 2 * (3 * 16 * 32 + 16 * 100)
    assert coverage.total.flops == coverage.fused.flops + 16 + 2 * 16 * 100
    rows = {(r.class_name, r.kind): r for r in leftovers(coverage)}
    assert rows["Twice", "linear"].modules == ["head"]
    assert rows["Twice", "linear"].work.flops == 3200
    assert rows["Twice", "elementwise"].operations == ["add"]
    assert len(rows) == 2


def test_what_was_not_reached_lowers_the_coverage() -> None:
    whole, part = measure(_twice(stops=False)), measure(_twice(stops=True))
    assert not part.whole and list(part.unused) == ["head.weight"]
    assert part.missing == Cost(2.0 * 1600, 2.0 * 1600)
    assert part.fused.flops == whole.fused.flops
    row = next(r for r in leftovers(part) if r.kind == "untraced")
    assert (row.calls, row.work.flops) == (1, 3200)


def test_llama_layers_cost_twice_their_parameters() -> None:
    from neuron_autoport.models.source import load_model_config
    from neuron_autoport.port import port_model

    coverage = measure(port_model(load_model_config("llama"), load_rules()))
    linear = sum(w.cost.flops * w.calls for w in coverage.work if kind_of(w.op) == "linear")
    # Llama 7B: 32 layers of four 4096 * 4096 and three 4096 * 11008, and the head over 32000
    assert linear == 2 * (32 * (4 * 4096**2 + 3 * 4096 * 11008) + 4096 * 32000)
