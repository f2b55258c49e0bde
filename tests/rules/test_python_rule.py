"""Rules in Python: a condition that YAML cannot say; nothing of the file runs unless that was allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.library import folder_rules, rules_at
from neuron_autoport.rules.python_rule import trusted
from neuron_autoport.rules.sources import load_library
from tests.cli.conftest import Run, run
from tests.helpers import plan_of, proof_of, zoo_class
from tests.rules.mlp_zoo import source_of

__all__ = ["run"]

TEXT = '''"""Only gates of a prime number of columns."""

RULE = """
rule: prime_mlp
summary: a gated MLP whose inner width is a prime
role: gated_mlp
match: y = down(act(gate(x)) * up(x))
where:
  gate, up, down: linear
  act: silu
replace: >-
  y = NF.mlp(x.flatten(0, -2), gate.weight, up.weight, down.weight, act_fn=NF.ActFnType.SiLU,
  gate_b=gate.bias, up_b=up.bias, down_b=down.bias).unflatten(0, x.shape[:-1])
shard: {gate: column, up: column, down: row}
"""

RAN = []


def check(found):
    RAN.append(found.gate.out_features)
    n = found.gate.out_features
    if any(n % k == 0 for k in range(2, n)):
        return f"{n} columns are no prime number"
    return None
'''
PLAIN = "return self.down(self.act(self.gate(x)) * self.up(x))"
PRIME = "self.gate, self.up, self.down = nn.Linear(W, 23), nn.Linear(W, 23), nn.Linear(23, W)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prime_mlp.py").write_text(TEXT, encoding="utf-8")
    (tmp_path / "other.py").write_text(
        "raise SystemExit('a module that is no rule')\n", encoding="utf-8"
    )
    return tmp_path


def test_the_check_decides_and_says_why(folder: Path) -> None:
    (rule,) = map(trusted, folder_rules(folder))
    plan = plan_of(zoo_class(source_of(PLAIN, PRIME)), [rule])
    assert [s.rule.name for s in plan.sites] == ["prime_mlp"]
    assert proof_of(plan.trace.module_class, plan).passed
    refused = plan_of(zoo_class(source_of(PLAIN, "")), [rule])
    assert not refused.sites
    assert [(r.code, r.message) for r in refused.refusals] == [
        ("AP301", "24 columns are no prime number")
    ]  # fmt: skip


def test_reading_runs_nothing_and_an_untrusted_check_does_not_run(folder: Path) -> None:
    (folder / "prime_mlp.py").write_text(TEXT + "\nraise SystemExit('ran')\n", encoding="utf-8")
    (rule,) = folder_rules(folder)
    with pytest.raises(RuleError) as error:
        plan_of(zoo_class(source_of(PLAIN, PRIME)), [rule])
    assert "--trust-remote-code" in error.value.text() and "prime_mlp.py:20" in error.value.text()


def test_the_library_trusts_what_the_command_allows(folder: Path) -> None:
    for allowed in (False, True):
        library = load_library([folder], trust_code=allowed)
        (rule,) = (r for r in library if r.name == "prime_mlp")
        assert rule.check is not None and rule.check.trusted is allowed  # type: ignore[attr-defined]


def test_the_command_runs_it_only_with_the_flag(run: Run, folder: Path) -> None:
    file = folder / "prime_mlp.py"  # in the place of the built-in rule, which else would be first
    file.write_text(TEXT.replace("rule: prime_mlp", "rule: gated_mlp"), encoding="utf-8")
    ran = run("inspect", "llama", "--rules", str(folder))
    assert ran.code == 2 and "--trust-remote-code" in ran.err and "Traceback" not in ran.err
    ran = run("inspect", "llama", "--rules", str(folder), "--trust-remote-code", width=160)
    assert ran.code == 0 and "11008 columns are no prime number" in ran.out
    assert "inner width is a prime" in run("rules", "list", "--rules", str(folder)).out


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("where:", "were:", ["prime_mlp.py:8:1", "unknown field `were`", "where"]),
        ("act(gate(x))", "act(gate(x", ["prime_mlp.py:7"]),
        ("def check(found)", "def chek(found)", ["prime_mlp.py:3", "check(found)"]),
    ],
)
def test_faults_are_told_at_the_lines_of_the_file(
    folder: Path, old: str, new: str, words: list[str]
) -> None:
    (folder / "prime_mlp.py").write_text(TEXT.replace(old, new), encoding="utf-8")
    with pytest.raises(RuleError) as error:
        folder_rules(folder)
    for word in words:
        assert word in error.value.text(), error.value.text()


@pytest.mark.parametrize(
    ("body", "words", "place"),
    [
        ("    return found.nothing", "has no attribute 'nothing'", "21:12"),
        ("    return len(found, 3)", "TypeError: len()", "21:12"),
        ("    return 7", "returned 7", "20"),
    ],
)
def test_a_check_that_fails_is_told(folder: Path, body: str, words: str, place: str) -> None:
    head = TEXT[: TEXT.index("    RAN.append")]
    (folder / "prime_mlp.py").write_text(f"{head}{body}\n", encoding="utf-8")
    (rule,) = map(trusted, folder_rules(folder))
    with pytest.raises(RuleError) as error:
        plan_of(zoo_class(source_of(PLAIN, PRIME)), [rule])
    assert words in error.value.what and f"prime_mlp.py:{place}" in f"{error.value.where}"


def test_a_rule_that_is_not_python_is_told_and_other_files_are_left_alone(folder: Path) -> None:
    """Else a rule would be gone without a word."""
    (folder / "other.py").write_text("def broken(:\n", encoding="utf-8")
    assert [r.name for r in folder_rules(folder)] == ["prime_mlp"]
    text = TEXT.replace("def check(found)", "def check(found")
    (folder / "prime_mlp.py").write_text(text, encoding="utf-8")
    for read in (folder_rules, lambda f: rules_at(f / "prime_mlp.py")):
        with pytest.raises(RuleError, match=r"not Python: '\(' was never closed") as error:
            read(folder)
        line = text[: text.index("def check")].count("\n") + 1
        assert error.value.where == f"{folder / 'prime_mlp.py'}:{line}:10"


def test_a_file_without_a_rule_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(RuleError) as error:
        rules_at(folder / "other.py")
    assert "RULE = text is missing" in error.value.text()
