"""NF.build_blockwise_mapping and NF.moe_cte: experts over packed blocks of tokens (prefill).

The torch formula of `moe_cte` is dense and does not read the mapping. The double also checks that
the mapping covers every chosen expert, since the kernel computes nothing else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double.args import Args
from tests.neuron.double.log import KERNEL
from tests.neuron.double.moe_route import mapping_blocks
from tests.neuron.double.op import Function, Made, build

CLAMPS = ("gate_clamp_lower_limit", "gate_clamp_upper_limit")
UP_CLAMPS = ("up_clamp_lower_limit", "up_clamp_upper_limit")
SWISH = 1.702


def _sizes(a: Args) -> tuple[int, int, int]:
    """Tokens, local experts, blocks of a mapping."""
    tokens, experts = a.expert_affinities.shape
    return tokens, experts, mapping_blocks(tokens, experts, a.num_experts_per_token, a.block_size)


def _check_mapping(a: Args) -> str:
    a.shape("expert_affinities", -1, a.num_local_experts)
    tokens, experts, _ = _sizes(a)
    a.shape("padding_mask", tokens, optional=True)
    a.dtype("padding_mask", torch.bool)
    a.need(a.num_experts_per_token >= 1, "num_experts_per_token must be positive")
    if a.tp_degree > 1 and experts % a.tp_degree == 0:
        a.need(isinstance(a.rank, Tensor), "rank must be a tensor with tp_degree > 1")
    if tokens < 16:
        return "raises: division by zero on the device for T < 16"
    chunk = min(tokens, 16384)
    f = min(128, tokens // 16)
    rules = (
        (experts % 2 != 0, f"E = {experts} is odd"),
        (tokens % chunk != 0 or chunk % 128 != 0, f"T = {tokens} is no multiple of 128"),
        (tokens % f != 0 or (tokens // f) % 16 != 0, f"T = {tokens} does not tile"),
    )
    return next((f"torch: {why}" for broken, why in rules if broken), KERNEL)


def _mapping(a: Args) -> list[Tensor]:
    _tokens, experts, blocks = _sizes(a)
    chosen = a.expert_affinities != 0
    a.need(
        bool((chosen.sum(1) <= a.num_experts_per_token).all()), "a token has more experts than k"
    )
    ids = torch.full((blocks, a.block_size), -1, dtype=torch.int32)
    owner = torch.zeros(blocks, dtype=torch.int32)
    used = torch.zeros(blocks, dtype=torch.int32)
    block = 0
    for expert in range(experts):
        mine = chosen[:, expert].nonzero()[:, 0].int()
        for part in mine.split(a.block_size) if len(mine) else ():
            ids[block, : len(part)] = part
            owner[block], used[block] = expert, 1
            block += 1
    kept = a.expert_affinities
    if a.padding_mask is not None:
        kept = torch.where(a.padding_mask[:, None], kept, torch.zeros_like(kept))
    return [kept.reshape(-1, 1), ids.flatten(), owner, used]


def _mapping_shapes(a: Args) -> Made:
    tokens, experts, blocks = _sizes(a)
    return [
        ((tokens * experts, 1), a.expert_affinities.dtype),
        ((blocks * a.block_size,), torch.int32),
        ((blocks,), torch.int32),
        ((blocks,), torch.int32),
    ]


def _tuple(args: dict[str, Any], outputs: list[Tensor]) -> Any:
    return tuple(outputs)


def _check_cte(a: Args) -> str:
    a.shape("gate_up_proj_weight", -1, -1, 2, -1)
    experts, width, _, inner = a.gate_up_proj_weight.shape
    a.shape("down_proj_weight", experts, inner, width)
    a.need(a.expert_affinities_masked.shape[0] % experts == 0, "affinities must be [T * E, 1]")
    tokens = a.expert_affinities_masked.shape[0] // experts
    a.shape("expert_affinities_masked", tokens * experts, 1)
    a.need(a.hidden_states.shape[0] in (tokens, tokens + 1), "hidden_states must be [T or T+1, H]")
    a.shape("hidden_states", -1, width)
    a.need(
        a.skip_token or a.hidden_states.shape[0] == tokens + 1,
        "padding is index T without skip_token: hidden_states needs T + 1 rows",
    )
    a.same_dtype("hidden_states", "gate_up_proj_weight", "down_proj_weight")
    a.shape("gate_and_up_proj_bias", experts, 2, inner, optional=True)
    a.shape("down_proj_bias", experts, 1, width, optional=True)
    a.shape("block_to_expert", -1)
    a.shape("token_position_to_id", a.block_to_expert.shape[0] * a.block_size)
    for name in ("block_to_expert", "token_position_to_id"):
        a.dtype(name, torch.int32)
    a.need(a.quantization_type.name == "NONE", "RuntimeError on a CPU: MX variants")
    a.need(
        not a.implementation.name.endswith(("mx", "hybrid", "dropping"))
        or a.conditions is not None,
        f"{a.implementation.name} needs conditions",
    )
    a.need(a.activation_function.name != "GELU_Tanh_Approx", "ValueError: GELU_Tanh_Approx")
    if a.expert_affinities_scaling_mode.name == "NO_SCALE":
        a.trap("NO_SCALE sums all experts unweighted in the torch formula")
    rules = (
        (inner < 128, f"I = {inner} < 128"),
        (inner % 16 != 0, f"I = {inner} is no multiple of 16"),
        (a.block_size % 128 != 0, f"block_size {a.block_size} is no multiple of 128"),
        (len(a.given(["gate_and_up_proj_bias", "down_proj_bias"])) == 1, "one bias of two"),
    )
    return next((f"torch: {why}" for broken, why in rules if broken), KERNEL)


def clamped(a: Args, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Gate and up after their clamps, where given."""
    made = []
    for x, names in ((gate, CLAMPS), (up, UP_CLAMPS)):
        low, high = (a.values[name] for name in names)
        made.append(x if low is None and high is None else x.clamp(low, high))
    return made[0], made[1]


