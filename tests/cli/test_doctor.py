"""`autoport doctor` on the machine the tests run on: text, JSON, exit code, and no heavy import."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

from neuron_autoport.doctor.schema import Diagnosis, json_schema
from tests.cli.conftest import Run


def test_json_is_of_the_schema_and_the_code_says_if_all_is_well(run: Run) -> None:
    ran = run("doctor", "--json")
    said = Diagnosis.model_validate_json(ran.out)
    assert ran.code == (1 if said.problems or not said.verdict.works else 0)
    found = {item.name: item.found for item in said.items}
    assert found["torch"] == version("torch")
    assert found["transformers"] == version("transformers")
    assert set(json.loads(ran.out)) == set(json_schema()["properties"])


def test_text_names_versions_verdict_and_recipes(run: Run) -> None:
    ran = run("doctor")
    assert version("torch") in ran.out
    assert "--model-impl neuron-transformers" in ran.out
    assert "export VLLM_NEURON_CPU_COMPILE=1" in ran.out
    assert "export VLLM_CPU_OMP_THREADS_BIND='0|1'" in ran.out
    assert not any(line.endswith(" ") for line in ran.out.splitlines())


def test_a_wrong_variable_is_a_problem_and_code_1(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "7")
    ran = run("doctor")
    assert ran.code == 1
    assert "problem: NEURON_LOGICAL_NC_CONFIG is '7'." in ran.out
    assert "mend: export NEURON_LOGICAL_NC_CONFIG=2" in ran.out


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from neuron_autoport.doctor.examine import examine; "
        "from neuron_autoport.doctor.facts import gather; examine(gather()); "
        "print([m for m in ('torch', 'transformers', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
