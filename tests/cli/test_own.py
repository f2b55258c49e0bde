"""`autoport inspect FILE.py:CLASS`: one module of the user's own, planned and proved."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from neuron_autoport.report.schema import Report
from neuron_autoport.rules.library import load_rules
from tests.cli.conftest import Run
from tests.cli.own_modules import ARGUMENTS, MINE, line_of, write_mine


@pytest.fixture
def mine(tmp_path: Path) -> str:
    return write_mine(tmp_path)


def test_a_module_is_planned_and_proved(run: Run, mine: str) -> None:
    ran = run("inspect", f"{mine}:MLP", *ARGUMENTS)
    assert (ran.code, ran.err) == (0, "")
    # three maps of 64 x 128 with biases
    assert f"{mine}:MLP · MLP · 24.9 k parameters" in " ".join(ran.out.split())
    assert "MLP  gated_mlp → NF.mlp  64→128→64  bias  act=silu" in ran.out
    assert "Proof" in ran.out and ran.out.count("passed") == 1
    assert "fused 1 of 1 sites, 3 of 3 matrix products, 100 % of FLOPs" in ran.out


def test_products_of_no_site_are_counted(run: Run, tmp_path: Path) -> None:
    """All sites are fused, and next to nothing of the work: the summary says both."""
    path = tmp_path / "by_hand.py"
    path.write_text(
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\nclass MLP(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.gate, self.up = (nn.Parameter(torch.ones(256, 64)) for _ in range(2))\n"
        "        self.down = nn.Parameter(torch.ones(64, 256))\n\n"
        "    def forward(self, x):\n"
        "        inner = F.silu(F.linear(x, self.gate)) * F.linear(x, self.up)\n"
        "        return F.linear(inner, self.down)\n"
    )
    ran = run("inspect", f"{path}:MLP", *ARGUMENTS)
    # silu and the product of 256 elements each; three products of 2 * 64 * 256
    percent = 100 * (2 * 256) / (2 * 256 + 3 * 2 * 64 * 256)
    assert round(percent, 1) == 0.5
    assert (
        "fused 1 of 1 sites, 0 of 3 matrix products, 0.5 % of FLOPs, 0 % of weight bytes" in ran.out
    )
    coverage = json.loads(run("inspect", f"{path}:MLP", *ARGUMENTS, "--json").out)["coverage"]
    assert coverage["products"] == {"part": 0, "whole": 3, "percent": 0.0}
    assert coverage["sites"] == {"part": 1, "whole": 1, "percent": 100.0}


def test_its_children_are_rewritten_too_and_the_whole_is_proved(run: Run, mine: str) -> None:
    ran = run("inspect", f"{mine}:Block", *ARGUMENTS, "--json")
    report = Report.model_validate_json(ran.out)
    assert (report.model.kind, report.model.model_type, report.model.dtype) == (
        "module",
        "",
        "bfloat16",
    )
    sites = {c.name: [s.rule for s in c.sites] for c in report.classes if c.linear is None}
    assert sites == {"Block": [], "Norm": ["rms_norm"], "MLP": ["gated_mlp"]}
    assert report.proof is not None
    proofs = {c.class_name: (c.path, c.passed) for c in report.proof.classes}
    assert proofs == {"Norm": ("norm", True), "MLP": ("mlp", True), "all of Block": ("", True)}
    site = next(s for c in report.classes for s in c.sites if s.rule == "gated_mlp")
    assert (site.place.file, site.place.line) == ("mine.py", line_of("return self.down(F.silu"))
    # per token: three products of 64 x 128 and their biases, silu and product of 128
    assert site.work.flops == 3 * 2 * 64 * 128 + (128 + 128 + 64) + 2 * 128
    assert report.head.unknown == "a module by itself has no logits"


def test_cost_is_per_token_whatever_the_input(run: Run, mine: str) -> None:
    found = []
    for sizes in ("2,8,64", "1,3,64", "5,64"):
        out = run("inspect", f"{mine}:MLP", "--input", sizes, "--trust-remote-code", "--json").out
        found.append(json.loads(out)["coverage"]["flops"]["whole"])
    assert len(set(found)) == 1


def test_diff(run: Run, mine: str) -> None:
    ran = run("inspect", f"{mine}:MLP", *ARGUMENTS, "--diff")
    assert ran.code == 0
    assert f"--- mine.py:{line_of('return self.down(F.silu') - 1} MLP.forward" in ran.out
    assert "-    return self.down(F.silu(self.gate(x)) * self.up(x))" in ran.out
    assert "+    return NF.mlp(" in ran.out and "passed" in ran.out


def test_a_refusal_has_its_place(run: Run, mine: str) -> None:
    ran = run("inspect", f"{mine}:Leaky", *ARGUMENTS)
    assert ran.code == 0 and "AP201  gated_mlp in Leaky" in ran.out
    assert f"mine.py:{line_of('return self.down(inner), inner')}:" in ran.out
    assert "^^^" in ran.out and "autoport explain" in ran.out
    strict = run("inspect", f"{mine}:Leaky", *ARGUMENTS, "--strict")
    assert strict.code == 1 and "gated_mlp" in strict.err
    assert f"autoport inspect {mine}:Leaky --input 2,8,64 --trust-remote-code" in strict.err


def test_init_name_and_kinds_of_inputs(run: Run, mine: str) -> None:
    norm = run("inspect", f"{mine}:Norm", *ARGUMENTS, "--init", '{"width": 64, "eps": 1e-5}')
    assert norm.code == 0 and "NK.rms_norm  eps=1e-05" in norm.out
    block = ("--input", "2,8,64", "--input", "mask=2,8,1", "--trust-remote-code")
    assert run("inspect", f"{mine}:Block", *block).code == 0
    lookup = run("inspect", f"{mine}:Lookup", "--input", "2,8:int", "--trust-remote-code")
    assert lookup.code == 0 and "gated_mlp → NF.mlp" in lookup.out


def test_a_function_that_makes_a_module(run: Run, mine: str) -> None:
    ran = run("inspect", f"{mine}:make", *ARGUMENTS)
    assert ran.code == 0 and "MLP  gated_mlp → NF.mlp" in ran.out


def test_dtype(run: Run, mine: str) -> None:
    """In float32 there are no casts, so the norm's form is not seen; the MLP has none."""
    ran = run("inspect", f"{mine}:MLP", *ARGUMENTS, "--dtype", "fp32", "--json")
    assert json.loads(ran.out)["model"]["dtype"] == "float32"
    assert json.loads(ran.out)["coverage"]["sites"]["part"] == 1


