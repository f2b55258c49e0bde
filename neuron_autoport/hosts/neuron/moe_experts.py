"""The experts of a rank in NF's layout: `NF.build_blockwise_mapping` and `NF.moe_cte` in prefill, torch elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neuron_autoport import nf as NF
from neuron_autoport.hosts.neuron.call import Call
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.moe_sizes import BLOCK, MoESizes, prefill_limit
from neuron_autoport.hosts.neuron.sequence import gathered, summed
from neuron_autoport.nf.experts import Between, experts_sum

EXPERTS_STATE = "neuron_experts"
_POST = NF.ExpertAffinityScaleMode.POST_SCALE


@dataclass(frozen=True, eq=False)
class ExpertsState:
    """What the experts module of one block is on this rank. top_k: of the `experts` of all ranks.

    ranks: that share the experts. by_expert: each has some of them, not a part of each. any_size: the sizes that
    kernels take do not matter.
    """

    top_k: int
    experts: int
    sizes: MoESizes
    between: Between
    call: Call
    by_expert: bool
    ranks: Ranks
    any_size: bool

    def of_all(self, *values: Tensor) -> tuple[Tensor, ...]:
        """[T, ...] of all tokens where this rank has some and shares the experts."""
        if not self.call.own_tokens or self.ranks.size == 1:
            return values
        found: tuple[Tensor, ...] = gathered(values, self.call, self.ranks)
        return found

    def summed(self, x: Tensor) -> Tensor:
        """The sum of the ranks' parts, of this rank's tokens."""
        found: Tensor = summed(x, self.call, self.ranks) if self.ranks.size > 1 else x
        return found


def run_experts(module: Any, x: Tensor, affinities: Tensor) -> Tensor:
    """sum over this rank's experts of affinity * expert(x), [T, H].

    Args:
        module: the experts module. x: [T, H]. affinities: [T, E] of all experts, zero where not chosen.
    """
    state: ExpertsState = getattr(module, EXPERTS_STATE)
    if state.by_expert:
        count = state.sizes.experts
        assert state.call.rank is not None
        first = state.call.rank.long() * count
        local = first + torch.arange(count, device=x.device)
        affinities = NF.get_local_expert_affinities(affinities, local)
    between = state.between
    bias, down_bias = module.nf_gate_up_bias, module.nf_down_bias
    limit = prefill_limit(state.sizes, x.shape[0])
    if state.call.decode or (limit is not None and not state.any_size):
        every = experts_sum(
            x, affinities, module.nf_gate_up, module.nf_down, bias, down_bias, between
        )
        return every.to(x.dtype)
    flat, ids, owner, used = NF.build_blockwise_mapping(
        affinities, state.sizes.experts, state.top_k, BLOCK, state.ranks.device_group
    )
    return NF.moe_cte(
        x,
        flat,
        module.nf_gate_up,
        module.nf_down,
        ids,
        owner,
        BLOCK,
        NF.MoECTEImplementation.shard_on_block,
        conditions=used,
        gate_and_up_proj_bias=bias,
        down_proj_bias=None if down_bias is None else down_bias[:, None],
        activation_function=between.activation,
        skip_token=True,
        expert_affinities_scaling_mode=_POST,
        gate_clamp_upper_limit=between.gate_high,
        up_clamp_upper_limit=between.up_high,
        up_clamp_lower_limit=between.up_low,
    )


def affinities_of(indices: Tensor, weights: Tensor, experts: int) -> Tensor:
    """[T, E] of the K chosen experts of each token; an index that is no expert's chooses none."""
    valid = (indices >= 0) & (indices < experts)
    at = torch.where(valid, indices, torch.full_like(indices, experts)).long()
    none = weights.new_zeros(weights.shape[0], experts + 1)
    return none.scatter_add(1, at, weights)[:, :experts]
