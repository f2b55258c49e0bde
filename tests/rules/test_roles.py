"""Roles: what a child module is by another rule; wrong ones are found when the library is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.library import load_rules

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


def test_a_role_another_rule_gives(tmp_path: Path) -> None:
    write(tmp_path, "mine", "rms_norm")
    rule = next(r for r in load_rules([tmp_path]) if r.name == "mine")
    assert rule.roles == {"norm": "rms_norm"}
