"""The attention interface of the Neuron host: cache write and attention in the three forms of a step.

Single-shot prefill attends to the tokens of the call (`NF.flash_attention`, or our own
`NK.softcap_attention` for what that does not take), chunked prefill to the cache through the block table
(`NF.segmented_attention`), decode to the cache in plain torch operations. Masks are made here from
positions; transformers makes none for an implementation it has no mask for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from neuron_autoport import kernels as NK
from neuron_autoport import nf as NF
from neuron_autoport.hosts.neuron.call import LayerState
from neuron_autoport.hosts.neuron.paged import attend, decode_keys, read_cache, write_cache

NEURON_ATTENTION = "neuron_autoport_neuron"
STATE = "neuron_layer"
SEGMENTS = (512, 1024, 2048, 4096, 8192)


def neuron_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Write keys and values to the cache and attend. Shapes as transformers' attention interface.

    query [B, N, S, D], key and value [B, Nkv, S, D] -> [B, S, N, D]. The window is the layer's own
    (`LayerFacts.window`), read from its mask.
    """
    layer: LayerState = getattr(module, STATE)
    entry = layer.call.metadata[layer.name]
    assert layer.k_cache is not None and layer.v_cache is not None
    write_cache(layer.k_cache, key, entry["slot_mapping"])
    write_cache(layer.v_cache, value, entry["slot_mapping"])
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if layer.call.decode:
        return _decode(layer, entry, query, scale, softcap, s_aux), None
    if entry["kv_segment_size"] > 0:
        return _chunk(layer, entry, query, scale, softcap, s_aux), None
    return _prefill(layer, query, key, value, scale, softcap, s_aux), None


def _prefill(
    layer: LayerState,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    window = layer.facts.window
    if layer.no_nf is not None:
        own = NK.softcap_attention(query, key, value, scale, softcap, window, sinks)
        return own.transpose(1, 2)
    out = NF.flash_attention(
        query[0],
        key[0],
        value[0],
        scale=scale,
        sink=None if sinks is None else sinks.view(-1, 1),
        sliding_window=window,
        tp_k=True,
    )
    return out.transpose(0, 1)[None]


def _chunk(
    layer: LayerState,
    entry: dict[str, Any],
    query: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """A chunk of one request; its keys are in the cache already."""
    window, size = layer.facts.window, entry["block_size"]
    k_cache, v_cache = layer.k_cache, layer.v_cache
    assert k_cache is not None and v_cache is not None
    table, prior = entry["block_table_tensor"], entry["cached_seq_len"]
    if layer.no_nf is not None or chunk_limit(entry, query.shape[2], window) is not None:
        places = prior.view(1, 1) + torch.arange(query.shape[2], device=query.device)
        key, value = read_cache(k_cache, v_cache, table, query.dtype)
        seen = decode_keys(table, places, size, window)
        return attend(query, key, value, seen, scale, softcap, sinks)
    out = NF.segmented_attention(
        query[0],
        k_cache,
        v_cache,
        table,
        prior.view(1, 1).expand(query.shape[1], 1),
        size,
        entry["kv_segment_size"],
        scale=scale,
        sliding_window=window,
        sink=None if sinks is None else sinks.view(-1, 1),
    )
    return out.transpose(0, 1)[None]


def chunk_limit(entry: dict[str, Any], tokens: int, window: int | None) -> str | None:
    """Why `NF.segmented_attention` would refuse this chunk on a device; None if it would not."""
    segment, size = entry["kv_segment_size"], entry["block_size"]
    if segment not in SEGMENTS:
        return f"segment size {segment} is none of {SEGMENTS}"
    if segment % size:
        return f"segment size {segment} is no multiple of the block size {size}"
    if window and window % size:
        return f"window {window} is no multiple of the block size {size}"
    if tokens != segment:
        return f"{tokens} tokens in a segment of {segment}"
    return None


def _decode(
    layer: LayerState,
    entry: dict[str, Any],
    query: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    positions = layer.call.positions
    assert positions is not None and layer.k_cache is not None and layer.v_cache is not None
    table = entry["block_table_tensor"]
    offset = entry.get("swa_kv_pos_offset")
    if offset is not None:
        positions = positions - offset[:, None]
    key, value = read_cache(layer.k_cache, layer.v_cache, table, query.dtype)
    seen = decode_keys(table, positions, entry["block_size"], layer.facts.window)
    return attend(query, key, value, seen, scale, softcap, sinks)


ALL_ATTENTION_FUNCTIONS.register(NEURON_ATTENTION, neuron_attention)
