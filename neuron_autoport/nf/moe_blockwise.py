"""NF.build_blockwise_mapping: which tokens each block of a blockwise expert kernel holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.dispatch import nf_function

NAME = "build_blockwise_mapping"


def blocks_of(tokens: int, experts: int, top_k: int, block_size: int) -> int:
    """N: enough blocks for every way to choose, each block for one expert."""
    most = tokens * min(top_k, experts)
    return min(-(-(most - (experts - 1)) // block_size) + experts - 1, most)


@nf_function(weights=())
def build_blockwise_mapping(
    expert_affinities: Tensor,
    num_local_experts: int,
    num_experts_per_token: int,
    block_size: int,
    moe_group: Any,
    tp_degree: int = 1,
    padding_mask: Tensor | None = None,
    rank: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pack the tokens of each expert into blocks of one size. Source: the contract, `moe_blockwise`.

    Args:
        expert_affinities: [T, E_local]; a token chose an expert where it is not 0.
        moe_group: ranks that share the work where `tp_degree` is not 1; not looked at here.
        padding_mask: bool [T], True for real tokens. Others get no affinity but keep their places.

    Returns:
        affinities [T * E_local, 1]; int32 [N * block_size], the token at each place, -1 for none; int32
        [N], the expert of each block; int32 [N], 1 for blocks that hold anything.

    Raises:
        ValueError: a wrong shape. NotImplementedError: the mapping made in parts by several ranks.
    """
    if expert_affinities.dim() != 2 or expert_affinities.shape[1] != num_local_experts:
        raise ValueError(
            f"NF.{NAME}: expert_affinities must be [T, {num_local_experts}], "
            f"got {tuple(expert_affinities.shape)}"
        )
    tokens, experts = expert_affinities.shape
    if padding_mask is not None and tuple(padding_mask.shape) != (tokens,):
        raise ValueError(
            f"NF.{NAME}: padding_mask must be [{tokens}], got {tuple(padding_mask.shape)}"
        )
    shared = tp_degree > 1 and experts % tp_degree == 0
    checks.refuse(NAME, "it makes the whole mapping on each rank", tp_degree=shared)
    ids, owner, used = _packed(
        expert_affinities != 0,
        blocks_of(tokens, experts, num_experts_per_token, block_size),
        block_size,
    )
    kept = expert_affinities
    if padding_mask is not None:
        kept = torch.where(padding_mask[:, None], kept, torch.zeros_like(kept))
    return kept.reshape(-1, 1), ids, owner, used


def _packed(chosen: Tensor, blocks: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(token at each place, expert of each block, is the block used) for chosen [T, E]."""
    tokens = chosen.shape[0]
    needed = (chosen.sum(0) + size - 1) // size  # blocks of each expert
    last = needed.cumsum(0)
    first = last - needed
    place = first * size + chosen.cumsum(0) - 1  # [T, E], where chosen
    place = torch.where(chosen, place, torch.full_like(place, blocks * size))
    token = torch.arange(tokens, device=chosen.device, dtype=torch.int32)[:, None].expand(
        place.shape
    )
    ids = torch.full((blocks * size + 1,), -1, dtype=torch.int32, device=chosen.device)
    ids = ids.scatter(0, place.flatten(), token.flatten())[:-1]
    block = torch.arange(blocks, device=chosen.device)
    used = block < last[-1]
    owner = (block[:, None] >= last[None]).sum(1)
    owner = torch.where(used, owner, torch.zeros_like(owner))
    return ids, owner.int(), used.int()
