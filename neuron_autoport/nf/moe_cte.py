"""NF.moe_cte: expert MLPs over blocks of tokens, weighted and summed, for prefill."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.dispatch import nf_function
from neuron_autoport.nf.enums import (
    NL_BFLOAT16,
    ActFnType,
    BlockShardStrategy,
    ExpertAffinityScaleMode,
    MoECTEImplementation,
    QuantizationType,
)
from neuron_autoport.nf.experts import Between, check_bias, check_experts, experts_sum

NAME = "moe_cte"
_MODES = ExpertAffinityScaleMode


def _check_blocks(ids: Tensor, owner: Tensor, block_size: int, rows: int, skip: bool) -> None:
    if owner.dim() != 1 or tuple(ids.shape) != (owner.shape[0] * block_size,):
        raise ValueError(
            f"NF.{NAME}: token_position_to_id must be [N * {block_size}] for block_to_expert [N], got "
            f"{tuple(ids.shape)} and {tuple(owner.shape)}"
        )
    for name, value in (("token_position_to_id", ids), ("block_to_expert", owner)):
        if value.dtype != torch.int32:
            raise ValueError(f"NF.{NAME}: {name} must be int32, is {value.dtype}")
    if not skip and rows == 0:
        raise ValueError(
            f"NF.{NAME}: without skip_token padding is index T: hidden_states needs a row more"
        )


def _tokens(rows: Tensor, affinities: Tensor, experts: int) -> int:
    """T, by the affinities [T * experts, 1]: rows may have one more, for padding."""
    tokens, odd = divmod(affinities.shape[0], experts)
    if odd or affinities.dim() != 2 or rows.shape[0] - tokens not in (0, 1):
        raise ValueError(
            f"NF.{NAME}: expert_affinities_masked must be [T * {experts}, 1], got "
            f"{tuple(affinities.shape)} for {rows.shape[0]} rows"
        )
    return tokens


@nf_function(weights=())
def moe_cte(
    hidden_states: Tensor,
    expert_affinities_masked: Tensor,
    gate_up_proj_weight: Tensor,
    down_proj_weight: Tensor,
    token_position_to_id: Tensor,
    block_to_expert: Tensor,
    block_size: int,
    implementation: MoECTEImplementation,
    n_block_per_iter: int = 1,
    block_sharding_strategy: BlockShardStrategy = BlockShardStrategy.PING_PONG,
    n_static_blocks: int = -1,
    n_dynamic_blocks: int = -1,
    top_k: int = 1,
    ep_degree: int = 1,
    checkpoint_activation: bool = False,
    expert_affinity_multiply_on_I: bool = False,
    num_static_block: int | None = None,
    conditions: Tensor | None = None,
    gate_and_up_proj_bias: Tensor | None = None,
    down_proj_bias: Tensor | None = None,
    gate_up_proj_scale: Tensor | None = None,
    down_proj_scale: Tensor | None = None,
    gate_up_activations_T: Tensor | None = None,
    down_activations: Tensor | None = None,
    activation_function: ActFnType = ActFnType.SiLU,
    skip_token: bool = False,
    skip_weight: bool = False,
    compute_dtype: Any = NL_BFLOAT16,
    is_tensor_update_accumulating: bool = True,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.POST_SCALE,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    quantization_type: QuantizationType = QuantizationType.NONE,
    gate_w_scale: Tensor | None = None,
    up_w_scale: Tensor | None = None,
    down_w_scale: Tensor | None = None,
    gate_up_in_scale: Tensor | None = None,
    down_in_scale: Tensor | None = None,
    use_packed_scales: bool = False,
) -> Tensor:
    """Sum over experts of affinity * expert(x), [T, H]. Source: the contract, `moe_cte`.

    The reference runs every expert on every token, as the plugin's torch path; the mapping says only to the
    kernel which tokens it may leave out.

    Args:
        hidden_states: [T, H], or [T + 1, H] with a row for padding. expert_affinities_masked: [T * E, 1].
        gate_up_proj_weight: [E, H, 2, I], gate first. down_proj_weight: [E, I, H].
        token_position_to_id, block_to_expert, conditions: from `build_blockwise_mapping`.
        gate_and_up_proj_bias: [E, 2, I]. down_proj_bias: [E, 1, H].
        skip_token: places of -1 are none; else padding is index T.
        expert_affinities_scaling_mode: where the affinity is multiplied. NO_SCALE is refused: it would sum
        all experts.

    Raises:
        ValueError: a wrong shape. NotImplementedError: scales, quantization, what is kept for training,
        GELU_Tanh_Approx, NO_SCALE.
    """
    checks.member(NAME, "implementation", implementation, MoECTEImplementation)
    checks.member(NAME, "block_sharding_strategy", block_sharding_strategy, BlockShardStrategy)
    checks.member(NAME, "expert_affinities_scaling_mode", expert_affinities_scaling_mode, _MODES)
    checks.member(NAME, "quantization_type", quantization_type, QuantizationType)
    checks.refuse(
        NAME, "it computes unquantized", gate_up_proj_scale=gate_up_proj_scale,
        down_proj_scale=down_proj_scale, gate_w_scale=gate_w_scale, up_w_scale=up_w_scale,
        down_w_scale=down_w_scale, gate_up_in_scale=gate_up_in_scale, down_in_scale=down_in_scale,
        quantization_type=quantization_type != QuantizationType.NONE, use_packed_scales=use_packed_scales,
        implementation=implementation.name.endswith(("_mx", "_mx_hybrid")),
    )  # fmt: skip
    checks.refuse(
        NAME, "it keeps nothing for training", checkpoint_activation=checkpoint_activation,
        gate_up_activations_T=gate_up_activations_T, down_activations=down_activations,
    )  # fmt: skip
    no_scale = expert_affinities_scaling_mode == ExpertAffinityScaleMode.NO_SCALE
    checks.refuse(NAME, "NO_SCALE sums all experts", expert_affinities_scaling_mode=no_scale)
    if implementation.name.endswith(("hybrid", "dropping")):
        checks.required(NAME, f"for {implementation.name}", conditions=conditions)
    check_experts(
        NAME, hidden_states, gate_up_proj_weight, down_proj_weight, gate_and_up_proj_bias,
        activation_function,
    )  # fmt: skip
    experts, width = gate_up_proj_weight.shape[0], hidden_states.shape[1]
    tokens = _tokens(hidden_states, expert_affinities_masked, experts)
    more = hidden_states.shape[0] - tokens
    check_bias(NAME, "down_proj_bias", down_proj_bias, (experts, 1, width))
    _check_blocks(token_position_to_id, block_to_expert, block_size, more, skip_token)
    between = Between(
        activation_function, gate_clamp_lower_limit, gate_clamp_upper_limit, up_clamp_lower_limit,
        up_clamp_upper_limit,
    )  # fmt: skip
    total = experts_sum(
        hidden_states[:tokens],
        expert_affinities_masked.view(tokens, experts),
        gate_up_proj_weight,
        down_proj_weight,
        gate_and_up_proj_bias,
        None if down_proj_bias is None else down_proj_bias[:, 0],
        between,
        expert_affinities_scaling_mode,
    )
    return total.to(hidden_states.dtype)
