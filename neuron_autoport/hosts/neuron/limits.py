"""The limits of the fused projections on the target, for one rank's sizes and one phase.

Figures are the plugin's contract (`qkv_proj`, `o_proj`, `mlp`). A call outside them still runs, in torch,
and the plugin does not say so; the plan does.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_autoport.hosts.neuron.install import local_sizes
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.site import FusedWeight, Site
from neuron_autoport.trace.ops import Op

FEW = 128  # tokens up to which `mlp` runs the form for decode
MOST_INNER = 4096


def projection_limits(plan: ClassPlan, ranks: int) -> Iterator[tuple[str, str, str | None]]:
    """(phase, function, why it does not run in a kernel) of every fused call of a class.

    Args:
        ranks: that share the class. Phases: `prefill` (more than 128 tokens), `decode` (up to 128).
    """
    for site in plan.sites:
        for phase in ("prefill", "decode"):
            found = _limit(site, ranks, phase)
            if found is not None:
                yield (phase, *found)


def _limit(site: Site, ranks: int, phase: str) -> tuple[str, str | None] | None:
    by_shard = {w.shard: w for w in site.weights}
    if "heads" in by_shard:
        return "qkv_proj", _qkv(by_shard["heads"], ranks)
    if "column" in by_shard and "row" in by_shard:
        return "mlp", _mlp(by_shard["row"], ranks, phase)
    if set(by_shard) == {"row"}:
        return "o_proj", _o_proj(site, by_shard["row"], ranks)
    return None


def _qkv(weight: FusedWeight, ranks: int) -> str | None:
    width, columns = weight.in_features, sum(local_sizes(weight, ranks))
    if width % 128 or width > 24576:
        return f"hidden size {width}, the kernel takes a multiple of 128 up to 24576"
    if columns > min(4096, width):
        return f"{columns} columns per rank, the kernel takes {min(4096, width)}"
    return None


def _mlp(down: FusedWeight, ranks: int, phase: str) -> str | None:
    width, inner = down.out_features, down.in_features // ranks
    step = 128 if phase == "prefill" else 256
    if width % step:
        return f"hidden size {width} is no multiple of {step}"
    if phase == "prefill" and inner > MOST_INNER:
        return (
            f"inner size {inner} per rank, the kernel takes {MOST_INNER} for more than {FEW} tokens"
        )
    return None


def _o_proj(site: Site, weight: FusedWeight, ranks: int) -> str | None:
    value = site.match.values.get("value")
    head = value.shape[-1] if isinstance(value, Op) else None
    if weight.out_features > 20705 or weight.out_features % 2:
        return f"hidden size {weight.out_features}, the kernel takes an even one up to 20705"
    if head is None or head > 128:
        return f"heads are {head} wide, the kernel takes 128"
    heads = weight.in_features // ranks // head
    return f"{heads} heads per rank, the kernel takes 17" if heads > 17 else None
