"""What `vllm serve MODEL --model-impl neuron-transformers` would do in an environment, and why."""

from __future__ import annotations

from typing import Literal, TypeAlias

from neuron_autoport.doctor import known
from neuron_autoport.doctor.facts import Environment
from neuron_autoport.doctor.schema import Problem, Verdict

Where: TypeAlias = Literal["torch", "kernels", "simulator", "compile only"]
FLAG = "--model-impl neuron-transformers"
# Problems that do not stop a server: the others do.
_HARMLESS = frozenset({"compiler", "name-holder"})


def judge(env: Environment, found: list[Problem]) -> Verdict:
    """The verdict on an environment with these problems."""
    stops = [p for p in found if p.code not in _HARMLESS]
    neuron, why = _platform(env)
    nf, nf_why = _nf(env, neuron)
    if stops:
        return Verdict(
            works=False,
            host="none",
            nf=nf,
            what=f"`{FLAG}` would not work: {stops[0].what}",
            why=[p.what for p in stops[1:]],
        )
    if neuron and nf == "compile only":
        what = "compile the rewritten model for the chip, and serve nothing"
    elif neuron:
        what = "serve the rewritten model on the Neuron runner of the plugin"
    else:
        what = f"serve the rewritten model on vLLM {env.vllm}'s engine"
    return Verdict(
        works=True,
        host="neuron" if neuron else "vllm",
        nf=nf,
        what=f"`{FLAG}` would {what}.",
        why=[why, nf_why],
    )


def _platform(env: Environment) -> tuple[bool, str]:
    """(is the plugin's platform active, why)."""
    if not env.plugin:
        return False, "the vLLM Neuron plugin is not installed"
    if env.on(known.CPU_COMPILE):
        return True, f"the plugin is installed and {known.CPU_COMPILE} is set"
    if env.on(known.CPU_MODE):
        return True, f"the plugin is installed and {known.CPU_MODE} is set"
    if env.devices:
        count = len(env.devices)
        return True, f"the plugin is installed and there are {count} Neuron devices"
    return False, (
        f"the plugin is installed, but there is no Neuron device and neither {known.CPU_MODE} nor "
        f"{known.CPU_COMPILE} is set, so its platform stays inactive"
    )


def _nf(env: Environment, neuron: bool) -> tuple[Where, str]:
    """(where NF and NK calls run, why)."""
    if not neuron:
        return "torch", "NF and NK calls run in their torch references"
    if env.on(known.CPU_COMPILE):
        return "compile only", "graphs are compiled from shapes alone; no value is computed"
    if env.on(known.NO_KERNELS):
        return "torch", f"{known.NO_KERNELS} is set: NF calls run in the plugin's torch forms"
    if env.on(known.CPU_MODE):
        if env.variables.get(known.SIMULATOR) == "1":
            return "simulator", f"{known.SIMULATOR} is 1: NKI kernels run in the simulator"
        return "torch", "in CPU mode NF calls run in the plugin's torch forms"
    return "kernels", "NF calls run in NKI kernels where their limits hold, else in torch"
