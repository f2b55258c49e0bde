"""NF.gen_attention_decode_mask: which cached and new tokens a decode step sees, in the kernel's layout.

Rows of the mask are not in the order of the cache: the kernel reads it in tiles of 128. `row_positions`
gives the order, for this function and for the one that undoes it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.dispatch import nf_function

NAME = "gen_attention_decode_mask"
TILE = 128


def resized_block(block_len: int, batch: int, heads: int, active: int, context: int) -> int:
    """The block length the kernel works with: its greatest divisor of what one core holds in tiles."""
    split_batch = batch % 2 == 0 and (batch * heads * active >= TILE or context <= 256)
    cores = 2 if not split_batch and context >= 256 else 1
    if context % (TILE * cores):
        return block_len
    return math.gcd(block_len, context // (TILE * cores))


def row_positions(
    block_len: int, batch: int, heads: int, active: int, context: int, device: torch.device
) -> Tensor:
    """Cache position that each of the mask's `context` rows stands for, int64 [context].

    pos(i) = (t // b) * 128 * b + p * b + t % b, with tile t = i // 128 and p = i % 128.

    Raises:
        ValueError: a context for which that is not a permutation; 128 and multiples of 256 are.
    """
    block = resized_block(block_len, batch, heads, active, context)
    if context % (TILE * block):
        raise ValueError(
            f"NF.{NAME}: {context} cached positions in blocks of {block_len} have no mask layout; "
            "use 128 or a multiple of 256"
        )
    row = torch.arange(context, device=device)
    tile, place = row // TILE, row % TILE
    return (tile // block) * TILE * block + place * block + tile % block


@nf_function(weights=())
def gen_attention_decode_mask(
    pos_ids: Tensor,
    bs: int,
    q_head: int,
    s_active: int,
    s_prior: int,
    start_pos: Tensor | None = None,
    block_len: int = 0,
    local_filled_slots: Tensor | None = None,
    dcp_active_mask: Tensor | None = None,
) -> Tensor:
    """The mask of `attention_decode`. Source: the plugin's contract, `gen_attention_decode_mask`.

    Args:
        pos_ids: float32 [1, bs * s_active], position of each new token: how many are cached before it.
        s_prior: cached positions of the table, a multiple of 128; its last s_active hold the new tokens.
        start_pos: as pos_ids, first visible position of a window. block_len: the cache's block size.

    Returns:
        float32 [s_prior, bs, q_head, s_active]: 1 where visible, else 0; rows in `row_positions` order.

    Raises:
        ValueError: a wrong shape, or an s_prior without a layout. NotImplementedError: context parallel.
    """
    why = "it masks whole caches"
    checks.refuse(NAME, why, local_filled_slots=local_filled_slots, dcp_active_mask=dcp_active_mask)
    if block_len <= 0:
        raise NotImplementedError(f"NF.{NAME}: block_len is {block_len}; only paged caches")
    if s_prior % TILE:
        raise ValueError(f"NF.{NAME}: s_prior is {s_prior}, no multiple of {TILE}")
    if tuple(pos_ids.shape) != (1, bs * s_active):
        raise ValueError(f"NF.{NAME}: pos_ids must be [1, {bs * s_active}], got {pos_ids.shape}")
    checks.same_shape(NAME, "start_pos", start_pos, pos_ids, "pos_ids")
    place = row_positions(block_len, bs, q_head, s_active, s_prior, pos_ids.device)
    cached = pos_ids.view(bs, s_active).min(1).values[None, :, None]  # before any new token
    at = place[:, None, None].to(pos_ids.dtype)
    seen = (at < cached).expand(s_prior, bs, s_active)
    if start_pos is not None:
        start = start_pos.view(1, bs, s_active)
        seen = torch.where(start > cached, seen | (at >= start), seen & (at >= start))
    key = place[:, None, None] - (
        s_prior - s_active
    )  # new token of the row; negative: a cached one
    query = torch.arange(s_active, device=pos_ids.device)[None, None]
    visible = torch.where(key >= 0, key <= query, seen)
    return visible[:, :, None].expand(s_prior, bs, q_head, s_active).float()
