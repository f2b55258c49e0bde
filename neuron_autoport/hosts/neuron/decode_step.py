"""What a step gives `NF.attention_decode`: limits, tables of the rotation, slots, mask, norm weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from neuron_autoport import nf as NF
from neuron_autoport.hosts.neuron.call import LayerState
from neuron_autoport.hosts.neuron.facts import LayerFacts

MOST_TOKENS = 8


def decode_limit(facts: LayerFacts, hidden: int, kv_heads: int) -> str | None:
    """Why the decode kernel cannot run for a layer on this rank; None if it can."""
    if facts.softcap is not None:
        return f"scores are soft-capped at {facts.softcap:g}, which no NF attention does"
    if facts.head_dim > 128 or facts.head_dim % 2:
        return f"heads are {facts.head_dim} wide, the kernel takes an even width up to 128"
    if hidden % 128:
        return f"hidden size {hidden} is no multiple of 128"
    if kv_heads != 1:
        return f"{kv_heads} key/value heads per rank, the kernel takes 1"
    return None


def call_limit(entry: dict[str, Any], tokens: int) -> str | None:
    """Why one step cannot go to the kernel: its table's width and its new tokens per request."""
    context = entry["block_table_tensor"].shape[1] * entry["block_size"]
    if context != 128 and context % 256:
        return f"a table of {context} positions, the mask takes 128 or a multiple of 256"
    if tokens > MOST_TOKENS:
        return f"{tokens} new tokens per request, the kernel takes {MOST_TOKENS}"
    return None


def fold_head_norms(module: nn.Module, query: str, key: str, eps: float) -> None:
    """Give an attention module the buffers `head_q_gamma` and `head_k_gamma` [1, d]: each head norm's
    weight, from what the norm does to a row of ones."""
    for name, path in (("head_q_gamma", query), ("head_k_gamma", key)):
        norm = module.get_submodule(path)
        weight = next(norm.parameters(), None)
        if weight is not None:
            gamma = norm_gamma(norm, eps, weight.shape[-1])
            module.register_buffer(name, gamma, persistent=False)


def norm_gamma(norm: nn.Module, eps: float, width: int) -> Tensor:
    """What an RMS norm multiplies by, [1, width]: from what it does to a row of ones.

    In the dtype of the norm's weight if that holds it exactly, else float32. On the meta device, so is the
    weight.
    """
    weight = next(norm.parameters(), None)
    if weight is None:
        return torch.ones(1, width)
    if weight.is_meta:
        return torch.empty(1, width, dtype=weight.dtype, device="meta")
    dtype = weight.dtype
    with torch.no_grad():
        norm.float()
        ones = torch.ones(1, 1, 1, width, device=weight.device)
        gamma: Tensor = norm(ones).view(1, width) * (1.0 + eps) ** 0.5
        norm.to(dtype)
    exact = torch.equal(gamma.to(dtype).float(), gamma)
    return gamma.to(dtype) if exact else gamma


def half_table(table: Tensor, batch: int, half: int) -> Tensor:
    """cos or sin [1 or B, S, d or d/2] -> [d/2, B, S]."""
    return table[..., :half].expand(batch, -1, -1).permute(2, 0, 1)


def kernel_slots(slots: Tensor, cache: Tensor, batch: int) -> Tensor:
    """uint32 [B, S]; a slot that is none goes to slot 0, in the block that belongs to no request."""
    capacity = cache.shape[0] * cache.shape[2]
    valid = (slots >= 0) & (slots < capacity)
    return torch.where(valid, slots, torch.zeros_like(slots)).view(batch, -1).to(torch.uint32)


def decode_mask(
    layer: LayerState, entry: dict[str, Any], batch: int, tokens: int, heads: int
) -> Tensor:
    """The kernel's mask; made once per step for all layers with the same table and window."""
    call, window = layer.call, layer.facts.window
    size = entry["block_size"]
    context = entry["block_table_tensor"].shape[1] * size
    offset = entry.get("swa_kv_pos_offset")
    key = (window, context, heads, offset is None)
    if key not in call.masks:
        positions = call.positions
        assert positions is not None
        if offset is not None:
            positions = positions - offset[:, None]
        positions = positions.clamp(min=0)
        start = None
        if window:
            start = (positions - window + 1).clamp(min=0).view(1, -1).float()
        call.masks[key] = NF.gen_attention_decode_mask(
            positions.reshape(1, -1).float(),
            batch,
            heads,
            tokens,
            context,
            start_pos=start,
            block_len=size,
        )
    return call.masks[key]
