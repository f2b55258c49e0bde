"""The examples of rule files: read with every fault placed, run, and reported for what they are.

Wrong rules are the built-in `gated_mlp` with other examples, or one edit of its `replace`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.builtin import builtin_folder, is_builtin
from neuron_autoport.rules.examples import Kind, Outcome, check_trusted, run_rule
from neuron_autoport.rules.library import load_rules, rules_at
from neuron_autoport.rules.load import load_rule
from neuron_autoport.rules.rule import Rule

GATED = next(r for r in load_rules() if r.name == "gated_mlp").text.partition("examples:")[0]

MLP = """\
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(16, 32), nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
        {body}
"""
FUSED = MLP.format(body="return self.down(F.silu(self.gate(x)) * self.up(x))")
OTHER = MLP.format(body="return self.down(F.relu(self.gate(x)) * self.up(x))")


def gated(matches: Sequence[str] = (), rejects: Sequence[str] = (), text: str = GATED) -> str:
    """The text of a rule file with these examples."""
    parts = [text, "examples:\n"]
    for key, sources, head in (
        ("matches", matches, "    - source: |\n"),
        ("rejects", rejects, "    - because: a test says so\n      source: |\n"),
    ):
        parts += [f"  {key}:\n"] if sources else []
        parts += [head + textwrap.indent(source, " " * 8) for source in sources]
    return "".join(parts)


def outcomes(folder: Path, text: str) -> list[Outcome]:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return list(run_rule(load_rule(path)))


def only(folder: Path, text: str) -> Outcome:
    (outcome,) = outcomes(folder, text)
    return outcome


def line_of(text: str, part: str) -> int:
    """Line, from 1, of the one place where `part` stands."""
    assert text.count(part) == 1
    return text[: text.index(part)].count("\n") + 1


@pytest.mark.parametrize("rule", load_rules(), ids=lambda r: r.name)
def test_the_built_in_examples(rule: Rule) -> None:
    assert len(rule.examples) >= 2 and len(rule.rejects) >= 2
    assert all(e.because is None for e in rule.examples) and all(e.because for e in rule.rejects)
    found = list(run_rule(rule))
    wrong = [(o.where, o.kind, o.message) for o in found if o.kind is not Kind.good]
    assert wrong == []
    proved = [o.example for o in found if o.proof is not None and o.proof.passed]
    if rule.refuse:  # it matches, and there is nothing to prove
        proved += [o.example for o in found if o.example.because is None]
    assert sorted(proved, key=lambda e: e.line) == sorted(rule.examples, key=lambda e: e.line)
    assert len(found) == len(rule.examples) + len(rule.rejects)


def test_missing_with_the_pattern_half_there(tmp_path: Path) -> None:
    text = gated([OTHER])
    outcome = only(tmp_path, text)
    assert outcome.kind is Kind.missing and outcome.proof is None
    assert outcome.where == f"{tmp_path / 'mine.yaml'}:{line_of(text, 'class MLP')}"
    assert outcome.message.startswith("AP210: ") and " of 5 steps, then: " in outcome.message
    assert outcome.message.endswith(f"(line {line_of(text, 'return self.down')})")


def test_missing_with_nothing_there(tmp_path: Path) -> None:
    text = gated(["class M(nn.Module):\n    def forward(self, x):\n        return x + 1\n"])
    outcome = only(tmp_path, text)
    assert (outcome.kind, outcome.message) == (
        Kind.missing,
        "AP210: nothing of the pattern is there",
    )


def test_missing_says_why_a_whole_match_was_refused(tmp_path: Path) -> None:
    body = "inner = F.silu(self.gate(x)) * self.up(x)\n        return self.down(inner), inner"
    outcome = only(tmp_path, gated([MLP.format(body=body)]))
    assert outcome.kind is Kind.missing and outcome.message.startswith("AP201: ")


def test_missing_because_a_value_decides(tmp_path: Path) -> None:
    """A module that cannot be traced to its end is a good reject and a missing match."""
    body = "return self.down(F.silu(self.gate(x)) * self.up(x)) * x.sum().item()"
    source = (
        MLP.format(body=body).replace("self.down(", "torch.relu(").replace("* x.sum", "+ x.sum")
    )
    text = gated([source], [source.replace("MLP", "Same")])
    missing, good = outcomes(tmp_path, text)
    assert (missing.kind, good.kind) == (Kind.missing, Kind.good)
    assert missing.message.startswith("AP101: item() asks for the value of a tensor (line ")


def test_noisy(tmp_path: Path) -> None:
    text = gated([FUSED], [FUSED.replace("class MLP", "class Again")])
    good, noisy = outcomes(tmp_path, text)
    assert (good.kind, noisy.kind) == (Kind.good, Kind.noisy)
    assert noisy.where.endswith(f"mine.yaml:{line_of(text, 'class Again')}")
    assert noisy.message == "fused, and should not be: a test says so"
    assert noisy.proof is not None and noisy.proof.passed


WRONG = GATED.replace("gate.weight, up.weight,", "gate.weight, gate.weight,")


def test_failed(tmp_path: Path) -> None:
    outcome = only(tmp_path, gated([FUSED], text=WRONG))
    assert outcome.kind is Kind.failed and outcome.message.startswith(
        "the rewrite is wrong: fp32 error "
    )
    assert outcome.proof is not None and not outcome.proof.passed


def test_noisy_and_wrong(tmp_path: Path) -> None:
    outcome = only(tmp_path, gated(rejects=[FUSED], text=WRONG))
    assert (
        outcome.kind is Kind.noisy and "the rewrite is wrong, too: fp32 error " in outcome.message
    )


def test_only_the_rule_itself_counts(tmp_path: Path) -> None:
    """A module that another rule fuses is none of this rule's: RMS norm for a rule of MLPs."""
    norm = next(r for r in load_rules() if r.name == "rms_norm").examples[0].source
    assert only(tmp_path, gated(rejects=[norm])).kind is Kind.good


