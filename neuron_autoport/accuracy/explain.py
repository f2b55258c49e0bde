"""From failed figures to the failure view: the worst place, the rule behind it, and what to do.

A failing module is explained by running its unit again with rules switched off, one by one.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from neuron_autoport.accuracy.bisect import smallest_set
from neuron_autoport.accuracy.candidate import Builder, Candidate
from neuron_autoport.accuracy.modules import judge_unit, record_states
from neuron_autoport.accuracy.schema import Failure, Level2, Level3, ModuleResult
from neuron_autoport.prove.modules import Call

IMPL = "neuron-transformers"
_MOST_FAILURES = 4
NOT_A_RULE = "it fails with every rule switched off: the fault is not a rule's, but the host's"


def module_failures(
    builder: Builder, candidate: Candidate, rules: Any, ids: Tensor, level3: Level3, asked: Asked
) -> list[Failure]:
    """The worst failing module of each class, innermost modules only, with the rules behind it."""
    failed = innermost([m for m in level3.modules if not m.figures.passed])
    by_class: dict[str, list[ModuleResult]] = {}
    for module in failed:
        by_class.setdefault(module.class_name, []).append(module)
    worst = [max(found, key=severity) for found in by_class.values()]
    worst.sort(key=severity, reverse=True)
    chosen = worst[:_MOST_FAILURES]
    calls = calls_of(builder, ids, {unit_of(builder, m.path) for m in chosen})
    failures = []
    for module in chosen:
        layers = sorted({m.layer for m in by_class[module.class_name] if m.layer is not None})
        guilty = guilty_rules(builder, candidate, rules, module, calls)
        failures.append(_failure(module, guilty, layers, asked))
    return failures


def severity(module: ModuleResult) -> tuple[float, float]:
    """How bad: error over the reference's own, infinite first; real inputs before adversarial ones."""
    figures = module.figures
    r = figures.r if figures.r is not None else float("inf")
    return (r if figures.error is not None else float("inf"), float(module.inputs == "real"))


def innermost(failed: list[ModuleResult]) -> list[ModuleResult]:
    """Those with no failing module inside them."""
    paths = {m.path for m in failed}
    return [m for m in failed if not any(p.startswith(f"{m.path}.") for p in paths)]


def unit_of(builder: Builder, path: str) -> str:
    return next(u for u in builder.weights.units if path == u or path.startswith(f"{u}."))


def calls_of(builder: Builder, ids: Tensor, units: Iterable[str]) -> dict[str, Call]:
    """Arguments of these units in the reference run, recorded anew."""
    wanted = sorted(units)
    calls: dict[str, Call] = {}
    if wanted:
        record_states(builder.model_fp32(), ids, wanted, calls)
    return calls


def guilty_rules(
    builder: Builder,
    candidate: Candidate,
    rules: Any,
    module: ModuleResult,
    calls: dict[str, Call],
) -> tuple[str, ...] | None:
    """The smallest set of the module's rules without which it passes; None if no set does."""
    unit = unit_of(builder, module.path)

    def passes(off: frozenset[str]) -> bool:
        part = candidate.without(off, rules) if off else candidate
        for found in judge_unit(builder, part, unit, calls[unit]):
            if found.path == module.path and not found.figures.passed:
                return False
        return True

    return smallest_set(module.rules, passes)


def _failure(
    module: ModuleResult, guilty: tuple[str, ...] | None, layers: list[int], asked: Asked
) -> Failure:
    if guilty is None:
        explained = NOT_A_RULE
    else:
        explained = f"it passes without {', '.join(guilty)}"
    if len(layers) > 1:
        explained += f"; {module.class_name} fails in layers {ranges(layers)}"
    return Failure(
        level=3,
        where=module.path,
        layer=module.layer,
        inputs=module.inputs,
        why=module.figures.why,
        bad=module.bad,
        rules=module.rules,
        guilty=list(guilty or ()),
        explained=explained,
        commands=commands(asked, guilty or ()),
    )


def ranges(numbers: list[int]) -> str:
    """`0-3, 7` of 0, 1, 2, 3, 7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


@dataclass(frozen=True)
class Asked:
    """The command line's model and rule folders, so that a printed command can be pasted."""

    model: str
    folders: tuple[str, ...] = ()

    def validate(self, *words: str) -> str:
        rules = [w for f in self.folders for w in ("--rules", f)]
        return shlex.join(["autoport", "validate", self.model, *rules, *words])

    def serve(self, off: Iterable[str]) -> str:
        settings = {
            "AUTOPORT_RULES": os.pathsep.join(self.folders),
            "AUTOPORT_WITHOUT": ",".join(off),
        }
        words = [f"{k}={shlex.quote(v)}" for k, v in settings.items() if v]
        return " ".join([*words, "vllm serve", shlex.quote(self.model), "--model-impl", IMPL])


def commands(asked: Asked, guilty: tuple[str, ...]) -> list[str]:
    """What switches the rules off: for another validation, and for serving."""
    if not guilty:
        return [asked.validate("--no-prove", "--bisect")]
    off = [w for g in guilty for w in ("--without", g)]
    return [asked.validate(*off), asked.serve(guilty)]


def prompt_failures(level2: Level2, asked: Asked) -> list[Failure]:
    """Failing modes, and the first layer whose KV cache is off in each."""
    failures = []
    for mode in level2.modes:
        caches = [c for c in level2.cache if c.mode == mode.mode and not c.figures.passed]
        if mode.passed and not caches:
            continue
        first = min(caches, key=lambda c: c.layer) if caches else None
        where = f"{level2.host}: {mode.mode}"
        why = mode.why
        if first is not None:
            why += f"; the KV cache is off from layer {first.layer} on ({first.part}: {first.figures.why})"
        failures.append(
            Failure(
                level=2, where=where, layer=first.layer if first is not None else None,
                inputs=mode.mode, why=why, bad=None, rules=[], guilty=[],
                explained="the modules are judged at level 3; --bisect tries the rules on this check",
                commands=commands(asked, ()),
            )
        )  # fmt: skip
    return failures
