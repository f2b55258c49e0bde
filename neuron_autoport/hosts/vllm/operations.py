"""Operations that torch.compile calls and does not look into: attention in one call, products, values computed once.

`attend` does on vLLM's CPU backend what its attention layer does in two calls of Python: write keys and values to the
cache, and attend. A decode step of a small model spends as long in those calls as in the kernels below them.

`onednn` is vLLM's product as a function. vLLM's operator writes into a tensor that it is given, in a schema from which
torch.compile does not see who reads that tensor afterwards: it may put the reader first.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from vllm.forward_context import get_forward_context
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

_LIBRARY = torch.library.Library("neuron_autoport", "FRAGMENT")
_LIBRARY.define("attend(Tensor query, Tensor key, Tensor value, Tensor place) -> Tensor")
_LIBRARY.define("kept(Tensor x) -> Tensor")
_LIBRARY.define("onednn(Tensor x, Tensor handler, int out, Tensor? bias) -> Tensor")

_KEPT = "neuron_autoport_kept"
_LAYERS: list[weakref.ref[Any]] = []  # of every engine of this process
_write = torch.ops._C.cpu_attn_reshape_and_cache.default
_read = torch.ops._C.cpu_attention_with_kv_cache.default
_multiply = torch.ops._C.onednn_mm.default


def can_attend(layer: Any, vllm_config: Any) -> bool:
    """Is this one of vLLM's layers that does just what `attend` does?"""
    impl = layer.impl
    return (
        type(impl) is CPUAttentionBackendImpl
        and layer.attn_type == AttentionType.DECODER
        and layer.kv_sharing_target_layer_name is None
        and layer.query_quant is None
        and not impl.is_fp8_kv_cache
        and (impl.sinks is None or impl.sinks.dtype in (torch.bfloat16, torch.float32))
        and vllm_config.kv_transfer_config is None
        and vllm_config.speculative_config is None
    )


def place_of(layer: Any) -> Tensor:
    """What `attend` finds one of vLLM's layers by: a tensor, so that the layers' graphs are the same."""
    _LAYERS.append(weakref.ref(layer))
    return torch.tensor(len(_LAYERS) - 1)


def _attend(query: Tensor, key: Tensor, value: Tensor, place: Tensor) -> Tensor:
    """query [T, N, D], key and value [T, K, D] of the tokens of one step -> [T, N * D]."""
    out = query.new_empty(query.shape[0], query.shape[1] * query.shape[2])
    context: Any = get_forward_context()
    if context.attn_metadata is None:  # vLLM warms up
        return out
    layer: Any = _LAYERS[int(place)]()
    found = context.attn_metadata[layer.layer_name]
    kept = _kept_of(layer)
    slots = context.slot_mapping.get(layer.layer_name)
    if slots is not None:
        _write(key, value, kept.keys, kept.values, slots, kept.isa, 1.0, 1.0, "auto")
    result, tokens = out.view(query.shape), found.num_actual_tokens
    if tokens < query.shape[0]:
        query, result = query[:tokens], result[:tokens]
    _read(
        query, kept.keys, kept.values, result, found.query_start_loc, found.seq_lens, kept.scale,
        found.causal, kept.slopes, kept.window, found.block_table, kept.soft_cap,
        found.scheduler_metadata, kept.sinks, found.dynamic_causal, 1.0, 1.0, "auto",
    )  # fmt: skip
    return out


class _Kept(NamedTuple):
    """What a layer hands to the kernels at every step. keys, values: the parts of its cache."""

    cache: Tensor
    keys: Tensor
    values: Tensor
    isa: str
    scale: float
    slopes: Tensor | None
    window: int
    soft_cap: float
    sinks: Tensor | None


def _kept_of(layer: Any) -> _Kept:
    """Put together once; vLLM may give the layer another cache later."""
    held: _Kept | None = layer.__dict__.get(_KEPT)
    if held is None or held.cache is not layer.__dict__["kv_cache"]:
        cache, impl = layer.kv_cache, layer.impl
        blocks, heads, size, _ = cache.shape
        keys, values = cache.view(blocks, heads, 2 * size, -1).chunk(2, dim=2)
        held = _Kept(
            cache, keys, values, layer.isa, impl.scale, impl.alibi_slopes, impl.sliding_window,
            impl.logits_soft_cap, impl.sinks,
        )  # fmt: skip
        layer.__dict__[_KEPT] = held
    return held


def _attend_shape(query: Tensor, key: Tensor, value: Tensor, place: Tensor) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[1] * query.shape[2])


def _kept(x: Tensor) -> Tensor:
    """x. The compiler computes it once, where it would compute a sine anew in each layer that reads it."""
    return x.clone(memory_format=torch.contiguous_format)


def _kept_shape(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _onednn(x: Tensor, handler: Tensor, out: int, bias: Tensor | None) -> Tensor:
    """x [..., in] by the weight that vLLM packed under `handler`, and bias [out] -> [..., out]."""
    made = _onednn_shape(x, handler, out, bias)
    _multiply(made, x.reshape(-1, x.shape[-1]), bias, handler)
    return made


def _onednn_shape(x: Tensor, handler: Tensor, out: int, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], out))


for _name, _run, _shape in (
    ("attend", _attend, _attend_shape),
    ("kept", _kept, _kept_shape),
    ("onednn", _onednn, _onednn_shape),
):
    _LIBRARY.impl(_name, _run, "CPU")
    torch.library.register_fake(f"neuron_autoport::{_name}", _shape, lib=_LIBRARY)

attend = torch.ops.neuron_autoport.attend
kept = torch.ops.neuron_autoport.kept
onednn = torch.ops.neuron_autoport.onednn.default
