"""NF.moe_block_tkg: RMS norm, router and expert MLPs in one call, for decode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.dispatch import nf_function
from neuron_autoport.nf.enums import (
    NL_BFLOAT16,
    ActFnType,
    ExpertAffinityScaleMode,
    RouterActFnType,
)
from neuron_autoport.nf.experts import Between, check_bias, check_experts, experts_sum

NAME = "moe_block_tkg"
_LEAST = 1e-20  # in the sum that renormalizes


def _check_router(
    x: Tensor, gamma: Tensor, weights: Tensor, bias: Tensor | None, top_k: int, local: int
) -> None:
    width = x.shape[-1]
    checks.row(NAME, "gamma", gamma, width)
    if weights.dim() != 2 or weights.shape[0] != width:
        raise ValueError(
            f"NF.{NAME}: router_weights must be [{width}, E], got {tuple(weights.shape)}; a "
            "torch.nn.Linear weight is [out, in]: transpose it"
        )
    experts = weights.shape[1]
    checks.row(NAME, "router_bias", bias, experts)
    if not 1 <= top_k <= experts:
        raise ValueError(f"NF.{NAME}: top_k is {top_k} of {experts} experts")
    if local > experts or experts % local:
        raise ValueError(f"NF.{NAME}: {local} local experts of {experts}")


def _weights(
    logits: Tensor,
    top_k: int,
    score: RouterActFnType,
    over_all: bool,
    renormalize: bool,
    mode: ExpertAffinityScaleMode,
) -> Tensor:
    """[T, E], zero for experts that were not chosen."""
    softmax = score == RouterActFnType.SOFTMAX
    scored = logits
    if over_all:
        scored = torch.softmax(logits, -1) if softmax else torch.sigmoid(logits)
    chosen, at = scored.topk(top_k, -1)
    if not over_all:
        chosen = torch.softmax(chosen, -1) if softmax else torch.sigmoid(chosen)
    if renormalize:
        chosen = chosen / (chosen.sum(-1, keepdim=True) + _LEAST)
    if mode == ExpertAffinityScaleMode.NO_SCALE:
        chosen = (chosen > 0).to(chosen.dtype)
    return torch.zeros_like(logits).scatter(1, at, chosen)


def _normed(x: Tensor, gamma: Tensor, eps: float, width: int | None) -> Tensor:
    """rmsnorm(x) * gamma, rounded to the dtype of x; float32. width: of the mean, if x is padded."""
    wide = x.float()
    squares = wide.square().sum(-1, keepdim=True) / (width or x.shape[1])
    return (wide * torch.rsqrt(squares + eps) * gamma.float()).to(x.dtype).float()


def _wide(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float()


def _local(weights: Tensor, count: int, rank_id: Tensor | None) -> Tensor:
    """The columns of this rank's experts."""
    if count == weights.shape[1]:
        return weights
    checks.required(NAME, "where a rank has some of the experts", rank_id=rank_id)
    assert rank_id is not None
    first = rank_id.view(()).long() * count
    return weights.index_select(1, first + torch.arange(count, device=weights.device))


