"""The limits of the fused projections on the target, for one rank's sizes and a number of tokens.

Figures are the plugin's contract (`qkv_proj`, `o_proj`, `mlp`). A call outside them still runs, in torch,
and the plugin does not say so; the plan does.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_autoport.fused import FusedWeight
from neuron_autoport.hosts.neuron.fused_heads import heads_limit
from neuron_autoport.hosts.neuron.install import local_sizes
from neuron_autoport.kernels.calls import KernelCall, kernel_calls
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.site import Site
from neuron_autoport.trace.ops import Op

FEW = 128  # tokens up to which `mlp` runs the form for decode
MOST_INNER = 4096
# A wider inner size, of models with at least this hidden size, up to this many tokens.
WIDE_INNER, WIDE_HIDDEN, WIDE_TOKENS = 8192, 7168, 256
MOST_TOKENS = 131072
_TOKENS = {"prefill": WIDE_TOKENS + 1, "decode": 1}


def projection_limits(plan: ClassPlan, ranks: int) -> Iterator[tuple[str, str, str | None]]:
    """(phase, function, why it does not run in a kernel) of every fused call of a class.

    Args:
        ranks: that share the class. Phases: `prefill` (more than 256 tokens), `decode` (up to 128).
    """
    for site in plan.sites:
        for phase, tokens in _TOKENS.items():
            found = site_limit(site, ranks, tokens)
            if found is not None:
                yield (phase, *found)


def own_calls(plan: ClassPlan) -> Iterator[tuple[str, KernelCall]]:
    """(phase, call) of every NK function that a class calls."""
    for site in plan.sites:
        for phase in ("prefill", "decode"):
            for call in kernel_calls(site, phase):
                yield phase, call


def site_limit(site: Site, ranks: int, tokens: int) -> tuple[str, str | None] | None:
    """(NF function, why it does not run in a kernel) of a site's projection; None if it has none."""
    by_shard = {w.shard: w for w in site.weights}
    if "heads" in by_shard:
        heads = by_shard["heads"]
        return "qkv_proj", heads_limit(heads.in_features, sum(local_sizes(heads, ranks)))
    if "column" in by_shard and "row" in by_shard:
        return "mlp", _mlp(site, ranks, tokens)
    if set(by_shard) == {"row"}:
        return "o_proj", _o_proj(site, by_shard["row"], ranks, tokens)
    return None


def _mlp(site: Site, ranks: int, tokens: int) -> str | None:
    down = next(w for w in site.weights if w.shard == "row")
    width, inner = down.out_features, down.in_features // ranks
    step = 256 if tokens <= FEW else 128
    if width % step:
        return f"hidden size {width} is no multiple of {step}"
    if tokens <= FEW or -(-inner // 512) * 512 <= MOST_INNER:
        return None
    bias = any(w.has_bias for w in site.weights)
    wide = width >= WIDE_HIDDEN and tokens <= WIDE_TOKENS and not bias
    if wide and inner <= WIDE_INNER:
        return None
    return f"inner size {inner} per rank, the kernel takes {MOST_INNER} for more than {FEW} tokens"


def _o_proj(site: Site, weight: FusedWeight, ranks: int, tokens: int) -> str | None:
    value = site.match.values.get("value")
    head = value.shape[-1] if isinstance(value, Op) else None
    if weight.out_features > 20705 or weight.out_features % 2:
        return f"hidden size {weight.out_features}, the kernel takes an even one up to 20705"
    if head is None or head > 128:
        return f"heads are {head} wide, the kernel takes 128"
    heads = weight.in_features // ranks // head
    if heads > 17:
        return f"{heads} heads per rank, the kernel takes 17"
    return f"{tokens} tokens, the kernel takes {MOST_TOKENS}" if tokens > MOST_TOKENS else None