def test_nothing_runs_unless_it_is_allowed(run: Run, mine: str, tmp_path: Path) -> None:
    mark = tmp_path / "it_ran"
    Path(mine).write_text(f"{MINE}\nopen({str(mark)!r}, 'w').close()\n", encoding="utf-8")
    more = ("--init", '{"width": 64}', "--tp", "2")
    ran = run("inspect", f"{mine}:MLP", "--input", "2,8,64", *more)
    assert (ran.code, ran.out) == (2, "") and not mark.exists()
    command = ran.err.partition("then: ")[2].strip()
    words = shlex.split(command)
    assert words[:2] == ["autoport", "inspect"] and "--trust-remote-code" in words
    assert run(*words[1:]).code == 0 and mark.exists()


def test_a_wrong_rule_fails_its_proof(run: Run, mine: str, tmp_path: Path) -> None:
    text = next(r for r in load_rules() if r.name == "gated_mlp").text
    folder = tmp_path / "rules"
    folder.mkdir()
    wrong = text.replace("gate.weight, up.weight", "up.weight, gate.weight")
    (folder / "wrong.yaml").write_text(wrong, encoding="utf-8")
    ran = run("inspect", f"{mine}:Block", *ARGUMENTS, "--rules", str(folder), width=200)
    assert ran.code == 3 and "gated_mlp in MLP" in ran.err
    assert "AP701  gated_mlp in MLP dropped" in ran.out
    assert "rms_norm → NK.rms_norm" in ran.out  # the other rewrite stands
    assert "gated_mlp: 0 sites; replaces the built-in rule\n" in ran.out
    assert f"{folder / 'wrong.yaml'}  from --rules\n" in ran.out


def test_of_two_rules_in_one_class_the_wrong_one_goes(
    run: Run, mine: str, tmp_path: Path, few_rules: Path
) -> None:
    assert "fused 2 of 2" in run("inspect", f"{mine}:Both", *ARGUMENTS).out
    text = (few_rules / "rms_norm.yaml").read_text(encoding="utf-8")
    assert text.count("eps=eps") == 1
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "wrong.yaml").write_text(text.replace("eps=eps", "eps=eps * 100"), encoding="utf-8")
    ran = run("inspect", f"{mine}:Both", *ARGUMENTS, "--rules", str(folder), "--json")
    report = json.loads(ran.out)
    assert ran.code == 3
    assert [(d["rule"], d["code"]) for d in report["proof"]["dropped"]] == [("rms_norm", "AP701")]
    (cls,) = [c for c in report["classes"] if c["name"] == "Both"]
    rules = [s["rule"] for s in cls["sites"]]  # a smaller norm rule may take the wrong one's place
    assert "gated_mlp" in rules and "rms_norm" not in rules and cls["dropped"] == ["rms_norm"]