def _covered(a: Args, affinities: Tensor) -> None:
    """Every chosen (token, expert) is in the mapping."""
    tokens, experts = affinities.shape
    ids = a.token_position_to_id.view(-1, a.block_size)
    there = torch.zeros(tokens + 1, experts, dtype=torch.bool)
    for row, expert in zip(ids, a.block_to_expert.tolist(), strict=True):
        a.need(a.skip_token or bool((row >= 0).all()), "slots of -1 need skip_token")
        there[row[row >= 0].long(), expert] = True
    a.need(bool(there[:tokens][affinities != 0].all()), "the mapping leaves out a chosen expert")


def _cte(a: Args) -> list[Tensor]:
    experts = a.gate_up_proj_weight.shape[0]
    affinities = F.up(a.expert_affinities_masked).view(-1, experts)
    _covered(a, affinities)
    x = F.up(a.hidden_states)[: affinities.shape[0]]
    mode = a.expert_affinities_scaling_mode.name
    total = torch.zeros_like(x)
    for expert in range(experts):
        share = affinities[:, expert : expert + 1]
        given = x * share if mode == "PRE_SCALE" else x
        gate_w, up_w = F.up(a.gate_up_proj_weight[expert]).unbind(1)
        gate, up = given @ gate_w, given @ up_w
        if a.gate_and_up_proj_bias is not None:
            gate_b, up_b = F.up(a.gate_and_up_proj_bias[expert])
            gate, up = gate + gate_b, up + up_b
        gate, up = clamped(a, gate, up)
        inner = up * F.activate(gate, a.activation_function, swish_scale=SWISH)
        if mode == "PRE_SCALE_DELAYED":
            inner = inner * share
        y = inner @ F.up(a.down_proj_weight[expert])
        if a.down_proj_bias is not None:
            y = y + F.up(a.down_proj_bias[expert])
        total = total + (y * share if mode == "POST_SCALE" else y)
    return [total.to(a.hidden_states.dtype)]


def _cte_shapes(a: Args) -> Made:
    tokens = a.expert_affinities_masked.shape[0] // a.gate_up_proj_weight.shape[0]
    return [((tokens, a.hidden_states.shape[1]), a.hidden_states.dtype)]


build_blockwise_mapping = build(
    Function("build_blockwise_mapping", _check_mapping, _mapping_shapes, _mapping, _tuple)
)
moe_cte = build(Function("moe_cte", _check_cte, _cte_shapes, _cte))
