"""Odd spellings of routers and experts give the same facts; look-alikes are refused, never read wrong."""

from __future__ import annotations

import textwrap

import pytest
import torch

from neuron_autoport.trace.experts import ExpertsFacts
from neuron_autoport.trace.moe import MoEFacts, read_moe
from neuron_autoport.trace.router import RouterFacts
from neuron_autoport.trace.routing import UnknownRouting
from neuron_autoport.trace.tracer import trace_model
from tests.helpers import meta_instance, zoo_class
from tests.trace.router_zoo import GATES, PLAIN_GATE, PLAIN_ROUTER, REFUSED, ROUTER, ROUTERS

WIDTH = 16


def facts_of(route: str, gate: str = PLAIN_GATE) -> MoEFacts:
    source = ROUTER.format(
        route=textwrap.indent(route, " " * 8), gate=textwrap.indent(gate, " " * 8)
    )
    block = meta_instance(zoo_class(source))
    hidden = torch.empty(2, 7, WIDTH, device="meta", dtype=torch.bfloat16)
    facts = read_moe(trace_model(block, (hidden,)))
    assert facts is not None
    return facts


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_a_router_in_other_words(name: str) -> None:
    body, summary = ROUTERS[name]
    router = facts_of(body).router
    assert isinstance(router, RouterFacts), router
    assert router.summary() == summary
    assert router.weight == "router.weight" and router.reads_hidden


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_look_alike_router_is_refused(name: str) -> None:
    body, reason = REFUSED[name]
    router = facts_of(body).router
    assert isinstance(router, UnknownRouting), router.summary()
    assert reason in router.message
    assert router.span is not None and router.span.function.startswith("Router.")


@pytest.mark.parametrize("name", sorted(GATES))
def test_the_gate_of_the_experts(name: str) -> None:
    body, summary = GATES[name]
    experts = facts_of(PLAIN_ROUTER, body).experts
    if summary is None:
        assert isinstance(experts, UnknownRouting), experts.summary()
        return
    assert isinstance(experts, ExpertsFacts), experts
    assert experts.summary() == f"8 experts 16→24→16, {summary}"
    assert experts.parameters == ("gate_up_proj", "down_proj")


CHOOSE = "_, chosen = logits.topk(2, -1)\n"
TABLE = "chosen = self.factor.long()[None, :2].expand(len(x), 2)\n"
# Which of 8 experts the indices can name: None if the graph does not tell.
REACHES: dict[str, tuple[str, int | None]] = {
    "the largest": (CHOOSE + "return logits.gather(-1, chosen), chosen", 8),
    "of the first six": ("_, chosen = logits[:, :6].topk(2, -1)\nreturn logits[:, :2], chosen", 6),
    "the last is replaced": (
        CHOOSE + "skip = chosen == 7\n"
        "return logits[:, :2].masked_fill(skip, 0), chosen.masked_fill(skip, 0)", 7,
    ),
    "replaced by itself": (
        CHOOSE + "return logits[:, :2], chosen.masked_fill(chosen == 7, 7)", 8,
    ),
    "another is replaced": (
        CHOOSE + "return logits[:, :2], chosen.masked_fill(chosen == 3, 0)", 8,
    ),
    "replaced by one beyond": (
        CHOOSE + "return logits[:, :2], chosen.masked_fill(chosen == 7, 9)", None,
    ),
    "a table, scores gathered with it": (
        TABLE + "return torch.sigmoid(logits).gather(-1, chosen), chosen", 8,
    ),
    "a table, scores gathered with other indices": (
        TABLE + "other = chosen + 1\nreturn logits.gather(-1, other), chosen", None,
    ),
    "a table, weights of their own": (TABLE + "return logits[:, :2], chosen", None),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REACHES))
def test_which_experts_the_indices_can_name(name: str) -> None:
    body, reach = REACHES[name]
    assert facts_of(body).reach == reach
