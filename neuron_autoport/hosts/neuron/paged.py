"""The paged cache in plain torch operations: write, read, and attention over what is read.

Caches are [blocks, kv heads, block size, D]; slot = block * block size + offset. No value is read on the
host and no shape depends on data, so all of it lowers into one graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_autoport.nf.segmented_attention import gather_pages


def write_cache(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    """Write rows [B, N, S, D] to slots [B * S], in place.

    A slot below zero or past the end goes to slot 0: block 0 belongs to no request.
    """
    count, heads, size, width = cache.shape
    valid = (slots >= 0) & (slots < count * size)
    slots = torch.where(valid, slots, torch.zeros_like(slots)).long()
    block, offset = slots // size, slots % size
    head = torch.arange(heads, device=cache.device)
    values = rows.transpose(1, 2).reshape(-1, heads, width).to(cache.dtype)
    cache.index_put_((block[:, None], head[None], offset[:, None]), values)


def decode_keys(table: Tensor, positions: Tensor, block_size: int, window: int | None) -> Tensor:
    """Which cached keys each query sees, [B, 1, S, W * block size].

    Args:
        table: [B, W] blocks in order; below zero: unused. positions: [B, S] of the queries, in the frame
            of the table (a trimmed table starts at a later position). window: as in `LayerFacts`.
    """
    keys = torch.arange(table.shape[1] * block_size, device=table.device)
    queries = positions.clamp(min=0)[:, None, :, None]
    seen = keys <= queries
    if window:
        seen = seen & (keys > queries - window)
    return seen


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """softmax(cap(scale * q k^T)) v in the order and precision of transformers' eager attention.

    Scores in the dtype of query, softmax in float32. Query head h uses key head h // (N / Nkv).

    Args:
        query: [B, N, S, D]. key, value: [B, Nkv, L, D]. seen: bool, broadcasts to [B, 1, S, L].
        softcap: c of c * tanh(scores / c). sinks: [N], a logit beside each query's scores.

    Returns:
        [B, S, N, D].
    """
    batch, heads, length, width = query.shape
    kv_heads = key.shape[1]
    grouped = query.reshape(batch, kv_heads, heads // kv_heads, length, width)
    scores = torch.matmul(grouped, key.transpose(2, 3)[:, :, None]) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~seen[:, :, None], torch.finfo(scores.dtype).min)
    scores = scores.float()
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        column = sinks.float().view(1, kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    out = torch.matmul(weights.to(query.dtype), value[:, :, None])
    return out.reshape(batch, heads, length, width).transpose(1, 2)


def read_cache(
    k_cache: Tensor, v_cache: Tensor, table: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Keys and values of every request, each [B, Nkv, W * block size, D]."""
    return gather_pages(k_cache, table).to(dtype), gather_pages(v_cache, table).to(dtype)