def test_what_is_too_large_to_prove_is_not_used(
    run: Run, mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuron_autoport.own.SIZE_LIMIT", 1000)
    ran = run("inspect", f"{mine}:MLP", *ARGUMENTS, width=200)
    assert (
        ran.code == 3
        and "AP702  gated_mlp in MLP dropped: 24,896 parameters are too many" in ran.out
    )


OWN_RULE = """\
rule: tanh_times
summary: tanh(a(x)) * b(x)
match: z = tanh(a(x)) * b(x)
where:
  a, b: linear
replace: z = NF.o_proj(x, a.weight)
"""


def test_a_rule_of_the_users_without_a_site_says_how_near_it_came(
    run: Run, mine: str, tmp_path: Path
) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "mine.yaml").write_text(OWN_RULE, encoding="utf-8")
    ran = run("inspect", f"{mine}:MLP", *ARGUMENTS, "--rules", str(folder), width=200)
    assert ran.code == 0 and "tanh_times: 0 sites\n" in ran.out
    assert f"{folder / 'mine.yaml'}  from --rules\n" in ran.out
    assert "steps matched, then: expected `tanh`" in ran.out
    assert f"mine.py:{line_of('return self.down(F.silu')}:" in ran.out
    gate = run(
        "inspect",
        f"{mine}:Norm",
        *ARGUMENTS,
        "--init",
        '{"width": 64}',
        "--rules",
        str(folder),
        "--json",
    )
    (rule,) = [r for r in json.loads(gate.out)["rules"] if r["name"] == "tanh_times"]
    assert rule["origin"] == "--rules" and rule["sites"] == 0 and rule["nearest"]["code"] == "AP210"


def test_no_rule_came_near(run: Run, mine: str, tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text(
        "from torch import nn\n\n\nclass P(nn.Module):\n    def forward(self, x):\n        return x + 1\n"
    )
    ran = run("inspect", str(path), *ARGUMENTS)
    assert ran.code == 0 and "fused 0 of 0 sites" in ran.out
    assert f"autoport rules new NAME --from {path} --input 2,8,64 --trust-remote-code" in ran.out


def test_options_of_a_module_are_for_a_module(run: Run) -> None:
    ran = run("inspect", "llama", "--input", "2,8,64")
    assert ran.code == 2 and "FILE.py:CLASS only" in " ".join(ran.err.replace("│", " ").split())


def test_a_file_of_a_package_is_imported_as_a_part_of_it(run: Run, tmp_path: Path) -> None:
    package = tmp_path / "pkg_of_mine"
    (package / "inner").mkdir(parents=True)
    for folder in (package, package / "inner"):
        (folder / "__init__.py").write_text("")
    (package / "parts.py").write_text("from torch import nn\nLinear = nn.Linear\n")
    text = MINE.replace(
        "from torch import nn\n", "from torch import nn\n\nfrom ..parts import Linear\n"
    )
    (package / "inner" / "mine.py").write_text(text.replace("nn.Linear(inner", "Linear(inner"))
    ran = run("inspect", f"{package / 'inner' / 'mine.py'}:MLP", *ARGUMENTS)
    assert ran.code == 0 and "gated_mlp → NF.mlp" in ran.out


def test_an_edited_file_is_read_anew(run: Run, mine: str) -> None:
    assert "fused 1 of 1" in run("inspect", f"{mine}:MLP", *ARGUMENTS).out
    edited = MINE.replace(
        "        return self.down(F.silu(self.gate(x)) * self.up(x))", "        return x"
    )
    Path(mine).write_text(edited, encoding="utf-8")
    assert "fused 0 of 0" in run("inspect", f"{mine}:MLP", *ARGUMENTS).out


def test_a_limit_that_cannot_be_worked_out_does_not_hold(
    run: Run, mine: str, tmp_path: Path
) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    limits = ["x.shape[7] == 64", "x == 3", "x.shape[-1] % 128 == 0", "x.shape[-1] == 64"]
    text = (
        "rule: doubled\nsummary: tanh(x) + x\nmatch: y = tanh(x) + x\nreplace: y = x + x\nneuron:\n"
    )
    (folder / "mine.yaml").write_text(text + "".join(f"  - {x}\n" for x in limits), "utf-8")
    path = tmp_path / "plain.py"
    path.write_text(
        "from torch import nn\n\n\nclass P(nn.Module):\n    def forward(self, x):\n"
        "        return x.tanh() + x\n"
    )
    ran = run("inspect", f"{path}:P", *ARGUMENTS, "--rules", str(folder), "--json")
    assert ran.code == 3  # x + x is not tanh(x) + x: dropped by the proof, but planned before
    planned = json.loads(ran.out)
    assert planned["classes"][0]["dropped"] == ["doubled"]
    right = text.replace("tanh(x) + x\nreplace", "x + x\nreplace").replace("tanh(x) + x", "x + x")
    (folder / "mine.yaml").write_text(right + "".join(f"  - {x}\n" for x in limits), "utf-8")
    path.write_text(path.read_text().replace("x.tanh() + x", "x + x"))
    ran = run("inspect", f"{path}:P", *ARGUMENTS, "--rules", str(folder), "--json")
    (site,) = json.loads(ran.out)["classes"][0]["sites"]
    assert [(x["text"], x["figures"]) for x in site["limits"]] == [
        ("x.shape[7] == 64", "cannot be worked out"),
        ("x == 3", ""),
        ("x.shape[-1] % 128 == 0", "64 != 0"),
    ]
