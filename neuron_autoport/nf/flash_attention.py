"""NF.flash_attention: causal attention over the keys of this call, with window and sink."""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.dispatch import nf_function

NAME = "flash_attention"


def _rows(name: str, value: Tensor, transposed: bool) -> Tensor:
    """[B, S, D], whatever the layout it came in."""
    if value.dim() != 3:
        raise ValueError(
            f"NF.{NAME}: {name} must be 3-D with batch and heads folded into the first axis, "
            f"got {tuple(value.shape)}"
        )
    return value if transposed else value.transpose(1, 2)


def _check(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, window: int | None) -> None:
    if k.shape[0] != v.shape[0] or k.shape[1] != v.shape[1]:
        raise ValueError(
            f"NF.{NAME}: k {tuple(k.shape)} and v {tuple(v.shape)} do not fit; is tp_k wrong?"
        )
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"NF.{NAME}: q is {q.shape[-1]} wide and k {k.shape[-1]}; is tp_q or tp_k wrong?"
        )
    if q.shape[0] % k.shape[0]:
        raise ValueError(f"NF.{NAME}: {q.shape[0]} query heads for {k.shape[0]} key heads")
    if sink is not None and tuple(sink.shape) != (q.shape[0], 1):
        raise ValueError(f"NF.{NAME}: sink must be [{q.shape[0]}, 1], got {tuple(sink.shape)}")
    if window is not None and window < 0:
        raise ValueError(f"NF.{NAME}: sliding_window is {window}")


@nf_function(weights=())
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    causal_mask: bool = True,
    sink: Tensor | None = None,
    sliding_window: int | None = None,
    tp_q: bool = True,
    tp_k: bool = False,
    tp_out: bool = False,
    cp_offset: Tensor | None = None,
    global_cp_deg: int | None = None,
    cp_strided_q_slicing: bool = False,
    k_prior: Tensor | None = None,
    v_prior: Tensor | None = None,
    prior_used_len: Tensor | None = None,
    bound_min: Tensor | None = None,
    bound_max: Tensor | None = None,
) -> Tensor:
    """softmax(scale * q k^T) v with a causal mask. Source: the plugin's contract, `flash_attention`.

    Scores in the dtype of q, softmax in float32. Query head h uses key head h // (B / Bkv).

    Args:
        q: [B, Sq, D], or [B, D, Sq] without `tp_q`. B is batch times heads.
        k: [Bkv, D, Sk], or [Bkv, Sk, D] with `tp_k`. v: [Bkv, Sk, D] always.
        scale: None for D ** -0.5. sink: [B, 1], a logit beside the scores.
        sliding_window: visible keys of a query, itself included; None or 0 for all. Needs
            `causal_mask`.

    Returns:
        [B, Sq, D], or [B, D, Sq] with `tp_out`; dtype of q.

    Raises:
        ValueError: a wrong shape, or a window without a causal mask.
        NotImplementedError: context parallel, prior keys, bounds.
    """
    checks.refuse(
        NAME,
        "it attends to the keys of this call only",
        cp_offset=cp_offset,
        global_cp_deg=global_cp_deg,
        cp_strided_q_slicing=cp_strided_q_slicing,
        k_prior=k_prior,
        v_prior=v_prior,
        prior_used_len=prior_used_len,
        bound_min=bound_min,
        bound_max=bound_max,
    )
    if not causal_mask:
        checks.unused(NAME, "causal_mask is False", sliding_window=sliding_window or None)
    query, key = _rows("q", q, tp_q), _rows("k", k, tp_k)
    value = _rows("v", v, True)
    _check(query, key, value, sink, sliding_window)
    group = query.shape[0] // key.shape[0]
    if group > 1:
        key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.bmm(query, key.transpose(1, 2)) * factor
    if causal_mask:
        rows = torch.arange(query.shape[1], device=q.device)[:, None]
        columns = torch.arange(key.shape[1], device=q.device)
        seen = columns <= rows
        if sliding_window:
            seen = seen & (columns > rows - sliding_window)
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    weights = softmax_with_sink(scores, sink).to(query.dtype)
    out = torch.bmm(weights, value)
    return out.transpose(1, 2) if tp_out else out


def softmax_with_sink(scores: Tensor, sink: Tensor | None) -> Tensor:
    """softmax over the last axis of [B, Sq, Sk] in float32, with one more logit [B, 1] that is left
    out of the result."""
    scores = scores.float()
    if sink is None:
        return scores.softmax(-1)
    column = sink.float()[:, :, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1]
