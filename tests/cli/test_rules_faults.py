"""`autoport rules test` of rules that are wrong: what it prints, all of it, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_autoport.rules.builtin import builtin_folder
from tests.cli.conftest import Run

ROLE = """\
rule: {name}
summary: a test rule
role: r{name}
match: y = n(relu(x)) * 2.0
where:
  n: {asks}
{end}
"""
REPLACE = 'replace: y = NK.act_and_mul(x, x, kind="silu")'
REFUSE = "refuse: there is no function"
EXAMPLE = """\
examples:
  matches:
    - |
      class Part(nn.Module):
          def forward(self, x):
              return torch.relu(x) * 2.0
"""


def rule(end: str, require: str = "", examples: str = EXAMPLE) -> str:
    head = "rule: mine\nsummary: a test rule\nmatch: y = relu(x) * 2.0\n"
    return f"{head}{require}{end}\n{examples}"


def try_out(run: Run, path: Path) -> tuple[int, str]:
    """Exit code and all that is printed, without the folder."""
    ran = run("rules", "test", str(path), "--trust-remote-code")
    folder = path.parent if path.suffix else path
    return ran.code, (ran.out + ran.err).replace(f"{folder}/", "")


@pytest.mark.parametrize("end", [REPLACE, REFUSE])
def test_roles_in_a_circle(run: Run, tmp_path: Path, end: str) -> None:
    (tmp_path / "a.yaml").write_text(ROLE.format(name="a", asks="rb", end=end))
    (tmp_path / "b.yaml").write_text(ROLE.format(name="b", asks="ra", end=end))
    said = (
        "error: roles ask for each other: ra → rb → ra\n  at:  a.yaml:6:6\n"
        "  try: autoport rules list\n"
    )
    assert try_out(run, tmp_path) == (2, said)
    listed = run("rules", "list", "--rules", str(tmp_path))
    assert (listed.code, listed.err.replace(f"{tmp_path}/", "")) == (2, said)


def test_all_wrong_roles_at_once(run: Run, tmp_path: Path) -> None:
    """Also of a rule in a circle with itself, and of one that asks for what only a rule that refuses is."""
    (tmp_path / "a.yaml").write_text(ROLE.format(name="a", asks="ra", end=REFUSE))
    (tmp_path / "b.yaml").write_text(ROLE.format(name="b", asks="rms_nrom", end=REFUSE))
    (tmp_path / "c.yaml").write_text(ROLE.format(name="c", asks="rb", end=REPLACE))
    said = (
        "error: rule files have 3 faults:\n"
        "a.yaml:6:6: roles ask for each other: ra → ra\n"
        "b.yaml:6:6: `n` has unknown kind `rms_nrom`: no rule has this role; did you mean `rms_norm`?\n"
        "c.yaml:6:6: `n` can never be a `rb`: `b`, which has this role, refuses\n"
        "  try: autoport rules list\n"
    )
    assert try_out(run, tmp_path) == (2, said)


def write_pair(folder: Path) -> Path:
    """Two built-in rules under other names: `outer.yaml` asks for a role that only `inner.yaml` gives."""
    norms = builtin_folder() / "norm"
    inner = (norms / "rms_norm.yaml").read_text(encoding="utf-8")
    inner = inner.replace("rule: rms_norm\n", "rule: inner\nrole: my_norm\n")
    outer = (norms / "add_rms_norm.yaml").read_text(encoding="utf-8")
    outer = outer.replace("rule: add_rms_norm\n", "rule: outer\n").replace(
        ": rms_norm", ": my_norm"
    )
    first = outer.split("    - |\n")[:2]  # its other examples have norms of other rules
    (folder / "inner.yaml").write_text(inner)
    (folder / "outer.yaml").write_text("    - |\n".join(first))
    return folder / "outer.yaml"


def test_a_role_that_a_file_beside_gives(run: Run, tmp_path: Path) -> None:
    path = write_pair(tmp_path)
    (tmp_path / "compose.yaml").write_text("services: {web: {image: x}}\n")
    (tmp_path / "wrong.yaml").write_text("rule: wrong\n")  # not needed, so it does not matter
    said = (
        "with inner.yaml, for the role my_norm\n1 example of 1 rule: 0 missing, 0 noisy, 0 failed\n"
    )
    assert try_out(run, path) == (0, said)


def test_a_role_that_a_wrong_file_beside_may_give(run: Run, tmp_path: Path) -> None:
    path = write_pair(tmp_path)
    inner = tmp_path / "inner.yaml"
    inner.write_text(inner.read_text().replace("rsqrt", "rsqr"))
    code, said = try_out(run, path)
    assert code == 2 and "unknown operation `rsqr`; did you mean `rsqrt`?" in said
    assert "inner.yaml:" in said and "my_norm" not in said


def test_a_role_that_lies_elsewhere(run: Run, tmp_path: Path) -> None:
    """Folders below are not searched; the error tells the command that takes one."""
    path = write_pair(tmp_path)
    (tmp_path / "more").mkdir()
    (tmp_path / "inner.yaml").rename(tmp_path / "more" / "inner.yaml")
    code, said = try_out(run, path)
    assert code == 2
    assert "error: `norm` has unknown kind `my_norm`: no rule has this role" in said
    assert "at:  outer.yaml:9:9\n" in said
    assert "autoport rules test outer.yaml --rules DIR" in said
    words = ("rules", "test", str(path), "--rules", str(tmp_path / "more"), "--trust-remote-code")
    assert run(*words).out == "1 example of 1 rule: 0 missing, 0 noisy, 0 failed\n"


@pytest.mark.parametrize("end", [REPLACE, REFUSE])
def test_a_condition_that_does_not_hold(run: Run, tmp_path: Path, end: str) -> None:
    """The reason is the same whether the rule replaces or refuses."""
    path = tmp_path / "mine.yaml"
    path.write_text(rule(end, "require:\n  - x.ndim == 7\n"))
    said = (
        "missing mine.yaml:10  mine\n        AP301: `x.ndim == 7` does not hold (line 12)\n"
        "1 example of 1 rule: 1 missing, 0 noisy, 0 failed\n"
    )
    assert try_out(run, path) == (1, said)


def test_an_example_that_ends_the_program(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    ends = """\
examples:
  matches:
    - |
      class Built(nn.Module):
          def __init__(self):
              super().__init__()
              exit(7)
    - |
      class Called(nn.Module):
          def forward(self, x):
              raise SystemExit(3)
