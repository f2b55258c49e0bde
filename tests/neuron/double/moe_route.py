"""NF.router and NF.rmsnorm_router_topk_tkg: from hidden states to expert affinities."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double.args import Args
from tests.neuron.double.op import Function, Made, build

ACTIVATIONS = ("softmax", "sigmoid")
COMPUTATION = (torch.float32, torch.float16, torch.bfloat16)


def activated(logits: Tensor, kind: str) -> Tensor:
    """Softmax or sigmoid over the last dim; -inf gives 0."""
    return F.softmax(logits) if kind == "softmax" else 1 / (1 + (-logits).exp())


def top(logits: Tensor, k: int) -> Tensor:
    """Indices [T, k] of the largest, the lower index first among equals."""
    return logits.argsort(stable=True, dim=-1, descending=True)[:, :k]


def scattered(values: Tensor, at: Tensor, width: int) -> Tensor:
    """Values [T, k] at columns `at` of a zero matrix [T, width]."""
    return torch.zeros(values.shape[0], width, dtype=values.dtype).scatter(1, at, values)


def _check(a: Args) -> str:
    a.shape("hidden_states", -1, -1)
    a.shape("router_weights", a.hidden_states.shape[1], -1)
    experts = a.router_weights.shape[1]
    a.shape("router_bias", experts, optional=True)
    a.shape("gamma", a.hidden_states.shape[1], optional=True)
    a.need(1 <= a.top_k <= experts, f"ValueError: top_k = {a.top_k} of {experts} experts")
    a.need(a.activation in ACTIVATIONS, f"activation must be one of {ACTIVATIONS} in the double")
    a.need(a.computation_dtype in COMPUTATION, "ValueError: computation_dtype")
    a.need(not a.transposed_hidden_states, "transposed_hidden_states is for the kernel alone")
    return "torch: the router kernel is switched off in this release"


def _router(a: Args) -> list[Tensor]:
    dtype = a.computation_dtype
    x = F.rounded(a.hidden_states, dtype)
    if a.gamma is not None:
        x = F.rounded(F.rms(x, a.eps, a.gamma), dtype)
    logits = x @ F.rounded(a.router_weights, dtype)
    if a.router_bias is not None:
        logits = logits + F.up(a.router_bias)
    experts = logits.shape[1]
    order = a.router_computation_order.name
    if order == "PRENORM_LINEAR_ACT_TOPK_RENORM_SCATTER":
        weights = activated(logits, a.activation)
        at = top(weights, a.top_k)
        chosen = weights.gather(1, at)
        chosen = chosen / chosen.sum(1, keepdim=True)
    else:
        at = top(logits, a.top_k)
        chosen = activated(logits.gather(1, at), a.activation)
    affinities = scattered(chosen, at, experts).to(dtype)
    return [affinities, logits.to(dtype)] if a.return_logits else [affinities]


def _router_shapes(a: Args) -> Made:
    made = ((a.hidden_states.shape[0], a.router_weights.shape[1]), a.computation_dtype)
    return [made, made] if a.return_logits else [made]


def _router_result(args: dict[str, Any], outputs: list[Tensor]) -> Any:
    return (outputs[0], outputs[1]) if args["return_logits"] else outputs[0]


def _check_tkg(a: Args) -> str:
    a.need(a.hidden_states.dim() == 3, "AssertionError: hidden_states must be [B, S, H]")
    batch, length, width = a.hidden_states.shape
    a.need(width % 256 == 0, f"AssertionError: H = {width} is no multiple of 256")
    a.need(a.gamma.numel() == width, f"gamma must be [{width}] or [1, {width}]")
    a.shape("router_weights", width, -1)
    experts = a.router_weights.shape[1]
    a.shape("router_bias", 1, experts, optional=True)
    a.need(a.quantization_type.name == "NONE", "MX output is not in the double")
    if experts > 512:
        return f"torch: E = {experts} > 512"
    tokens = batch * length
    return "kernel" if tokens % 256 == 0 else f"torch: T = {tokens} is no multiple of 256"


def _tkg(a: Args) -> list[Tensor]:
    x = F.rms(F.up(a.hidden_states).flatten(0, 1), a.eps, a.gamma, a.hidden_actual)
    norm = x.to(a.router_mm_dtype)
    logits = F.up(norm) @ F.rounded(a.router_weights, a.router_mm_dtype)
    if a.router_bias is not None:
        logits = logits + F.up(a.router_bias)
    at = top(logits, a.top_k)
    chosen = activated(logits.gather(1, at), a.router_act_fn.name.lower())
    return [norm, at.int(), scattered(chosen, at, logits.shape[1]).bfloat16()]


def _tkg_shapes(a: Args) -> Made:
    batch, length, width = a.hidden_states.shape
    tokens = batch * length
    return [
        ((tokens, width), a.router_mm_dtype),
        ((tokens, a.top_k), torch.int32),
        ((tokens, a.router_weights.shape[1]), torch.bfloat16),
    ]


def _tuple(args: dict[str, Any], outputs: list[Tensor]) -> Any:
    return tuple(outputs)


def mapping_blocks(tokens: int, experts: int, k: int, block_size: int) -> int:
    """N, the number of blocks of `build_blockwise_mapping`."""
    most = tokens * min(k, experts)
    return min(math.ceil((most - (experts - 1)) / block_size) + experts - 1, most)


router = build(Function("router", _check, _router_shapes, _router, _router_result))
rmsnorm_router_topk_tkg = build(
    Function("rmsnorm_router_topk_tkg", _check_tkg, _tkg_shapes, _tkg, _tuple)
)
