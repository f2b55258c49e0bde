"""Decode through `NF.attention_decode`: the forward of an attention class in one call.

Used where `decode_form` found the class to be what the function computes and the limits of its kernel hold
for this rank. In the other phases the class's own forward runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from neuron_autoport import nf as NF
from neuron_autoport.hosts.neuron.attention import STATE
from neuron_autoport.hosts.neuron.call import LayerState
from neuron_autoport.hosts.neuron.decode_form import DecodeForm, fill_result, pick_argument
from neuron_autoport.hosts.neuron.probe import LayerFacts

MOST_TOKENS = 8


def decode_limit(facts: LayerFacts, hidden: int, kv_heads: int) -> str | None:
    """Why the decode kernel cannot run for a layer on this rank; None if it can."""
    if facts.softcap is not None:
        return f"scores are soft-capped at {facts.softcap:g}, which no NF attention does"
    if kv_heads != 1:
        return f"{kv_heads} key/value heads per rank, the kernel takes 1"
    if hidden % 128:
        return f"hidden size {hidden} is no multiple of 128"
    if facts.head_dim > 128 or facts.head_dim % 2:
        return f"heads are {facts.head_dim} wide, the kernel takes an even width up to 128"
    return None


def call_limit(entry: dict[str, Any], tokens: int) -> str | None:
    """Why one step cannot go to the kernel: its table's width and its new tokens per request."""
    context = entry["block_table_tensor"].shape[1] * entry["block_size"]
    if context != 128 and context % 256:
        return f"a table of {context} positions, the mask takes 128 or a multiple of 256"
    if tokens > MOST_TOKENS:
        return f"{tokens} new tokens per request, the kernel takes {MOST_TOKENS}"
    return None


def with_decode(module: nn.Module, form: DecodeForm) -> None:
    """Give an attention module its decode form; `settle_norms` must follow when weights are loaded."""
    cls = type(module)
    layer: LayerState = getattr(module, STATE)
    layer.form = form
    module.__class__ = type(cls.__name__, (_Fused, cls), {"__module__": cls.__module__})


def settle_norms(module: nn.Module, form: DecodeForm) -> None:
    """Fold each head norm into its weight [1, d], from what the norm does to a row of ones."""
    if form.norm is None:
        return
    for name, path in (("decode_q_gamma", form.norm.query), ("decode_k_gamma", form.norm.key)):
        norm = module.get_submodule(path)
        weight = next(norm.parameters(), None)
        if weight is None or weight.is_meta:
            continue
        gamma = _gamma(norm, weight, form.norm.eps)
        module.register_buffer(name, gamma, persistent=False)


def _gamma(norm: nn.Module, weight: Tensor, eps: float) -> Tensor:
    width = weight.shape[-1]
    dtype = weight.dtype
    with torch.no_grad():
        norm.float()
        ones = torch.ones(1, 1, 1, width, device=weight.device)
        gamma = norm(ones).view(1, width) * (1.0 + eps) ** 0.5
        norm.to(dtype)
    exact = torch.equal(gamma.to(dtype).float(), gamma)
    return gamma.to(dtype) if exact else gamma


class _Fused:
    """Comes before an attention class: decode steps go to the fused function."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        layer: LayerState = getattr(self, STATE)
        if layer.call.decode:
            form = layer.form
            assert form is not None
            hidden = pick_argument(form.hidden, args, kwargs)
            entry = layer.call.metadata[layer.name]
            if call_limit(entry, hidden.shape[1]) is None:
                return fill_result(form.result, _decode(self, layer, entry, hidden, args, kwargs))
        return super().forward(*args, **kwargs)  # type: ignore[misc]


def _decode(
    module: Any,
    layer: LayerState,
    entry: dict[str, Any],
    hidden: Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Tensor:
    """hidden [B, S, H] -> [B, S, H], the sum over ranks still to be taken."""
    form = layer.form
    assert form is not None and layer.k_cache is not None and layer.v_cache is not None
    batch, tokens, width = hidden.shape
    half = layer.facts.head_dim // 2
    cos, sin = (
        None if path is None else _half(pick_argument(path, args, kwargs), batch, half)
        for path in (form.cos, form.sin)
    )
    norm: dict[str, Any] = {}
    if form.norm is not None:
        when = "pre" if form.norm.before_rope else "post"
        norm = {
            f"rmsnorm_QK_{when}_rope_enabled": True,
            f"rmsnorm_QK_{when}_rope_eps": form.norm.eps,
            f"rmsnorm_QK_{when}_rope_W_Q": module.decode_q_gamma,
            f"rmsnorm_QK_{when}_rope_W_K": module.decode_k_gamma,
        }
    sinks = None if form.sinks is None else getattr(module, form.sinks).view(-1, 1)
    heads = layer.heads
    out = NF.attention_decode(
        hidden,
        W_qkv=getattr(module, f"{form.qkv.attr}_weight"),
        bias_qkv=getattr(module, f"{form.qkv.attr}_bias", None),
        **norm,
        cos=cos,
        sin=sin,
        active_blocks_table=entry["block_table_tensor"],
        K_cache=layer.k_cache,
        V_cache=layer.v_cache,
        attention_mask=_mask(layer, entry, batch, tokens, heads),
        sink=sinks,
        softmax_scale=form.scale,
        update_cache=True,
        kv_cache_update_idx=_slots(entry["slot_mapping"], layer.k_cache, batch),
        W_out=getattr(module, f"{form.out.attr}_weight"),
        bias_out=getattr(module, f"{form.out.attr}_bias", None),
    )
    return out.view(batch, tokens, width)


def _half(table: Tensor, batch: int, half: int) -> Tensor:
    """cos or sin [1 or B, S, d or d/2] -> [d/2, B, S]."""
    return table[..., :half].expand(batch, -1, -1).permute(2, 0, 1)


def _slots(slots: Tensor, cache: Tensor, batch: int) -> Tensor:
    """uint32 [B, S]; a slot that is none goes to slot 0, in the block that belongs to no request."""
    capacity = cache.shape[0] * cache.shape[2]
    valid = (slots >= 0) & (slots < capacity)
    return torch.where(valid, slots, torch.zeros_like(slots)).view(batch, -1).to(torch.uint32)


def _mask(layer: LayerState, entry: dict[str, Any], batch: int, tokens: int, heads: int) -> Tensor:
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
