"""SARIF, workflow commands and Markdown of one small report that has a finding of every level."""

from __future__ import annotations

import json

import pytest

from neuron_autoport.report import schema as s
from neuron_autoport.report.findings import findings
from neuron_autoport.report.formats import github, markdown, sarif

PLACE = s.Place(file="pack/mod.py", line=7, column=5, end_column=12, source="    x = f(a)")
WORK = s.Work(flops=10, bytes=20)


def made() -> s.Report:
    limit = s.Limit(text="a <= 4", figures="8 > 4", holds_from_tp=2)
    site = s.SiteInfo(
        rule="gated_mlp", role="mlp", call="NF.mlp", place=PLACE, modules=["up"], found={"act": "silu"},
        weights=[], limits=[limit], work=WORK, weight_bytes=4,
    )  # fmt: skip
    refused = s.RefusalInfo(
        code="AP204", meaning="", rule="rms_norm", message="x, y: 50% is\nwritten", steps="3 of 5",
        place=PLACE,
    )  # fmt: skip
    stated = s.RefusalInfo(
        code="AP402",
        meaning="",
        rule="lone_linear",
        message="no | function",
        steps="all",
        place=None,
    )
    cls = s.ClassInfo(
        id="MLP", name="MLP", module="m", linear=None, paths=["a", "b"], sites=[site],
        refusals=[refused, refused, stated], dropped=["o_proj"],
        end=s.TraceEndInfo(code="AP101", message="a branch", where=None),
    )  # fmt: skip
    share = s.Share(part=1, whole=2, percent=50.0)
    return s.Report(
        model=s.ModelInfo(
            name="small", kind="folder", model_type="m", architecture="M", parameters=1500,
            dtype="bfloat16",
        ),
        versions=s.Versions(autoport="0.1.0", transformers="5.19.0", torch="2.13.0"),
        target=s.Target(name="trn2", tp=1), classes=[cls], rules=[],
        tree=s.Node(name="", paths=[""], class_id="MLP", inside=None, children=[]),
        leftovers=[s.Leftover(
            class_name="MLP", kind="linear", operations=["linear"], modules=[], function=None,
            calls=2, work=WORK, flops_share=50.0, bytes_share=0.0,
        )],
        coverage=s.Coverage(
            context=1024, sites=share, flops=share, bytes=share, weight_bytes=share, traced=False
        ),
        head=s.HeadInfo(scale=None, soft_cap=None, scale_after_cap=None, module=None, unknown="no"),
        proof=None, seconds={"total": 0.5},
    )  # fmt: skip


def test_findings_have_a_level_each_and_equal_ones_are_told_once() -> None:
    assert [(f.code, f.level) for f in findings(made())] == [
        ("AP101", "warning"), ("AP701", "error"), ("AP204", "warning"), ("AP402", "note"),
        ("AP401", "note"),
    ]  # fmt: skip


def test_sarif() -> None:
    log = json.loads(sarif(made()))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["AP101", "AP204", "AP401", "AP402", "AP701"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in {"error", "warning", "note"}
    refused = next(r for r in run["results"] if r["ruleId"] == "AP204")
    assert refused["message"]["text"] == "rms_norm in MLP: x, y: 50% is\nwritten (3 of 5 steps)"
    assert refused["locations"] == [{"physicalLocation": {
        "artifactLocation": {"uri": "pack/mod.py"},
        "region": {"startLine": 7, "startColumn": 5, "endColumn": 12},
    }}]  # fmt: skip
    assert "locations" not in next(r for r in run["results"] if r["ruleId"] == "AP701")


def test_workflow_commands_escape_what_would_end_them() -> None:
    lines = github(made()).split("\n")
    assert lines[0] == (
        "::warning title=autoport AP101::MLP was not traced to its end: a branch"
    )  # fmt: skip
    assert lines[2] == (
        "::warning title=autoport AP204,file=pack/mod.py,line=7,col=5,endColumn=12::"
        "rms_norm in MLP: x, y: 50%25 is%0Awritten (3 of 5 steps)"
    )
    assert lines[1].startswith("::error ") and lines[3].startswith("::notice ")
    assert (
        lines[-1] == "::notice title=autoport inspect::small: fused 1 of 2 sites, 50.0 %25 of FLOPs"
    )


def test_markdown_tables_are_whole() -> None:
    text = markdown(made())
    assert "**Fused 1 of 2 sites**: 50.0 % of FLOPs" in text
    assert "| gated_mlp | `NF.mlp` | MLP | 2 | act=silu | `pack/mod.py:7:5` |" in text
    assert "| AP402 | note | lone_linear in MLP: no \\| function |  |" in text
    assert [x for x in text.split("\n") if x.startswith("## ")] == [
        "## Sites", "## Findings", "## Left to torch",
    ]  # fmt: skip
    for line in text.split("\n"):
        if line.startswith("|"):
            cells = line.replace("\\|", "").count("|") - 1
            assert cells in (4, 5, 6), line


@pytest.mark.parametrize("name", ["sarif", "github", "markdown"])
def test_the_command_prints_each(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from neuron_autoport.cli.inspect_output import FormatName, Output

    Output(FormatName(name), False, None, None).write(made(), None, None)  # type: ignore[arg-type]
    expected = {"sarif": sarif, "github": github, "markdown": markdown}[name](made())
    assert capsys.readouterr().out == expected + "\n"
