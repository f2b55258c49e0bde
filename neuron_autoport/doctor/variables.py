"""The variables of the environment that change what runs: wrong values, and what to set for what."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_autoport.doctor import known
from neuron_autoport.doctor.facts import Environment
from neuron_autoport.doctor.schema import Problem, Recipe, Setting


def variable_problems(env: Environment) -> Iterator[Problem]:
    """Values that the plugin or our kernels refuse, and settings that exclude each other."""
    yield from _no_numbers(env)
    cores = env.variables.get(known.CORES)
    if cores is not None and cores.strip() not in ("1", "2"):
        yield Problem(
            code="cores",
            what=f"{known.CORES} is {cores!r}.",
            why="a logical core has 1 or 2 physical cores",
            mend=f"export {known.CORES}=2",
        )
    if env.on(known.CPU_MODE) and env.on(known.CPU_COMPILE):
        yield Problem(
            code="cpu-modes",
            what=f"{known.CPU_MODE} and {known.CPU_COMPILE} are both set.",
            why="the plugin runs on the CPU or compiles for a chip without one, not both",
            mend=f"unset {known.CPU_MODE}   # to compile; or: unset {known.CPU_COMPILE}   # to run",
        )
    if env.on(known.CPU_COMPILE) and not env.variables.get(known.TARGET, "").strip():
        yield Problem(
            code="no-target",
            what=f"{known.CPU_COMPILE} is set without {known.TARGET}.",
            why="without a device the compiler must be told for which chip",
            mend=f"export {known.TARGET}=trn2",
        )
    if env.plugin and env.variables.get(known.RUNNER_V2, "0").strip().lower() in ("1", "true"):
        yield Problem(
            code="runner-v2",
            what=f"{known.RUNNER_V2} is {env.variables[known.RUNNER_V2]!r}.",
            why="the plugin has a model runner of its own and refuses this",
            mend=f"export {known.RUNNER_V2}=0",
        )


def _no_numbers(env: Environment) -> Iterator[Problem]:
    for name in known.NUMBERS:
        value = env.variables.get(name)
        if value is not None and value.strip() not in ("", "0", "1"):
            yield Problem(
                code="no-number",
                what=f"{name} is {value!r}.",
                why="the plugin reads it as a number, 0 or 1",
                mend=f"export {name}=1",
            )


def recipes(env: Environment) -> list[Recipe]:
    """What to set to compile without a device, to run the plugin on a CPU, and for two ranks."""
    return [
        _recipe(
            env,
            "compile for a chip on a machine without one (the plugin's CPU compile mode)",
            (
                (known.CPU_COMPILE, "1", "compile every bucket, load no weights, run nothing"),
                (known.TARGET, "trn2", "the chip to compile for: trn2 or trn3"),
                (known.CORES, "2", "physical cores per logical core, as on the machine it is for"),
                (known.CPU_MODE, "0", "the two modes exclude each other"),
            ),
            "vllm serve MODEL --model-impl neuron-transformers",
        ),
        _recipe(
            env,
            "run the plugin on a CPU, its functions in torch (the plugin's CPU mode)",
            (
                (known.CPU_MODE, "1", "the plugin's platform without a device"),
                (known.SIMULATOR, "1", "optional, slow: NKI kernels in the simulator"),
                (known.CPU_COMPILE, "0", "the two modes exclude each other"),
            ),
            "vllm serve MODEL --model-impl neuron-transformers --enforce-eager",
        ),
        _recipe(
            env,
            "serve with two ranks on one machine without a chip (vLLM for CPUs)",
            (
                (known.THREADS, "0|1", "one set of cores for each rank, separated by |"),
                (known.KV_SPACE, "1", "GiB of KV cache for each rank"),
            ),
            "vllm serve MODEL --model-impl neuron-transformers --tensor-parallel-size 2",
        ),
    ]


def _recipe(
    env: Environment, purpose: str, rows: tuple[tuple[str, str, str], ...], command: str
) -> Recipe:
    settings = [
        Setting(name=name, value=value, why=why, set_to=env.variables.get(name))
        for name, value, why in rows
    ]
    return Recipe(purpose=purpose, settings=settings, command=command)
