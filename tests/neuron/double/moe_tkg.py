"""NF.moe_block_tkg: norm, router and experts of a decode step; and the all-to-all helpers.

`moe_tkg` has no torch formula in the plugin and raises on a CPU; so does the double.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double.args import Args
from tests.neuron.double.contract import FUNCTIONS
from tests.neuron.double.log import KERNEL
from tests.neuron.double.moe_blockwise import SWISH, clamped
from tests.neuron.double.moe_route import activated, scattered, top
from tests.neuron.double.op import Function, Made, build, front

REFUSED = (
    "shared_expert_gate_w",
    "shared_expert_up_w",
    "shared_expert_down_w",
    "shared_expert_gate_bias",
    "shared_expert_up_bias",
    "shared_expert_down_bias",
    "expert_gate_up_weights_scale",
    "expert_down_weights_scale",
    "expert_gate_up_input_scale",
    "expert_down_input_scale",
    "residual",
    "hidden_act_scale_factor",
    "hidden_act_bias",
)


def _check_block(a: Args) -> str:
    a.need(a.inp.dim() in (2, 3), "inp must be [B, S, H] or [T, H]")
    width = a.inp.shape[-1]
    tokens = a.inp.numel() // width
    a.shape("gamma", 1, width)
    a.shape("router_weights", width, -1)
    total = a.router_weights.shape[1]
    a.shape("expert_gate_up_weights", -1, width, 2, -1)
    local, _, _, inner = a.expert_gate_up_weights.shape
    a.shape("expert_down_weights", local, inner, width)
    a.shape("router_bias", 1, total, optional=True)
    a.shape("expert_gate_up_bias", local, 2, inner, optional=True)
    a.shape("expert_down_bias", local, width, optional=True)
    a.need(local <= total and total % local == 0, f"{local} local of {total} experts")
    a.need(1 <= a.top_k <= total, f"top_k = {a.top_k} of {total} experts")
    a.same_dtype("inp", "expert_gate_up_weights", "expert_down_weights")
    if local < total:
        a.shape("rank_id", 1, 1)
        a.dtype("rank_id", torch.int32)
    a.need(not a.given(REFUSED), f"NotImplementedError: {a.given(REFUSED)}")
    a.need(a.hidden_act_fn.name != "GELU_Tanh_Approx", "NotImplementedError: GELU_Tanh_Approx")
    if a.expert_affinities_scaling_mode.name == "NO_SCALE":
        a.trap("NO_SCALE (the default) weighs every chosen expert with 1")
    rules = (
        (width % 256 != 0, f"H = {width} is no multiple of 256"),
        (tokens > 128, f"T = {tokens} > 128"),
        (inner % 128 != 0, f"I = {inner} is no multiple of 128"),
    )
    return next((f"torch: {why}" for broken, why in rules if broken), KERNEL)


def _weights(a: Args, logits: Tensor) -> Tensor:
    """[T, E]: the weight of each expert for each token."""
    kind = a.router_act_fn.name.lower()
    if a.router_pre_norm:
        every = activated(logits, kind)
        at = top(every, a.top_k)
        chosen = every.gather(1, at)
    else:
        at = top(logits, a.top_k)
        chosen = activated(logits.gather(1, at), kind)
    if a.norm_topk_prob:
        chosen = chosen / (chosen.sum(1, keepdim=True) + 1e-20)
    if a.expert_affinities_scaling_mode.name == "NO_SCALE":
        chosen = (chosen > 0).to(chosen.dtype)
    return scattered(chosen, at, logits.shape[1])


def _block(a: Args) -> list[Tensor]:
    dtype = a.inp.dtype
    x = F.up(a.inp).reshape(-1, a.inp.shape[-1])
    x = F.rounded(F.rms(x, a.eps, a.gamma, a.hidden_actual), dtype)
    logits = x @ F.up(a.router_weights)
    if a.router_bias is not None:
        logits = logits + F.up(a.router_bias)
    weights = _weights(a, logits)
    local = a.expert_gate_up_weights.shape[0]
    first = local * int(a.rank_id) if local < weights.shape[1] else 0
    total = torch.zeros_like(x)
    for expert in range(local):
        gate_w, up_w = F.up(a.expert_gate_up_weights[expert]).unbind(1)
        gate, up = x @ gate_w, x @ up_w
        if a.expert_gate_up_bias is not None:
            gate_b, up_b = F.up(a.expert_gate_up_bias[expert])
            gate, up = gate + gate_b, up + up_b
        gate, up = clamped(a, gate, up)
        inner = up * F.activate(gate, a.hidden_act_fn, swish_scale=SWISH)
        y = inner @ F.up(a.expert_down_weights[expert])
        if a.expert_down_bias is not None:
            y = y + F.up(a.expert_down_bias[expert])
        total = total + y * weights[:, first + expert, None]
    made = [total.to(dtype)]
    return made if a.skip_router_logits else [*made, logits.to(dtype)]


def _block_shapes(a: Args) -> Made:
    tokens = a.inp.numel() // a.inp.shape[-1]
    made: Made = [((tokens, a.inp.shape[-1]), a.inp.dtype)]
    if not a.skip_router_logits:
        made.append(((tokens, a.router_weights.shape[1]), a.inp.dtype))
    return made


def _block_result(args: dict[str, Any], outputs: list[Tensor]) -> Any:
    return outputs[0] if args["skip_router_logits"] else (outputs[0], outputs[1])


def _indices(x: Tensor) -> Tensor:
    """The int32 token index in the last two columns of rows [R, H + 2] of a 2-byte dtype."""
    return x[:, -2:].contiguous().view(torch.int32)[:, 0]


def _check_rows(a: Args) -> str:
    a.shape("input", -1, -1)
    a.dtype("input", torch.bfloat16, torch.float16)
    return KERNEL


def _check_reduce(a: Args) -> str:
    text = _check_rows(a)
    rows, width = a.input.shape[0], a.input.shape[1] - 2
    if rows > 128 and rows % 128:
        return f"raises: R = {rows} is above 128 and no multiple of it"
    return text if width % 1024 == 0 else f"raises: H = {width} is no multiple of 1024"


def _reduce(a: Args) -> list[Tensor]:
    a.need(not a.is_sequence_parallel, "is_sequence_parallel needs a rank: not in the double")
    at = _indices(a.input)
    total = torch.zeros(a.T, a.input.shape[1] - 2, dtype=F.up(a.input).dtype)
    for row, index in enumerate(at.tolist()):
        if 1 <= index <= a.T:
            total[index - 1] += F.up(a.input[row, :-2])
    return [total.to(a.input.dtype)]


def _reduce_shapes(a: Args) -> Made:
    return [((a.T, a.input.shape[1] - 2), a.input.dtype)]


def _pack(a: Args) -> list[Tensor]:
    used = _indices(a.input) != 0
    return [torch.cat([a.input[used], a.input[~used]])]


def _pack_shapes(a: Args) -> Made:
    return [(tuple(a.input.shape), a.input.dtype)]


def _no_formula(args: dict[str, Any]) -> Any:
    raise NotImplementedError("NF.moe_tkg has no torch formula: it runs on the device only")


moe_block_tkg = build(Function("moe_block_tkg", _check_block, _block_shapes, _block, _block_result))
moe_tkg = front("moe_tkg", FUNCTIONS["moe_tkg"]["parameters"], _no_formula)
topk_reduce = build(Function("topk_reduce", _check_reduce, _reduce_shapes, _reduce))
pack_tokens = build(Function("pack_tokens", _check_rows, _pack_shapes, _pack))
