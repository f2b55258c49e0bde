"""A trace with made-up values: it goes on where a value is asked, at full sizes, and says what it assumed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from neuron_autoport.rewrite.plan import ClassPlan, plan_class
from neuron_autoport.rules.library import load_rules
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.tracer import trace_model
from tests.helpers import ROWS, TOKENS, WIDTH, meta_instance, zoo_class

MODULE = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(W))
        self.router = nn.Linear(W, 4, bias=False)
        self.eps = nn.Parameter(torch.tensor(1e-6))

    def forward(self, x):
{body}
"""
NORM = "(w * torch.rsqrt(w.pow(2).mean(-1, keepdim=True) + {eps})).to(x.dtype) * self.weight"


def traced(body: str) -> ModuleTrace:
    lines = "\n".join(f"        {line}" for line in body.split("\n"))
    module: nn.Module = meta_instance(zoo_class(MODULE.replace("{body}", lines)))
    x = torch.empty(ROWS, TOKENS, WIDTH, dtype=torch.bfloat16, device="meta")
    return trace_model(module, (x,), with_values=True)


def planned(body: str) -> ClassPlan:
    return plan_class(traced(body), load_rules())


def shape(trace: ModuleTrace) -> tuple[int, ...]:
    assert trace.end is None, trace.end
    assert trace.result.device.type == "meta"
    return tuple(trace.result.shape)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x[: int(x.sum().abs()) * 0 + 1]", (1, TOKENS, WIDTH)),
        # Top-k of the tokens' scores counted by expert: the counts sum to tokens times k.
        ("chosen = self.router(x).topk(2, dim=-1).indices\n"
         "sizes = torch.bincount(chosen.flatten(), minlength=4).tolist()\n"
         "assert sum(sizes) == 2 * x.shape[0] * x.shape[1]\n"
         "return torch.cat(x.repeat(1, 2, 1).view(-1, W).split(sizes))",
         (2 * ROWS * TOKENS, WIDTH)),
        ("mask = torch.ones_like(x[..., 0], dtype=torch.bool)\n"
         "return x[mask.nonzero(as_tuple=True)]", (ROWS * TOKENS, WIDTH)),
        ("keep = torch.arange(x.shape[1], device=x.device) < 3\nreturn x[:, keep]",
         (ROWS, 3, WIDTH)),
        ("n = torch.tensor([1, 4], device=x.device).max()\nreturn x[:, :n]", (ROWS, 4, WIDTH)),
        # A write in place is seen by the question after it.
        ("flags = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)\n"
         "flags[2:] = True\nreturn x[:, flags]", (ROWS, TOKENS - 2, WIDTH)),
        ("if (torch.ones(1, device=x.device) > 0).all():\n    return x[:1]\nreturn x",
         (1, TOKENS, WIDTH)),
    ],
)  # fmt: skip
def test_answers_of_one_run_agree(body: str, expected: tuple[int, ...]) -> None:
    assert shape(traced(body)) == expected


def test_what_was_answered_is_listed() -> None:
    trace = traced("n = int(x.sum().abs()) * 0 + 2\nreturn x[:n]")
    assert any("made up" in text for text in trace.assumed)
    assert trace.answers is not None and len(trace.answers) == 1


def test_the_random_state_is_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    traced("return x + torch.randn_like(x) * x.sum().item()")
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_match_outside_of_loops_is_used() -> None:
    plan = planned(f"w = x.float()\nn = x.sum().item()\nreturn {NORM.format(eps='1e-6')} * n")
    assert [s.rule.name for s in plan.sites] == ["rms_norm"], plan.refusals


def test_a_match_in_a_loop_is_refused() -> None:
    """The loop ran once with these values; with others it may run more often, or never."""
    body = (
        "for row in (x.float().sum((1, 2)) * 0 > -1).nonzero()[:1]:\n"
        f"    w = x.float()\n    x = {NORM.format(eps='1e-6')}\nreturn x"
    )
    plan = planned(body)
    assert not plan.sites
    assert {r.code for r in plan.refusals if r.steps == "all"} == {"AP101"}


def test_a_number_that_was_a_tensors_value_is_no_constant() -> None:
    plan = planned(f"w = x.float()\nreturn {NORM.format(eps='self.eps.item()')}")
    assert not plan.sites
    assert {r.code for r in plan.refusals if r.steps == "all"} == {"AP101"}
