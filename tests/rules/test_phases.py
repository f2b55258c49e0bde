"""A rule with another call for decode, and limits for one chip or one phase."""

from __future__ import annotations

from pathlib import Path

import torch

from neuron_autoport import nf
from neuron_autoport.report.limits import broken_limits
from neuron_autoport.rewrite.emit import generate
from neuron_autoport.rules.library import load_rules
from neuron_autoport.rules.rule import Rule
from tests.helpers import plan_of, zoo_class

# The two are told apart by their epsilon: a real rule computes the same in both.
RULE = """\
rule: two_phases
summary: a test rule
match: y = x * rsqrt(mean(square(x), -1, keepdim=True) + eps)
where:
  eps: number
replace:
  prefill: y = NK.rms_norm(x, eps=eps)
  decode: y = NK.rms_norm(x, eps=0.5)
neuron:
  - "trn3: x.shape[-1] == 1"
  - "decode: x.shape[-1] == 2"
  - x.shape[-1] == 3
"""
SOURCE = """
class Norm(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
"""


def rule(folder: Path) -> Rule:
    (folder / "two_phases.yaml").write_text(RULE)
    return next(r for r in load_rules([folder]) if r.name == "two_phases")


def test_each_phase_has_its_call(tmp_path: Path) -> None:
    cls = zoo_class(SOURCE)
    plan = plan_of(cls, [rule(tmp_path)])
    text = plan.new_source() or ""
    assert "NF.decoding()" in text and "eps=1e-06" in text and "eps=0.5" in text
    module = generate([plan], "a test").classes[plan]()
    x = torch.tensor([[1.0, 2.0, 3.0]])
    square = x.square().mean(-1, keepdim=True)
    torch.testing.assert_close(module(x), x / (square + 1e-6).sqrt())
    with nf.decode_phase():
        torch.testing.assert_close(module(x), x / (square + 0.5).sqrt())
    torch.testing.assert_close(module(x), x / (square + 1e-6).sqrt())


def test_a_limit_for_another_chip_does_not_count(tmp_path: Path) -> None:
    (site,) = plan_of(zoo_class(SOURCE), [rule(tmp_path)]).sites
    both = ["decode: x.shape[-1] == 2", "x.shape[-1] == 3"]
    assert [b.text for b in broken_limits(site, 1, "trn2")] == both
    assert [b.text for b in broken_limits(site, 1, "trn3")] == ["trn3: x.shape[-1] == 1", *both]