"""
    path.write_text(rule(REFUSE, examples=ends))
    said = (
        "broken  mine.yaml:8  mine\n        Built cannot be built: SystemExit: 7\n"
        "broken  mine.yaml:13  mine\n        SystemExit: 3 (line 15)\n"
        "2 examples of 1 rule: 0 missing, 0 noisy, 0 failed, 2 broken\n"
    )
    assert try_out(run, path) == (2, said)


def test_an_error_of_torch_in_one_line(run: Run, tmp_path: Path) -> None:
    """Torch adds the frames of its C++ to this one."""
    path = tmp_path / "mine.yaml"
    path.write_text(rule("replace: y = x.view(9999999999 * 9999999999)"))
    code, said = try_out(run, path)
    place, reason, count = said.splitlines()
    assert (code, place) == (3, "failed  mine.yaml:8  mine")
    assert reason.startswith("        the rewrite is wrong: TypeError: view(): argument 'size'")
    assert count == "1 example of 1 rule: 0 missing, 0 noisy, 1 failed"


@pytest.mark.parametrize(
    ("name", "said", "line"),
    [
        ("Called", "Called.forward(x) does not run on 2,8,64: SystemExit: 3", 6),
        ("Built", "Built() cannot be made: SystemExit: 7", 12),
    ],
)
def test_a_module_that_ends_the_program(
    run: Run, tmp_path: Path, name: str, said: str, line: int
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import sys\nfrom torch import nn\n\nclass Called(nn.Module):\n    def forward(self, x):\n"
        "        raise SystemExit(3)\n\nclass Built(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.part = nn.Identity()\n        sys.exit(7)\n"
    )
    ran = run("inspect", f"{path}:{name}", "--input", "2,8,64", "--trust-remote-code")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {said}\n  at:  {path}:{line}:")
