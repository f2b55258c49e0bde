"""docs/kernels.md: its example is written out and run, its table is the table in the code."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from neuron_autoport import kernels as NK
from neuron_autoport.cli.app import app
from neuron_autoport.errors import AutoportError
from neuron_autoport.kernels import dispatch, outside
from neuron_autoport.kernels.limits import KERNELS
from neuron_autoport.rules.examples import Kind, run_rule
from neuron_autoport.rules.library import load_rules
from tests.nki_sim.lint import lint

DOC = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"
TEXT = DOC.read_text(encoding="utf-8")
FILE = re.compile(r"^```\w+\n# (\S+\.(?:py|yaml))\n(.*?)^```$", re.M | re.S)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of the example, importable and named in AUTOPORT_KERNELS."""
    for name, source in FILE.findall(TEXT):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(outside.VARIABLE, "my_kernels.soft_cap")
    yield tmp_path
    for table in (KERNELS, dispatch.FUNCTIONS, vars(NK)):
        table.pop("soft_cap", None)
    outside._load.cache_clear()
    for name in [n for n in sys.modules if n.split(".")[0] in ("my_kernels", "test_soft_cap")]:
        del sys.modules[name]


def calls(test: Callable[..., None]) -> list[dict[str, Any]]:
    """The calls that the parametrize marks of a test ask for."""
    found: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        name, values = mark.args
        found = [call | {name: value} for call in found for value in values]
    return found


def test_the_documents_test_passes(written: Path, nki_simulator: bool) -> None:
    module: ModuleType = importlib.import_module("test_soft_cap")
    kernel_calls = calls(module.test_kernel)
    assert len(kernel_calls) == 4
    for call in kernel_calls:
        module.test_kernel(nki_simulator, **call)
    module.test_reference_is_the_models_code()


def test_the_kernel_is_clean(written: Path) -> None:
    assert lint(written / "my_kernels" / "soft_cap_nki.py") == []


def test_the_rule_is_proved(written: Path) -> None:
    rule = next(r for r in load_rules([written / "rules"]) if r.name == "soft_cap")
    assert rule.call == "NK.soft_cap"
    outcomes = list(run_rule(rule))
    assert [o.kind for o in outcomes] == [Kind.good, Kind.good]
    assert outcomes[0].proof is not None


def test_the_report_names_the_kernel(written: Path) -> None:
    """Step 5's last command prints what the page shows."""
    command = ["inspect", f"{written}/capped.py:CappedHead", "--input", "2,8,64", "--rules",
               str(written / "rules"), "--trust-remote-code"]  # fmt: skip
    ran = CliRunner().invoke(app, command, env={"COLUMNS": "80"})
    assert ran.exit_code == 0, ran.output
    shown = TEXT.partition("Our own kernels on trn2")[2].partition("```")[0]
    assert "kernel: my_kernels.soft_cap" in shown
    assert f"Our own kernels on trn2{shown}" in ran.output


def test_the_function_is_in_nk_and_its_limits_with_it(written: Path) -> None:
    assert NK.names() == [*NK.__all__, "soft_cap"]
    x = torch.randn(3, 4)
    assert torch.equal(NK.soft_cap(x, 30.0), torch.tanh(x / 30.0) * 30.0)
    assert KERNELS["soft_cap"].title == "my_kernels.soft_cap"
    (found,) = KERNELS["soft_cap"].broken({"x": x.double()})
    assert str(found).startswith("x.dtype is float64, not float32 or bfloat16")
    before = outside.digest()
    (written / "my_kernels" / "soft_cap.py").write_text("# other\n")
    assert before and outside.digest() != before


def test_a_module_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(outside.VARIABLE, "no_such_kernels")
    with pytest.raises(AutoportError, match="no_such_kernels cannot be imported") as refused:
        NK.names()
    assert refused.value.where == outside.VARIABLE
    monkeypatch.delenv(outside.VARIABLE)
    assert outside.digest() == ""
    with pytest.raises(AttributeError, match="NK has no function soft_cap; there are act_and_mul"):
        _ = NK.soft_cap


def test_the_table_has_every_kernel_and_its_numbers() -> None:
    rows = {found[1]: found[0] for found in re.finditer(r"^\| `(\w+)` \|.*\|$", TEXT, re.M)}
    assert sorted(rows) == NK.__all__
    for name, row in rows.items():
        for limit in KERNELS[name].limits:
            numbered = limit.most is not None or limit.of == "kind"
            if numbered and "as `r" not in row:
                assert f"`{limit}`" in row, f"{name}: {limit}"
    assert "`x.shape[-1] <= 12288`" in rows["layer_norm"]
