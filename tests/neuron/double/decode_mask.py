"""NF.gen_attention_decode_mask: 1 = visible, rows shuffled over the context as the kernel wants."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from tests.neuron.double.args import Args
from tests.neuron.double.log import KERNEL
from tests.neuron.double.op import Function, Made, build


@functools.cache
def row_positions(context: int, batch: int, heads: int, active: int, block: int) -> list[int]:
    """The context position that each row of a mask stands for.

    Row i = 128 t + p stands for (t // bl) * 128 * bl + p * bl + t % bl, with the block length
    resized so that it divides the context of one shard.
    """
    sharded = batch % 2 == 0 and (batch * heads * active >= 128 or context <= 256)
    parts = 2 if not sharded and context >= 256 else 1
    length = block
    if context % (128 * parts) == 0:
        length = math.gcd(block, context // (128 * parts))
    tiles = ((row // 128, row % 128) for row in range(context))
    return [t // length * 128 * length + p * length + t % length for t, p in tiles]


def is_permutation(context: int, batch: int, heads: int, active: int, block: int) -> bool:
    """Whether the layout reaches every context position once (it does not for some contexts)."""
    rows = row_positions(context, batch, heads, active, block)
    return sorted(rows) == list(range(context))


def check(a: Args) -> str:
    """Shapes; the context a multiple of 128; the trap of contexts such as 384."""
    lines = a.bs * a.s_active
    a.shape("pos_ids", 1, lines)
    a.dtype("pos_ids", torch.float32)
    a.shape("start_pos", 1, lines, optional=True)
    a.dtype("start_pos", torch.float32)
    a.need(a.s_prior % 128 == 0, f"ValueError: s_prior = {a.s_prior} is no multiple of 128")
    a.need(a.block_len > 0, "NotImplementedError in the torch formula: block_len is needed")
    a.need(
        not a.given(["local_filled_slots", "dcp_active_mask"]),
        "decode context parallel is not in the double",
    )
    if not is_permutation(a.s_prior, a.bs, a.q_head, a.s_active, a.block_len):
        a.trap("s_prior is neither 128 nor a multiple of 256: the layout is no permutation")
    return KERNEL


def compute(a: Args) -> list[Tensor]:
    """fp32 [s_prior, bs, q_head, s_active]."""
    rows = row_positions(a.s_prior, a.bs, a.q_head, a.s_active, a.block_len)
    positions = torch.tensor(rows)[:, None]
    lines = a.pos_ids.view(a.bs, a.s_active)
    a.need(bool((lines >= 0).all()), "pos_ids below 0 open the whole window: keep them >= 0")
    first = lines.amin(1)[None, :]
    seen = positions < first
    if a.start_pos is not None:
        start = a.start_pos.view(a.bs, a.s_active).amin(1)[None, :]
        inside = positions >= start
        seen = torch.where(start > first, seen | inside, seen & inside)
    seen = seen[:, :, None].expand(-1, -1, a.s_active).clone()
    for key in range(a.s_active):
        row = positions[:, 0] == a.s_prior - a.s_active + key
        for query in range(a.s_active):
            seen[row, :, query] = key <= query
    return [seen[:, :, None].expand(-1, -1, a.q_head, -1).float().contiguous()]


def shapes(a: Args) -> Made:
    """[s_prior, bs, q_head, s_active] in fp32."""
    return [((a.s_prior, a.bs, a.q_head, a.s_active), torch.float32)]


gen_attention_decode_mask = build(Function("gen_attention_decode_mask", check, shapes, compute))
