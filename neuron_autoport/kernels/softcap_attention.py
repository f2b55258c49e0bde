"""Causal attention of a prefill: soft-cap, sliding window, sinks, GQA, heads of 256 and wider.

What NF.flash_attention does not take: a soft-cap, and heads wider than 128.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_autoport.kernels.dispatch import nk_function
from neuron_autoport.kernels.limits import Limit
from neuron_autoport.kernels.norms import FLOATS

HEAD_MOST = 1024
VALUE_MOST = 512
KEYS_MOST = 8192


@nk_function(
    summary="causal prefill attention: soft-cap, window, sinks, GQA, head_dim up to 512",
    equation="softmax(softcap * tanh(q k^T * scale / softcap), causal, window, sink) v",
    phases=("prefill",),
    limits=(
        Limit("q.dtype", "the engines have no other floating dtype", one_of=FLOATS),
        Limit("k.dtype", "one matrix product takes one dtype", same_as="q.dtype"),
        Limit("v.dtype", "one matrix product takes one dtype", same_as="q.dtype"),
        Limit("q.ndim", "batch, heads, tokens and head width are four axes", one_of=(4,)),
        Limit(
            "q.shape[-1]",
            "sixteen tiles of queries, turned, are held in SBUF at once",
            most=HEAD_MOST,
        ),
        Limit(
            "v.shape[-1]", "the output of a tile of queries is one bank of PSUM", most=VALUE_MOST
        ),
        Limit("k.shape[2]", "the loop over keys is unrolled into the program", most=KEYS_MOST),
    ),
    module="neuron_autoport.kernels.device.softcap_attention",
)
def softcap_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """softmax over the visible keys of s = q k^T * scale, or softcap * tanh(s / softcap); times v.

    Query i stands at position S - T + i and sees the keys j <= its position; with a window W only
    j > position - W, so a window counts the query itself. Query head h reads key head h // (N / Nkv).
    Scores and softmax are float32; probabilities are rounded to the dtype of v before the product.

    Args:
        q: [B, N, T, D].
        k: [B, Nkv, S, D], S >= T; N a multiple of Nkv.
        v: [B, Nkv, S, Dv].
        scale: None: D ** -0.5.
        softcap: None: none.
        window: None: all earlier keys.
        sink: [N] logits, one more column of the softmax that has no value (gpt-oss). Not capped.

    Returns:
        [B, N, T, Dv] in the dtype of q.

    Raises:
        ValueError: shapes that do not fit, a soft-cap or window that is not above zero.
    """
    _check(q, k, v, softcap, window, sink)
    batch, heads, tokens, width = q.shape
    groups = k.shape[1]
    grouped = q.reshape(batch, groups, heads // groups, tokens, width)
    scores = grouped.float() @ k.float().transpose(-1, -2).unsqueeze(2)
    scores = scores * (width**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    hidden = ~visible(tokens, k.shape[2], window, q.device)
    scores = scores.masked_fill(hidden, float("-inf"))
    if sink is not None:
        column = sink.float().view(1, groups, heads // groups, 1, 1)
        column = column.expand(batch, -1, -1, tokens, 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[2]]
    out = weights.to(v.dtype) @ v.unsqueeze(2)
    return out.reshape(batch, heads, tokens, v.shape[-1]).to(q.dtype)


def visible(tokens: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """[tokens, keys], True where the query sees the key."""
    position = torch.arange(keys - tokens, keys, device=device).unsqueeze(1)
    key = torch.arange(keys, device=device).unsqueeze(0)
    seen = key <= position
    return seen if window is None else seen & (key > position - window)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softcap: float | None,
    window: int | None,
    sink: Tensor | None,
) -> None:
    name = "NK.softcap_attention"
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise ValueError(
            f"{name}: q, k and v are [B, N, T, D]; got {q.dim()}, {k.dim()}, {v.dim()} axes"
        )
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(
            f"{name}: q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit: "
            "k and v agree in batch, heads and length, q and k in batch and head width"
        )
    if q.shape[1] % k.shape[1] or q.shape[2] > k.shape[2]:
        raise ValueError(
            f"{name}: {q.shape[1]} query heads on {k.shape[1]} key heads, {q.shape[2]} queries on "
            f"{k.shape[2]} keys; heads must divide and no query may come before the first key"
        )
    if softcap is not None and softcap <= 0:
        raise ValueError(f"{name}: softcap={softcap} must be above zero")
    if window is not None and window <= 0:
        raise ValueError(f"{name}: window={window} must be above zero: a query sees itself")
    if sink is not None and tuple(sink.shape) != (q.shape[1],):
        raise ValueError(f"{name}: sink {tuple(sink.shape)} must be [{q.shape[1]}], one per head")
