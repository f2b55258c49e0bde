"""What is told of two reports of one model, and what of it counts as lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuron_autoport.errors import ModelError
from neuron_autoport.report import schema as s
from neuron_autoport.report.changes import changes, read_report
from tests.report.test_formats import PLACE, made


def with_class(report: s.Report, **changed: Any) -> s.Report:
    (cls,) = report.classes
    return report.model_copy(update={"classes": [cls.model_copy(update=changed)]})


def told(old: s.Report, new: s.Report) -> list[tuple[str, bool]]:
    return [(c.text, c.lost) for c in changes(old, new)]


def test_equal_reports_have_no_changes() -> None:
    assert told(made(), made()) == []


def test_a_site_that_is_gone_is_lost_and_a_new_one_is_not() -> None:
    gone = with_class(made(), sites=[])
    assert told(made(), gone) == [("MLP: gated_mlp → NF.mlp: 2 → 0 sites", True)]
    assert told(gone, made()) == [("MLP: gated_mlp → NF.mlp: 0 → 2 sites", False)]


def test_a_new_refusal_and_a_failed_proof_are_lost() -> None:
    refusal = s.RefusalInfo(
        code="AP201", meaning="", rule="o_proj", message="m", steps="all", place=PLACE
    )
    (cls,) = made().classes
    worse = with_class(made(), refusals=[*cls.refusals, refusal], dropped=["o_proj", "qkv_proj"])
    assert told(made(), worse) == [
        ("MLP: o_proj (AP201): refused 0 → 2 times", True), ("MLP: qkv_proj failed its proof", True),
    ]  # fmt: skip
    assert told(worse, made()) == [("MLP: o_proj (AP201): refused 2 → 0 times", False)]


def test_a_trace_that_no_longer_ends_is_lost() -> None:
    whole = with_class(made(), end=None)
    assert told(whole, made()) == [
        ("MLP: not traced to its end (AP101): refused 0 → 2 times", True)
    ]  # fmt: skip


def test_versions_and_shares() -> None:
    report = made()
    share = s.Share(part=1, whole=4, percent=25.0)
    newer = report.model_copy(update={
        "versions": report.versions.model_copy(update={"transformers": "5.24.0"}),
        "coverage": report.coverage.model_copy(update={"flops": share}),
    })  # fmt: skip
    assert told(report, newer) == [
        ("transformers 5.19.0 → 5.24.0", False), ("flops fused: 50.0 % → 25.0 %", True),
    ]  # fmt: skip


def test_a_report_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text(made().to_json(), encoding="utf-8")
    assert read_report(file) == made()


@pytest.mark.parametrize(
    ("text", "words"),
    [("{}", "model: Field required"), ("no", "Invalid JSON"), ("", "Invalid JSON"),
     ('{"schema": 2}', "schema")],
)  # fmt: skip
def test_what_is_no_report_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "old.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError) as error:
        read_report(file)
    assert words in error.value.text() and "--json" in error.value.text()
