"""The lines of an `__init__` that say which weights are fused, how, and how the ranks share them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torch import nn

from neuron_autoport.export.subject import ExportError
from neuron_autoport.fused import FusedWeight, WeightPart
from neuron_autoport.hosts.weights.lazy import runs_of
from neuron_autoport.rewrite.plan import ClassPlan


def weight_lines(plan: ClassPlan, module: nn.Module, shared: bool) -> list[str]:
    """One `fuse` call per fused weight, each site's under the name of its rule.

    Args:
        module: of the class, as transformers builds it. shared: by the tensor-parallel ranks.
    """
    lines: list[str] = []
    for site in plan.sites:
        if site.weights:
            lines.append(f"# autoport: {site.rule.name}")
        lines += [_fuse(weight, module, shared) for weight in site.weights]
    return lines


def quoted(text: str) -> str:
    """A string literal in double quotes."""
    return json.dumps(text)


def _fuse(weight: FusedWeight, module: nn.Module, shared: bool) -> str:
    parts = [_part(p, module) for p in weight.parts]
    words = ["self", quoted(weight.attr), *parts]
    if shared and weight.shard in ("heads", "column", "row"):
        words.append(f"shard={quoted(weight.shard)}")
    if weight.head_dim is not None:
        words.append(f"head_dim={weight.head_dim}")
    if weight.shard in ("heads", "plan"):
        whole = tuple(p.width for p in weight.parts)
        words.append("split=True" if weight.sizes == whole else f"split={weight.sizes!r}")
    if weight.heads:
        words.append(f"heads={weight.heads!r}")
    return f"fuse({', '.join(words)})"


def _part(part: WeightPart, module: Any) -> str:
    """A whole module by its name, or some of its columns."""
    owner = module.get_submodule(part.module)
    layout = "out_in" if isinstance(owner, nn.Linear) else "in_out"
    if (part.weight, part.bias or "bias", part.layout) != ("weight", "bias", layout):
        raise ExportError(
            f"{type(module).__name__}.{part.module} is a {type(owner).__name__}, whose weights are kept in "
            "a way that no package writes out",
            type(module).__name__,
        )
    if part.columns is not None:
        return f"columns({quoted(part.module)}, {_runs(part.columns)})"
    if part.whole:
        return quoted(part.module)
    return f"columns({quoted(part.module)}, ({part.start}, {part.end}))"


def _runs(columns: Sequence[int]) -> str:
    """Columns as (start, end) runs; equal runs at equal distances as `every(start, width, step, count)`."""
    runs = runs_of(columns)
    width, count = runs[0][1] - runs[0][0], len(runs)
    step = runs[1][0] - runs[0][0] if count > 1 else 0
    if count > 2 and runs == [
        (runs[0][0] + i * step, runs[0][0] + i * step + width) for i in range(count)
    ]:
        return f"*every({runs[0][0]}, {width}, {step}, {count})"
    return ", ".join(f"({a}, {b})" for a, b in runs)
