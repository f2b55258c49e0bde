"""Which NF functions a mixture-of-experts block becomes on Neuron, phase by phase, or why not.

Prefill: `NF.router`, `NF.build_blockwise_mapping`, `NF.moe_cte`. Decode: `NF.moe_block_tkg`, which holds the
norm before the block. What they can express is the plugin's written contract (1.2); nothing was run on a device.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_autoport.trace.experts import ExpertsFacts
from neuron_autoport.trace.moe import MoEFacts
from neuron_autoport.trace.router import RouterFacts

ROUTER, MAPPING, CTE, TKG = (
    "NF.router", "NF.build_blockwise_mapping", "NF.moe_cte", "NF.moe_block_tkg",
)  # fmt: skip
_SWISH = 1.702  # NF's Swish is x * sigmoid(1.702 x)
_CTE_STEP, _CTE_LEAST, _TKG_HIDDEN, _TKG_INNER = 16, 128, 256, 128


@dataclass(frozen=True)
class Phase:
    """calls: NF functions in order, empty if torch runs. notes: parts that stay in torch, and why.

    reason: why no function takes the block, or None. limits: sizes that do not hold for the kernel.
    """

    calls: tuple[str, ...]
    notes: tuple[str, ...] = ()
    reason: str | None = None
    limits: tuple[str, ...] = ()

    def summary(self) -> str:
        """`NF.router, NF.build_blockwise_mapping, NF.moe_cte`, or `torch: reason`."""
        if self.reason is not None:
            return f"torch: {self.reason}"
        parts = [", ".join(self.calls), *self.notes]
        if self.limits:
            parts.append("limits that do not hold: " + ", ".join(self.limits))
        return "; ".join(parts)


@dataclass(frozen=True)
class MoECalls:
    """What both phases become."""

    prefill: Phase
    decode: Phase


def moe_calls(facts: MoEFacts, tp: int = 1) -> MoECalls:
    """The calls of one block.

    Args:
        facts: of the block. tp: ranks among which the columns of an expert are shared.
    """
    if not isinstance(facts.experts, ExpertsFacts):
        reason = f"the experts are not understood: {facts.experts.message}"
        return MoECalls(Phase((), reason=reason), Phase((), reason=reason))
    return MoECalls(_prefill(facts, facts.experts, tp), _decode(facts, facts.experts, tp))


def _prefill(facts: MoEFacts, experts: ExpertsFacts, tp: int) -> Phase:
    reason = _no_activation(experts)
    if reason is not None:
        return Phase((), reason=reason)
    stays = _router_in_torch(facts)
    calls = (MAPPING, CTE) if stays else (ROUTER, MAPPING, CTE)
    notes: tuple[str, ...] = ()
    if isinstance(facts.router, RouterFacts) and facts.router.weights_on == "input":
        notes += ("weights on the experts' input (PRE_SCALE)",)
    if stays:
        notes += (f"the router stays in torch: {stays}",)
    if facts.shared is not None:
        notes += ("the shared expert by itself",)
    inner = experts.intermediate // tp
    limits = []
    if inner % _CTE_STEP:
        limits.append(f"{inner} columns are no multiple of {_CTE_STEP}")
    elif inner < _CTE_LEAST:
        limits.append(f"{inner} columns < {_CTE_LEAST}")
    return Phase(calls, notes, None, tuple(limits))


def _decode(facts: MoEFacts, experts: ExpertsFacts, tp: int) -> Phase:
    reason = _no_activation(experts) or _no_tkg(facts, experts)
    if reason is not None:
        return Phase((), reason=reason)
    limits = []
    if experts.hidden % _TKG_HIDDEN:
        limits.append(f"hidden {experts.hidden} is no multiple of {_TKG_HIDDEN}")
    inner = experts.intermediate // tp
    if inner % _TKG_INNER:
        limits.append(f"{inner} columns are no multiple of {_TKG_INNER}")
    return Phase((TKG,), ("with the norm before the block",), None, tuple(limits))


def _no_activation(experts: ExpertsFacts) -> str | None:
    """Why NF's expert functions cannot compute these experts."""
    gate = experts.gate
    if not gate.gated:
        return f"NF's experts have a gate, these are {gate.activation} of one product"
    if gate.activation == "swish" and gate.alpha == _SWISH:
        return None
    if gate.activation in ("silu", "gelu"):
        return None
    return f"NF's experts have no `{gate.summary()}`"


def _router_in_torch(facts: MoEFacts) -> str | None:
    """Why `NF.router` cannot route this block, or None if it can."""
    router = facts.router
    if not isinstance(router, RouterFacts):
        return f"it is not understood: {router.message}"
    if (reason := _beyond_top_k(router)) is not None:
        return reason
    if router.score not in ("softmax", "sigmoid"):
        return f"NF.router has no {router.score}"
    if router.score_after_top_k and router.renormalize and router.score != "softmax":
        return "NF.router does not renormalize scores of the chosen logits"
    # A score of each logit alone keeps their order: top-k first gives the same.
    alone = router.score == "sigmoid"
    if not router.score_after_top_k and not router.renormalize and not alone:
        return f"NF.router always renormalizes {router.score} over all experts"
    return None


def _beyond_top_k(router: RouterFacts) -> str | None:
    """What neither of NF's routers has."""
    if router.bias is not None:
        return "a bias that only chooses"
    if router.groups is not None and router.groups.count > 1:
        return "groups of experts"
    if router.expert_scale is not None:
        return "a factor per expert"
    if router.scale != 1.0:
        return f"weights × {router.scale:g}"
    if router.soft_cap is not None:
        return "capped logits"
    if not router.reads_hidden:
        return "its logits are no linear map of the block's input"
    # A softmax of k of E experts sums to at least k / E: a floor below that never acts.
    harmless = router.eps <= 1e-20 or (router.eps_is_floor and router.score == "softmax")
    if router.renormalize and not (harmless and router.eps < 1e-6):
        return f"{router.eps:g} in the sum that renormalizes"
    return None


def _no_tkg(facts: MoEFacts, experts: ExpertsFacts) -> str | None:
    """Why `NF.moe_block_tkg` cannot run this block."""
    router = facts.router
    if not isinstance(router, RouterFacts):
        return f"NF.moe_block_tkg routes itself, and the router is not understood: {router.message}"
    if (reason := _beyond_top_k(router)) is not None:
        return f"NF.moe_block_tkg cannot route with {reason}"
    if router.score not in ("softmax", "sigmoid"):
        return f"NF.moe_block_tkg has no {router.score}"
    if router.weights_on == "input":
        return "NF.moe_block_tkg multiplies the experts' output by their weights"
    if facts.shared is not None:
        return "NF.moe_block_tkg refuses a shared expert without a device"
    if facts.output_scale != 1.0 or experts.dense:
        return "NF.moe_block_tkg has no such output"
    return None
