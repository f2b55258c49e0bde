"""What the value or a size of a tensor has decided is no constant: refused; a branch that touches nothing is none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from neuron_autoport.models.inputs import Input
from neuron_autoport.prove.sizes import at_other_sizes
from neuron_autoport.rules.library import load_rules
from neuron_autoport.single import for_real, plan_alone, prove_alone, random_calls, trace_alone
from tests.helpers import fill, plan_of, proof_of, zoo_class
from tests.rules.decided_zoo import DECIDED, norm
from tests.rules.norm_zoo import TEMPLATE

INPUTS = (Input((2, 7, 16)),)


@pytest.mark.parametrize("entry", DECIDED, ids=[e[2] for e in DECIDED])
def test_zoo(entry: tuple[str, str, str, str, str, str]) -> None:
    template, name, _, body, init, expected = entry
    cls = zoo_class(fill(template, body, init))
    plan = plan_of(cls, [r for r in load_rules() if r.name == name])
    assert plan.trace.end is None, plan.trace.end
    if expected == name:
        assert [s.rule.name for s in plan.sites] == [name], plan.refusals
        proof = proof_of(cls, plan)
        assert proof.passed, f"{proof.figures()}\n{plan.new_source()}"
        return
    assert not plan.sites, plan.new_source()
    (refusal,) = [r for r in plan.refusals if r.steps == "all"]
    assert refusal.code == expected, refusal
    if expected != "AP203":
        assert "may be another" in refusal.message
    plan_of(cls).new_source()  # no rule ends in a traceback


@pytest.mark.parametrize("axis", [0, 1])
def test_a_number_computed_from_a_size_behind_the_source_fails_its_proof(axis: int) -> None:
    """Where the text does not tell what a size becomes, other sizes show it."""
    before = f'setattr(self, "k", 1e-2 * x.shape[{axis}])'
    cls = zoo_class(fill(TEMPLATE, norm(before, "self.k"), ""))
    rules = tuple(r for r in load_rules() if r.name == "rms_norm")
    meta, trace = trace_alone(cls, INPUTS)
    port = plan_alone(meta, trace, rules, inputs=INPUTS)
    assert port.where[""].sites
    port, _, proof = prove_alone(port, for_real(cls), random_calls(INPUTS), rules, "a test")
    assert [d.code for d in proof.dropped] == ["AP701"] and not port.where[""].sites


HELPER = """
def root(value, tokens):
    return torch.rsqrt(value + 1e-2 * tokens)
"""


def test_a_size_that_a_helper_is_given_for_a_number() -> None:
    body = norm("", "").replace(
        "torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + )",
        "root(h.pow(2).mean(-1, keepdim=True), x.shape[1])",
    )
    assert "root(" in body
    plan = plan_of(zoo_class(HELPER + fill(TEMPLATE, body, "")))
    assert not plan.sites, plan.new_source()
    assert "AP209" in {r.code for r in plan.refusals if r.rule == "rms_norm"}


def test_other_sizes_are_those_that_the_module_runs_with() -> None:
    x, mask = torch.randn(2, 7, 16), torch.zeros(2, 1, 7, 7)

    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return (x.view(-1, 7, 16) @ x.mT) @ x + mask.sum()

    (both,) = at_other_sizes(nn.Identity(), ((x,), {}))
    assert both[0][0].shape == (5, 10, 16)
    found = at_other_sizes(Fixed(), ((x, mask), {}))
    assert {c[0][0].shape for c in found} == {(5, 7, 16)}
    assert at_other_sizes(nn.Linear(16, 2), ((torch.randn(16),), {})) == []
