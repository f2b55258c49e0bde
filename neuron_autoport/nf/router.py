"""NF.router: norm, linear map, top-k and score function: from hidden states to expert affinities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.dispatch import nf_function
from neuron_autoport.nf.enums import RouterComputationOrder

NAME = "router"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: torch.softmax(x, -1), "sigmoid": torch.sigmoid,
}  # fmt: skip


def _check(
    hidden: Tensor, weights: Tensor, top_k: int, bias: Tensor | None, gamma: Tensor | None
) -> None:
    if hidden.dim() != 2 or weights.dim() != 2 or weights.shape[0] != hidden.shape[1]:
        raise ValueError(
            f"NF.{NAME}: hidden_states must be [T, H] and router_weights [H, E], got "
            f"{tuple(hidden.shape)} and {tuple(weights.shape)}; transpose a torch.nn.Linear weight"
        )
    experts = weights.shape[1]
    for name, value, size in (("router_bias", bias, experts), ("gamma", gamma, hidden.shape[1])):
        if value is not None and tuple(value.shape) != (size,):
            raise ValueError(f"NF.{NAME}: {name} must be [{size}], got {tuple(value.shape)}")
    if not 1 <= top_k <= experts:
        raise ValueError(f"NF.{NAME}: top_k is {top_k} of {experts} experts")


@nf_function(weights=())
def router(
    hidden_states: Tensor,
    router_weights: Tensor,
    top_k: int,
    router_bias: Tensor | None = None,
    activation: Any = "softmax",
    return_logits: bool = False,
    gamma: Tensor | None = None,
    eps: float = 1e-6,
    computation_dtype: torch.dtype = torch.float32,
    router_computation_order: RouterComputationOrder = (
        RouterComputationOrder.PRENORM_LINEAR_TOPK_ACT_SCATTER
    ),
    shard_on_tokens: bool | None = None,
    transposed_hidden_states: bool = False,
    x_sb_layout: Any = None,
    use_column_tiling: bool | None = None,
    use_indirect_dma_scatter: bool | None = None,
    use_PE_broadcast_w_bias: bool | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Affinities of each token to each expert, zero for those not chosen. Source: the contract, `router`.

    l = rmsnorm(x) @ W + b in computation_dtype; then, by the order, act over the k largest of l; or act over
    all, the k largest of those divided by their sum; or act over l with -inf for what is not chosen.

    Args:
        hidden_states: [T, H]. router_weights: [H, E]. router_bias: [E]. gamma: [H], of the norm; None: no
        norm. activation: "softmax", "sigmoid", or a function of logits along the last axis.

    Returns:
        [T, E] in computation_dtype; with `return_logits` also the logits [T, E].

    Raises:
        ValueError: a wrong shape, score function or dtype, top_k outside 1 to E.
        NotImplementedError: arguments of the kernel alone.
    """
    checks.refuse(
        NAME, "it is an argument of the kernel alone", shard_on_tokens=shard_on_tokens,
        transposed_hidden_states=transposed_hidden_states, x_sb_layout=x_sb_layout,
        use_column_tiling=use_column_tiling, use_indirect_dma_scatter=use_indirect_dma_scatter,
        use_PE_broadcast_w_bias=use_PE_broadcast_w_bias,
    )  # fmt: skip
    order = router_computation_order
    checks.member(NAME, "router_computation_order", order, RouterComputationOrder)
    _check(hidden_states, router_weights, top_k, router_bias, gamma)
    score = activation if callable(activation) else _SCORES.get(activation)
    if score is None:
        raise ValueError(
            f"NF.{NAME}: activation is {activation!r}, not one of {', '.join(_SCORES)}"
        )
    if computation_dtype not in _DTYPES:
        raise ValueError(f"NF.{NAME}: computation_dtype is {computation_dtype}")
    x = hidden_states.to(computation_dtype)
    if gamma is not None:
        wide = x.float()
        root = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        x = (wide * root * gamma.float()).to(computation_dtype)
    logits = x @ router_weights.to(computation_dtype)
    if router_bias is not None:
        logits = logits + router_bias.to(computation_dtype)
    affinities = _affinities(logits, top_k, score, order)
    return (affinities, logits) if return_logits else affinities


def _affinities(
    logits: Tensor, top_k: int, score: Callable[[Tensor], Tensor], order: RouterComputationOrder
) -> Tensor:
    none = torch.zeros_like(logits)
    if order == RouterComputationOrder.PRENORM_LINEAR_ACT_TOPK_RENORM_SCATTER:
        chosen, at = score(logits).topk(top_k, -1)
        return none.scatter(1, at, chosen / chosen.sum(-1, keepdim=True))
    chosen, at = logits.topk(top_k, -1)
    if order == RouterComputationOrder.PRENORM_LINEAR_TOPK_ACT_SCATTER:
        return none.scatter(1, at, score(chosen))
    return score((none - float("inf")).scatter(1, at, chosen))