@pytest.mark.parametrize(
    ("source", "message", "line"),
    [
        ("class M(nn.Module):\n    size = 1 // 0\n", "ZeroDivisionError: ", 2),
        ("class M(nm.Module):\n    pass\n", "NameError: name 'nm' is not defined", 1),
        ("class M:\n    pass\n", "its source defines no subclass of nn.Module", None),
        ("class M(nn.Module):\n    def __init__(self, width):\n        super().__init__()\n",
         "M cannot be built: TypeError: ", None),
        ("class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a = b\n",
         "M cannot be built: NameError: name 'b' is not defined", 4),
        ("class M(nn.Module):\n    def forward(self, x):\n        y = x\n        return y @ x\n",
         "RuntimeError: ", 4),
    ],
)  # fmt: skip
def test_broken(tmp_path: Path, source: str, message: str, line: int | None) -> None:
    """An example that does not run is told so, also where it need not match; line of the rule file."""
    for text in (gated([source]), gated(rejects=[source])):
        outcome = only(tmp_path, text)
        assert outcome.kind is Kind.broken and outcome.message.startswith(message)
        if line is None:
            assert "(line " not in outcome.message
        else:
            assert outcome.message.endswith(f"(line {line_of(text, 'class M') + line - 1})")


def test_init_and_inputs(tmp_path: Path) -> None:
    text = GATED + textwrap.dedent("""\
    examples:
      matches:
        - input: [[3, 8], [8]]
          init: {width: 8, act: {name: gelu}, scale: 0.5}
          source: |
            class Helper(nn.Module):
                def forward(self, x):
                    return x

            class MLP(Helper):
                def __init__(self, width, act, scale):
                    super().__init__()
                    assert type(scale) is float and type(act) is dict
                    self.gate, self.up = nn.Linear(width, 24), nn.Linear(width, 24)
                    self.down, self.act = nn.Linear(24, width), ACT2FN[act["name"]]

                def forward(self, x, offset):
                    return self.down(self.act(self.gate(x)) * self.up(x)) + offset

            EIGHT = math.floor(8.5)
    """)
    outcome = only(tmp_path, text)
    assert outcome.example.inputs == ((3, 8), (8,))
    assert (outcome.kind, outcome.message[:11]) == (Kind.good, "fp32 error ")


def test_the_file_is_read_as_it_stands(tmp_path: Path) -> None:
    """Text in quotes, a plain string of `matches`: each example is at its own line."""
    text = GATED + (
        "examples:\n  matches:\n"
        f'    - "{FUSED.replace(chr(10), chr(92) + "n")}"\n'
        f"    - |\n{textwrap.indent(FUSED, ' ' * 6)}"
    )
    first, second = outcomes(tmp_path, text)
    assert first.kind is second.kind is Kind.good
    assert first.example.source.strip() == second.example.source.strip() == FUSED.strip()
    lines = text.split("\n")
    assert lines[first.example.line - 1].startswith('    - "class MLP')
    assert lines[second.example.line - 1] == "      class MLP(nn.Module):"


