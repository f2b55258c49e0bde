"""NF.segmented_attention: one sequence's chunk against the paged cache, prior tokens and itself."""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.dispatch import nf_function
from neuron_autoport.nf.flash_attention import softmax_with_sink

NAME = "segmented_attention"


def gather_pages(cache: Tensor, table: Tensor) -> Tensor:
    """Cache [blocks, heads, block size, D] and table [B, n] -> [B, heads, n * block size, D].

    Entries below zero read block 0; the caller's mask hides them.
    """
    pages = cache[table.clamp(min=0).long()]
    batch, count, heads, size, width = pages.shape
    return pages.transpose(1, 2).reshape(batch, heads, count * size, width)


def _check(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, prior: Tensor, block_size: int
) -> None:
    if q.dim() != 3 or k_cache.dim() != 4 or v_cache.shape != k_cache.shape:
        raise ValueError(
            f"NF.{NAME}: q must be 3-D and both caches [blocks, heads, block size, D], got "
            f"{tuple(q.shape)}, {tuple(k_cache.shape)}, {tuple(v_cache.shape)}"
        )
    if k_cache.shape[2] != block_size:
        raise ValueError(f"NF.{NAME}: block_size is {block_size}, the cache's {k_cache.shape[2]}")
    if q.shape[0] % k_cache.shape[1] or q.shape[-1] != k_cache.shape[-1]:
        raise ValueError(
            f"NF.{NAME}: q {tuple(q.shape)} and cache {tuple(k_cache.shape)} do not fit"
        )
    if table.dim() != 2 or table.shape[0] != 1:
        raise ValueError(f"NF.{NAME}: block_tables must be [1, blocks], got {tuple(table.shape)}")
    if tuple(prior.shape) != (q.shape[0], 1):
        raise ValueError(f"NF.{NAME}: prior_tokens must be [{q.shape[0]}, 1], got {prior.shape}")


@nf_function(weights=())
def segmented_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    prior_tokens: Tensor,
    block_size: int,
    kv_segment_size: int,
    scale: float | None = None,
    tp_q: bool = True,
    tp_out: bool = False,
    sliding_window: int | None = None,
    sink: Tensor | None = None,
    fp8_packed: bool = False,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """Attention of a chunk whose keys and values are already in the cache, all in float32.

    visible(q, k) = k < prior + Sq and k <= q + prior and (no window or k > q + prior - window).
    Source: the plugin's contract, `segmented_attention`.

    Args:
        q: [Nh, Sq, D], or [Nh, D, Sq] without `tp_q`; one sequence.
        k_cache, v_cache: [blocks, kv heads, block_size, D].
        block_tables: [1, blocks], logical order; entries below zero are unused.
        prior_tokens: [Nh, 1], all equal. sink: [Nh, 1].
        kv_segment_size: for the kernel; the result does not depend on it.

    Returns:
        [Nh, Sq, D], or [Nh, D, Sq] with `tp_out`; dtype of q. A query that sees nothing gives zeros.

    Raises:
        ValueError: a wrong shape. NotImplementedError: FP8 caches.
    """
    checks.refuse(
        NAME, "it reads plain caches", fp8_packed=fp8_packed, k_scale=k_scale, v_scale=v_scale
    )
    query = q if tp_q else q.transpose(1, 2)
    _check(query, k_cache, v_cache, block_tables, prior_tokens, block_size)
    group = query.shape[0] // k_cache.shape[1]
    key, value = (
        gather_pages(cache, block_tables)[0].float().repeat_interleave(group, 0)
        for cache in (k_cache, v_cache)
    )
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    prior = prior_tokens[0, 0].long()
    rows = torch.arange(query.shape[1], device=q.device)[:, None] + prior
    columns = torch.arange(key.shape[1], device=q.device)
    seen = columns <= rows
    if sliding_window:
        seen = seen & (columns > rows - sliding_window)
    scores = torch.bmm(query.float(), key.transpose(1, 2)) * factor
    weights = softmax_with_sink(scores.masked_fill(~seen, float("-inf")), sink)
    out = torch.bmm(torch.nan_to_num(weights), value).to(q.dtype)
    return out.transpose(1, 2) if tp_out else out
