"""Decode through `NF.attention_decode`: the forward of an attention class in one call.

Used where `decode_form` found the class to be what the function computes and the limits of its kernel hold
for this rank. In the other phases the class's own forward runs.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from neuron_autoport import nf as NF
from neuron_autoport.hosts.neuron.attention import STATE
from neuron_autoport.hosts.neuron.call import LayerState
from neuron_autoport.hosts.neuron.decode_form import DecodeForm, fill_result, pick_argument
from neuron_autoport.hosts.neuron.decode_step import (
    call_limit,
    decode_mask,
    fold_head_norms,
    half_table,
    kernel_slots,
)
from neuron_autoport.hosts.neuron.mixin import Before, put_before


def with_decode(module: nn.Module, form: DecodeForm) -> None:
    """Give an attention module its decode form; `settle_norms` must follow when weights are loaded."""
    layer: LayerState = getattr(module, STATE)
    layer.form = form
    put_before(module, _Fused)


def settle_norms(module: nn.Module, form: DecodeForm) -> None:
    """Fold each head norm into its weight [1, d], from what the norm does to a row of ones."""
    if form.norm is not None:
        fold_head_norms(module, form.norm.query, form.norm.key, form.norm.eps)


class _Fused(Before):
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
        return super().forward(*args, **kwargs)


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
        None if path is None else half_table(pick_argument(path, args, kwargs), batch, half)
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
        attention_mask=decode_mask(layer, entry, batch, tokens, heads),
        sink=sinks,
        softmax_scale=form.scale,
        update_cache=True,
        kv_cache_update_idx=kernel_slots(entry["slot_mapping"], layer.k_cache, batch),
        W_out=getattr(module, f"{form.out.attr}_weight"),
        bias_out=getattr(module, f"{form.out.attr}_bias", None),
    )
    return out.view(batch, tokens, width)