@nf_function(weights=())
def moe_block_tkg(
    inp: Tensor,
    gamma: Tensor,
    router_weights: Tensor,
    expert_gate_up_weights: Tensor,
    expert_down_weights: Tensor,
    rank_id: Tensor | None = None,
    top_k: int = 1,
    shared_expert_gate_w: Tensor | None = None,
    shared_expert_up_w: Tensor | None = None,
    shared_expert_down_w: Tensor | None = None,
    expert_gate_up_weights_scale: Tensor | None = None,
    expert_down_weights_scale: Tensor | None = None,
    router_bias: Tensor | None = None,
    expert_gate_up_bias: Tensor | None = None,
    expert_down_bias: Tensor | None = None,
    shared_expert_gate_bias: Tensor | None = None,
    shared_expert_up_bias: Tensor | None = None,
    shared_expert_down_bias: Tensor | None = None,
    eps: float = 1e-6,
    router_act_fn: RouterActFnType = RouterActFnType.SIGMOID,
    router_pre_norm: bool = True,
    norm_topk_prob: bool = False,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.NO_SCALE,
    hidden_act_fn: ActFnType = ActFnType.SiLU,
    hidden_act_scale_factor: Tensor | None = None,
    hidden_act_bias: Tensor | None = None,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    router_mm_dtype: Any = NL_BFLOAT16,
    hidden_actual: int | None = None,
    skip_router_logits: bool = False,
    is_all_expert: bool = False,
    residual: Tensor | None = None,
    expert_gate_up_input_scale: Tensor | None = None,
    expert_down_input_scale: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """A whole mixture block with the norm before it. Source: the contract, `moe_block_tkg`.

    n = rmsnorm(inp) * gamma in the dtype of inp; logits = n @ W_r + b in float32; the score of all experts
    and then top-k, or (router_pre_norm False) of the chosen ones only; renormalized if asked; then the
    weighted sum of the experts, in float32.

    Args:
        inp: [B, S, H] or [T, H], before the norm. gamma: [1, H]. router_weights: [H, E]. router_bias: [1, E].
        expert_gate_up_weights: [E_local, H, 2, I]. expert_down_weights: [E_local, I, H].
        expert_gate_up_bias: [E_local, 2, I]. expert_down_bias: [E_local, H].
        rank_id: int [1, 1]; the local experts are E_local * rank_id and those after it.
        expert_affinities_scaling_mode: NO_SCALE gives each chosen expert 1; any other, its weight.

    Returns:
        [T, H]; without `skip_router_logits` also the logits [T, E].

    Raises:
        ValueError: a wrong shape. NotImplementedError: shared experts, scales, a residual, factor or bias of
        the activation, GELU_Tanh_Approx.
    """
    checks.refuse(
        NAME, "as in the plugin's torch path", shared_expert_gate_w=shared_expert_gate_w,
        shared_expert_up_w=shared_expert_up_w, shared_expert_down_w=shared_expert_down_w,
        shared_expert_gate_bias=shared_expert_gate_bias, shared_expert_up_bias=shared_expert_up_bias,
        shared_expert_down_bias=shared_expert_down_bias,
        expert_gate_up_weights_scale=expert_gate_up_weights_scale,
        expert_down_weights_scale=expert_down_weights_scale,
        expert_gate_up_input_scale=expert_gate_up_input_scale,
        expert_down_input_scale=expert_down_input_scale, residual=residual,
        hidden_act_scale_factor=hidden_act_scale_factor, hidden_act_bias=hidden_act_bias,
    )  # fmt: skip
    if inp.dim() not in (2, 3):
        raise ValueError(f"NF.{NAME}: inp must be [B, S, H] or [T, H], got {tuple(inp.shape)}")
    checks.member(NAME, "router_act_fn", router_act_fn, RouterActFnType)
    mode = expert_affinities_scaling_mode
    checks.member(NAME, "expert_affinities_scaling_mode", mode, ExpertAffinityScaleMode)
    x = inp.reshape(-1, inp.shape[-1])
    local = expert_gate_up_weights.shape[0]
    _check_router(x, gamma, router_weights, router_bias, top_k, local)
    check_experts(
        NAME, x, expert_gate_up_weights, expert_down_weights, expert_gate_up_bias, hidden_act_fn
    )
    check_bias(NAME, "expert_down_bias", expert_down_bias, (local, x.shape[1]))
    n = _normed(x, gamma, eps, hidden_actual)
    logits = n @ router_weights.float()
    if router_bias is not None:
        logits = logits + router_bias.float()
    weights = _weights(logits, top_k, router_act_fn, router_pre_norm, norm_topk_prob, mode)
    between = Between(
        hidden_act_fn, gate_clamp_lower_limit, gate_clamp_upper_limit, up_clamp_lower_limit,
        up_clamp_upper_limit,
    )  # fmt: skip
    total = experts_sum(
        n,
        _local(weights, local, rank_id),
        expert_gate_up_weights.float(),
        expert_down_weights.float(),
        _wide(expert_gate_up_bias),
        _wide(expert_down_bias),
        between,
    )
    out = total.to(inp.dtype)
    return out if skip_router_logits else (out, logits.to(inp.dtype))
