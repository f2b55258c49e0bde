"""What to validate, how, and what of it can be run here."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch

from neuron_autoport.accuracy.candidate import Adjust
from neuron_autoport.accuracy.explain import IMPL
from neuron_autoport.accuracy.modules import Progress, silent
from neuron_autoport.errors import AutoportError
from neuron_autoport.models.source import ModelSource

OUR_IMPL = IMPL
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True)
class Options:
    """What to validate and how; see `autoport validate --help`.

    memory: bytes to stay within, None for what there is. tp: ranks of the served model. prove: leave
    out what fails its proof on the small model, as serving does. engine: also judge the served model.
    left_out: levels that cannot be run here, with the reason. folders: of the user's rules, for printed
    commands. adjust: see `Candidate`.
    """

    levels: tuple[int, ...] = (3, 2)
    impl: str = OUR_IMPL
    dtype: str = "bfloat16"
    without: tuple[str, ...] = ()
    prompts: Path | None = None
    count: int = 6
    length: int = 96
    chunk: int = 16
    steps: int = 8
    memory: int | None = None
    tp: int = 1
    prove: bool = True
    engine: bool = False
    bisect: bool = False
    tasks: Path | None = None
    limit: int | None = None
    margin: float = 0.05
    left_out: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    adjust: Adjust | None = None
    progress: Progress = field(default=silent)


@dataclass(frozen=True)
class Runnable:
    """What can be run here of what was asked for."""

    levels: tuple[int, ...]
    engine: bool


def available_levels(
    source: ModelSource, impl: str, asked: tuple[int, ...] | None, engine: bool | None
) -> tuple[Runnable, list[str]]:
    """Which levels to run, and why others are not; what was asked for by name must be possible.

    Args:
        asked: levels; None for all that can be run. engine: likewise.

    Raises:
        AutoportError: a level or the engine was asked for and cannot be run here.
    """
    left_out: list[str] = []
    has_vllm, has_folder = find_spec("vllm") is not None, source.kind != "model_type"
    if impl != OUR_IMPL and (not has_vllm or not has_folder or 3 in (asked or ())):
        raise AutoportError(
            f"--impl {impl} is judged as served by vLLM, at levels 2 and 1; "
            + ("vLLM is not installed." if not has_vllm else "it takes a folder and no level 3."),
            source.name,
            f"autoport validate {source.name} --level 2",
        )
    reason = "" if has_vllm else "vLLM is not installed"
    reason = reason or ("" if has_folder else "a bare model type has no folder to serve")
    tasks = reason or missing_lm_eval()
    if asked is not None and 1 in asked and tasks:
        raise AutoportError(
            f"Level 1 cannot be run: {tasks}.", source.name, "pip install neuron-autoport[validate]"
        )
    if engine and reason:
        raise AutoportError(
            f"The engine cannot be asked: {reason}.",
            source.name,
            "pip install neuron-autoport[vllm]",
        )
    levels = asked if asked is not None else (3, 2, *(() if tasks else (1,)))
    if asked is None and tasks:
        left_out.append(f"tasks: level 1 was left out, {tasks}")
    if impl != OUR_IMPL:
        levels = tuple(x for x in levels if x != 3)
    return Runnable(levels, not reason if engine is None else engine), left_out


def missing_lm_eval() -> str:
    """Why lm_eval cannot be used, or nothing."""
    names = ("lm_eval", "datasets", "sacrebleu", "tenacity", "aiohttp")
    missing = [n for n in names if find_spec(n) is None]
    return f"{missing[0]} is not installed" if missing else ""
