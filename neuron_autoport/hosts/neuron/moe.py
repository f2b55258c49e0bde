"""A mixture-of-experts block in NF functions, phase by phase.

Prefill: `NF.router` (or the block's own code), `NF.build_blockwise_mapping`, `NF.moe_cte`. Decode:
`NF.moe_block_tkg`, with the norm that stands before the block; that norm then passes its input on. Where a
kernel's limit is broken every expert runs on every token in torch, with zero weight for those not chosen.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from neuron_autoport import nf as NF
from neuron_autoport.hosts.neuron.attention_form import fill_result, pick_argument
from neuron_autoport.hosts.neuron.mixin import Before, put_before
from neuron_autoport.hosts.neuron.moe_experts import EXPERTS_STATE, ExpertsState, run_experts
from neuron_autoport.hosts.neuron.moe_form import MoEForm
from neuron_autoport.hosts.neuron.moe_sizes import decode_tokens_limit

GAMMA = "moe_gamma"
_ORDERS = NF.RouterComputationOrder
_POST = NF.ExpertAffinityScaleMode.POST_SCALE


def routed(module: Any, x: Tensor) -> Tensor:
    """Affinities [T, E] by `NF.router`, float32. module: the block. x: [T, H]."""
    form: MoEForm = module.neuron_moe
    router = form.router
    assert router is not None
    over_all = router.renormalize and not router.score_after_top_k
    order = (
        _ORDERS.PRENORM_LINEAR_ACT_TOPK_RENORM_SCATTER
        if over_all
        else _ORDERS.PRENORM_LINEAR_TOPK_ACT_SCATTER
    )
    bias = module.nf_router_bias
    found: Any = NF.router(
        x,
        module.nf_router,
        router.top_k,
        router_bias=None if bias is None else bias.view(-1),
        activation=router.score,
        router_computation_order=order,
    )
    affinities: Tensor = found
    return affinities


def hold_block(block: nn.Module, form: MoEForm) -> None:
    """Let a block run in NF functions, router and all, in the phases that the form has."""
    object.__setattr__(block, "neuron_moe", form)
    put_before(block, _Block)


def pass_on(norm: nn.Module, block: nn.Module) -> None:
    """Let the norm before a block pass its input on in the steps in which the block holds it."""
    object.__setattr__(norm, "neuron_block", block)
    put_before(norm, _PassesOn)


def in_one_call(block: Any, x: Tensor) -> bool:
    """Does this step run block and norm in one call? x: [B, S, H]."""
    state: ExpertsState = getattr(block.get_submodule(block.neuron_moe.experts), EXPERTS_STATE)
    if not state.call.decode or block.neuron_moe.norm is None:
        return False
    return state.any_size or decode_tokens_limit(x.shape[:-1].numel()) is None


class _PassesOn(Before):
    """Comes before a norm's class."""

    neuron_block: nn.Module

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if in_one_call(self.neuron_block, x):
            return x
        return super().forward(x, *args, **kwargs)


class _Block(Before):
    """Comes before a block's class. What the experts give is summed over the ranks here, or, where the block's own
    forward runs, by the experts."""

    neuron_moe: MoEForm

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        form, call = self.neuron_moe, self.neuron_moe.call
        assert call is not None
        hidden: Tensor = pick_argument(call.hidden, args, kwargs)
        experts: Any = self.get_submodule(form.experts)
        state: ExpertsState = getattr(experts, EXPERTS_STATE)
        if in_one_call(self, hidden):
            y = _in_decode(self, experts, hidden)
        elif form.no_router is None:
            x = hidden.reshape(-1, hidden.shape[-1])
            y = run_experts(experts, *state.of_all(x, routed(self, x)))
        else:
            return super().forward(*args, **kwargs)
        y = state.summed(y)
        y = y if form.scale == 1.0 else y * form.scale
        return fill_result(call.result, y.view(hidden.shape))


def _in_decode(block: Any, experts: Any, hidden: Tensor) -> Tensor:
    """Norm, router and experts of hidden [B, S, H], before the norm: [T, H]."""
    form: MoEForm = block.neuron_moe
    state: ExpertsState = getattr(experts, EXPERTS_STATE)
    router, norm, between = form.router, form.norm, state.between
    assert router is not None and norm is not None
    rank = state.call.rank
    score = NF.RouterActFnType.SOFTMAX if router.score == "softmax" else NF.RouterActFnType.SIGMOID
    out: Any = NF.moe_block_tkg(
        hidden,
        getattr(block, GAMMA),
        block.nf_router,
        experts.nf_gate_up,
        experts.nf_down,
        rank.view(1, 1).int() if state.by_expert and rank is not None else None,
        top_k=router.top_k,
        router_bias=block.nf_router_bias,
        expert_gate_up_bias=experts.nf_gate_up_bias,
        expert_down_bias=experts.nf_down_bias,
        eps=norm.eps,
        router_act_fn=score,
        router_pre_norm=not router.score_after_top_k,
        norm_topk_prob=router.renormalize,
        expert_affinities_scaling_mode=_POST,
        hidden_act_fn=between.activation,
        gate_clamp_upper_limit=between.gate_high,
        up_clamp_upper_limit=between.up_high,
        up_clamp_lower_limit=between.up_low,
        skip_router_logits=True,
    )
    found: Tensor = out
    return found