# (examples of the file with § at the fault, the message)
FAULTS = [
    ("  §match:\n    - |\n      class M: ...\n", "unknown field `match` of examples; did you mean `matches`?"),
    ("  matches: §{source: a}\n", "`matches` must be a list"),
    ("  matches:\n    - §5\n", "an example of `matches` has `source`"),
    ("  matches:\n    - §input: [2, 5]\n", "an example of `matches` has `source`"),
    ("  rejects:\n    - |\n      §class M: ...\n", "an example of `rejects` has `because` and `source`"),
    ("  rejects:\n    - §source: |\n        class M: ...\n", "an example of `rejects` says `because`"),
    ("  rejects:\n    - because: §7\n      source: |\n        class M: ...\n", "`because` must be text"),
    ("  matches:\n    - source: §[a]\n", "`source` must be text"),
    ("  matches:\n    - §sauce: a\n      source: |\n        class M: ...\n", "did you mean `source`?"),
    ("  matches:\n    - §because: a\n      source: |\n        class M: ...\n", "unknown field `because`"),
    ("  matches:\n    - init: §[1]\n      source: |\n        class M: ...\n", "`init` must be a mapping"),
    ("  matches:\n    - input: §[2, x]\n      source: |\n        class M: ...\n", "list of sizes"),
    ("  matches:\n    - input: §[]\n      source: |\n        class M: ...\n", "list of sizes"),
    ("  matches:\n    - input: §[[2], 0]\n      source: |\n        class M: ...\n", "list of sizes"),
    ("  matches:\n    - |\n      §x = 1\n", "the source of an example defines a class"),
    ("  matches:\n    - source: |\n        class M(nn.Module):\n            x = = 1\n", "not Python: "),
    ("  matches:\n    - |\n      class M(nn.Module):\n          def f(self) §return\n", "not Python: "),
]  # fmt: skip


@pytest.mark.parametrize(("examples", "message"), FAULTS, ids=[f[1] for f in FAULTS])
def test_fault(tmp_path: Path, examples: str, message: str) -> None:
    before, _, after = f"{GATED}examples:\n{examples}".partition("§")
    path = tmp_path / "mine.yaml"
    path.write_text(before + after, encoding="utf-8")
    with pytest.raises(RuleError) as caught:
        load_rule(path)
    lines = [x for x in caught.value.text().splitlines() if message in x]
    assert len(lines) == 1, caught.value.text()
    place = f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
    if after:
        assert lines[0].startswith(f"{path}:{place}: "), f"{place} expected: {lines[0]}"
    else:  # no mark: where the parser stops, on the line of `x = = 1`
        assert lines[0].startswith(f"{path}:{line_of(before, 'x = = 1')}:")


def test_several_faults_of_examples_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        GATED + "examples:\n  matches:\n    - 5\n    - 6\n  rejects: 7\n", encoding="utf-8"
    )
    with pytest.raises(RuleError, match="3 faults"):
        load_rule(path)


def test_reading_runs_nothing(tmp_path: Path) -> None:
    """Only `run_rule` runs an example: the file it writes is not there before."""
    mark = tmp_path / "mark"
    text = gated([f"open({str(mark)!r}, 'w').close()\n{FUSED}"])
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    (rule,) = rules_at(tmp_path)
    load_rules([tmp_path])
    assert not mark.exists()
    list(run_rule(rule))
    assert mark.exists()


def test_rules_of_others_need_trust(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(gated([FUSED]), encoding="utf-8")
    with pytest.raises(RuleError) as caught:
        check_trusted(load_rules([tmp_path]), False)
    assert "--trust-remote-code" in (caught.value.next_step or "")
    assert caught.value.where == str(tmp_path / "mine.yaml")
    check_trusted(load_rules([tmp_path]), True)
    check_trusted(load_rules(), False)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "mine.yaml").write_text(GATED, encoding="utf-8")
    check_trusted(rules_at(bare), False)  # nothing to run


def test_built_in_is_where_the_file_lies(tmp_path: Path) -> None:
    """Neither a name nor a folder's name makes a rule built-in."""
    folder = tmp_path / builtin_folder().name
    folder.mkdir()
    (folder / "gated_mlp.yaml").write_text(gated([FUSED]), encoding="utf-8")
    assert [is_builtin(r) for r in rules_at(folder)] == [False]
    assert all(is_builtin(r) for r in load_rules())
    assert not is_builtin(next(r for r in load_rules([folder]) if r.name == "gated_mlp"))
