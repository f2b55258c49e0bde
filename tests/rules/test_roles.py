"""Roles: what a child module is by another rule; wrong ones are found when the library is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.library import load_rules
from neuron_autoport.rules.rule import Rule
from tests.helpers import plan_of, zoo_class

NORMED = """\
rule: {name}
summary: a test rule
match: y = exp(norm(x))
where:
  norm: {role}
replace: y = NK.rms_norm(x, **norm)
"""


def write(folder: Path, name: str, role: str) -> None:
    (folder / f"{name}.yaml").write_text(NORMED.format(name=name, role=role))


def test_a_role_nobody_gives(tmp_path: Path) -> None:
    write(tmp_path, "mine", "rms_norms")
    with pytest.raises(RuleError) as caught:
        load_rules([tmp_path])
    assert "no rule has this role; did you mean `rms_norm`?" in str(caught.value)
    assert caught.value.where == f"{tmp_path}/mine.yaml:5:9"


def test_roles_in_a_circle(tmp_path: Path) -> None:
    write(tmp_path, "one", "two")
    write(tmp_path, "two", "one")
    with pytest.raises(
        RuleError, match=r"roles ask for each other: (one → two → one|two → one → two)"
    ):
        load_rules([tmp_path])


def test_every_wrong_role_at_once(tmp_path: Path) -> None:
    """Two circles, a role nobody gives, an argument nobody passes."""
    write(tmp_path, "one", "two")
    write(tmp_path, "two", "one")
    write(tmp_path, "three", "three")
    write(tmp_path, "four", "rms_norms")
    (tmp_path / "mine.yaml").write_text(PASSED.format(offset="0.0", name="wait"))
    with pytest.raises(RuleError) as caught:
        load_rules([tmp_path])
    head, *told = caught.value.what.replace(f"{tmp_path}/", "").splitlines()
    assert (head, caught.value.where) == ("rule files have 4 faults:", None)
    assert sorted(told) == [
        "four.yaml:5:9: `norm` has unknown kind `rms_norms`: no rule has this role; did you mean `rms_norm`?",
        "mine.yaml:5:9: `norm.wait`: NK.rms_norm of rms_norm takes no such argument; did you mean `weight`?",
        "one.yaml:5:9: roles ask for each other: one → two → one",
        "three.yaml:5:9: roles ask for each other: three → three",
    ]


def test_a_role_another_rule_gives(tmp_path: Path) -> None:
    write(tmp_path, "mine", "rms_norm")
    rule = next(r for r in load_rules([tmp_path]) if r.name == "mine")
    assert rule.roles == {"norm": "rms_norm"}


PASSED = """\
rule: mine
summary: a test rule
match: y = exp(norm(x))
where:
  norm: rms_norm
require:
  - norm.offset == {offset}
replace: y = NK.rms_norm(x, norm.weight, eps=norm.eps, weight_in_fp32=norm.{name})
"""
NORM_AND_EXP = """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.small = nn.Parameter(torch.ones(W)), 0.125

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.small)
        return (h * self.scale.float()).to(x.dtype)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm()

    def forward(self, x):
        return torch.exp(self.norm(x))
"""


def passed(folder: Path, offset: str, name: str = "weight_in_fp32") -> tuple[Rule, ...]:
    (folder / "mine.yaml").write_text(PASSED.format(offset=offset, name=name))
    return load_rules([folder])


def test_what_the_rule_of_a_captured_module_passes(tmp_path: Path) -> None:
    """By the names of the function's parameters, whatever the module calls its own; a default counts, too."""
    plan = plan_of(zoo_class(NORM_AND_EXP), passed(tmp_path, "0.0"))
    assert [s.rule.name for s in plan.sites] == ["mine"]
    text = "NK.rms_norm(x, self.norm.scale, eps=0.125, weight_in_fp32=True)"
    assert text in (plan.new_source() or "")
    (refusal,) = plan_of(zoo_class(NORM_AND_EXP), passed(tmp_path, "1.0")).refusals
    assert (refusal.code, refusal.message) == ("AP301", "`norm.offset == 1.0` does not hold")


def test_an_argument_that_no_rule_of_the_role_passes(tmp_path: Path) -> None:
    with pytest.raises(RuleError) as caught:
        passed(tmp_path, "0.0", "wait")
    assert "`norm.wait`: NK.rms_norm of rms_norm" in str(caught.value)
    assert "takes no such argument; did you mean `weight`?" in str(caught.value)
    assert caught.value.where == f"{tmp_path}/mine.yaml:5:9"
