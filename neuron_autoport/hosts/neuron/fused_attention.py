"""An attention class in fused calls: `NF.attention_decode` in decode, RoPE and QK-norm in `NF.qkv_proj` elsewhere.

Used where `attention_form` found the class to be what these functions compute, and where the limits of their
kernels hold for this rank. What is in neither goes through the class's own forward.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from neuron_autoport import nf as NF
from neuron_autoport.hosts.neuron.attention import STATE, neuron_attention
from neuron_autoport.hosts.neuron.attention_form import AttentionForm, fill_result, pick_argument
from neuron_autoport.hosts.neuron.call import LayerState
from neuron_autoport.hosts.neuron.decode_step import (
    call_limit,
    decode_mask,
    fold_head_norms,
    half_table,
    kernel_slots,
)
from neuron_autoport.hosts.neuron.fused_heads import project_heads
from neuron_autoport.hosts.neuron.mixin import Before, put_before


def with_form(module: nn.Module, form: AttentionForm, *, decode: bool, heads: bool) -> None:
    """Let an attention module run in fused calls; `settle_norms` must follow when weights are loaded.

    Args:
        decode: its decode steps in one call. heads: elsewhere its QK-norm and RoPE with its projections.
    """
    layer: LayerState = getattr(module, STATE)
    layer.form, layer.fused_decode, layer.fused_heads = form, decode, heads
    put_before(module, _Fused)


def settle_norms(module: nn.Module, form: AttentionForm) -> None:
    """Fold each head norm into its weight [1, d], from what the norm does to a row of ones."""
    if form.norm is not None:
        fold_head_norms(module, form.norm.query, form.norm.key, form.norm.eps)


class _Fused(Before):
    """Comes before an attention class."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        layer: LayerState = getattr(self, STATE)
        form = layer.form
        assert form is not None
        hidden = pick_argument(form.hidden, args, kwargs)
        entry = layer.call.metadata[layer.name]
        in_one = layer.call.decode and layer.fused_decode
        in_one = in_one and call_limit(entry, hidden.shape[1]) is None
        if not in_one and not layer.fused_heads:
            return super().forward(*args, **kwargs)
        cos, sin = (
            None if path is None else pick_argument(path, args, kwargs)
            for path in (form.cos, form.sin)
        )
        run = _decode if in_one else _attend
        return fill_result(form.result, run(self, layer, hidden, (cos, sin)))


def _attend(
    module: Any, layer: LayerState, hidden: Tensor, tables: tuple[Tensor | None, Tensor | None]
) -> Tensor:
    """hidden [B, S, H] -> [B, S, H], the sum over ranks still to be taken."""
    form = layer.form
    assert form is not None
    query, key, value = project_heads(module, layer, form, hidden, tables)
    sinks = None if form.sinks is None else getattr(module, form.sinks)
    attended, _ = neuron_attention(module, query, key, value, None, form.scale, form.softcap, sinks)
    out: Tensor = NF.o_proj(
        attended.flatten(2),
        getattr(module, f"{form.out.attr}_weight"),
        getattr(module, f"{form.out.attr}_bias", None),
    )
    return out


def _decode(
    module: Any, layer: LayerState, hidden: Tensor, tables: tuple[Tensor | None, Tensor | None]
) -> Tensor:
    """hidden [B, S, H] -> [B, S, H], the sum over ranks still to be taken."""
    form, entry = layer.form, layer.call.metadata[layer.name]
    assert form is not None and layer.k_cache is not None and layer.v_cache is not None
    batch, tokens, width = hidden.shape
    half = layer.facts.head_dim // 2
    cos, sin = (None if t is None else half_table(t, batch, half) for t in tables)
    norm: dict[str, Any] = {}
    if form.norm is not None:
        when = "pre" if form.norm.before_rope else "post"
        norm = {
            f"rmsnorm_QK_{when}_rope_enabled": True,
            f"rmsnorm_QK_{when}_rope_eps": form.norm.eps,
            f"rmsnorm_QK_{when}_rope_W_Q": module.head_q_gamma,
            f"rmsnorm_QK_{when}_rope_W_K": module.head_k_gamma,
        }
    sinks = None if form.sinks is None else getattr(module, form.sinks).view(-1, 1)
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
        attention_mask=decode_mask(layer, entry, batch, tokens, layer.heads),
        sink=sinks,
        softmax_scale=form.scale,
        update_cache=True,
        kv_cache_update_idx=kernel_slots(entry["slot_mapping"], layer.k_cache, batch),
        W_out=getattr(module, f"{form.out.attr}_weight"),
        bias_out=getattr(module, f"{form.out.attr}_bias", None),
    )
    return out.view(batch, tokens, width)
