"""The running step as an exported attention class sees it: attention, and what fused calls need."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neuron_autoport.hosts.neuron.attention import STATE, neuron_attention
from neuron_autoport.hosts.neuron.call import LayerState
from neuron_autoport.hosts.neuron.decode_step import (
    call_limit,
    decode_mask,
    half_table,
    kernel_slots,
)
from neuron_autoport.hosts.neuron.fused_heads import Heads, heads_limit, heads_of

LIMIT = "decode_limit"


class DecodeStep(NamedTuple):
    """What `NF.attention_decode` takes from the step. table: of cache blocks. slots: to write to."""

    table: Tensor
    k_cache: Tensor
    v_cache: Tensor
    mask: Tensor
    slots: Tensor
    batch: int
    width: int

    def half(self, table: Tensor) -> Tensor:
        """cos or sin [1 or B, S, d] in the layout of decode, [d/2, B, S]."""
        return half_table(table, self.batch, self.width)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
) -> tuple[Tensor, None]:
    """Write keys and values to the cache and attend, in the form of the running step.

    Args:
        query: [B, N, S, D]. key, value: [B, Nkv, S, D]. scaling: of the scores; None is D ** -0.5.
        softcap: c of c * tanh(scores / c). s_aux: one more logit per head, [N].

    Returns:
        ([B, S, N, D], None); which keys a query sees is in the package's table of layers.
    """
    return neuron_attention(module, query, key, value, None, scaling, softcap, s_aux)


def fused_decode(module: nn.Module, hidden: Tensor) -> DecodeStep | None:
    """The running step, if it is a decode step that `NF.attention_decode` takes.

    None in prefill, and where a limit of the kernel is broken: the forward then goes on.

    Args:
        hidden: [B, S, H], the input of the attention.
    """
    layer: LayerState = getattr(module, STATE)
    if not layer.call.decode or getattr(module, LIMIT) is not None:
        return None
    batch, tokens, _ = hidden.shape
    entry: dict[str, Any] = layer.call.metadata[layer.name]
    if call_limit(entry, tokens) is not None:
        return None
    assert layer.k_cache is not None and layer.v_cache is not None
    return DecodeStep(
        entry["block_table_tensor"],
        layer.k_cache,
        layer.v_cache,
        decode_mask(layer, entry, batch, tokens, layer.heads),
        kernel_slots(entry["slot_mapping"], layer.k_cache, batch),
        batch,
        layer.facts.head_dim // 2,
    )


def fused_heads(module: nn.Module, hidden: Tensor, weight: Tensor) -> Heads | None:
    """This rank's heads, if `NF.qkv_proj` takes QK-norm and RoPE in; None where its kernel has other limits.

    Args:
        hidden: [B, S, H], the input of the attention. weight: [H, F], the fused projections.
    """
    if heads_limit(*weight.shape) is not None:
        return None
    layer: LayerState = getattr(module, STATE)
    return heads_of(layer, hidden.shape[0])


def experts(
    module: Any, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> torch.Tensor:
    """The chosen experts' weighted sum, [T, H]; see `hosts.neuron.experts`."""
    from neuron_autoport.hosts.neuron.experts import dense_experts

    return dense_experts(module, hidden, top_k_index, top_k_weights)
