"""vLLM's attention layers, made from what the graph of each attention class hands to the attention interface.

Heads, sizes, scale, window, soft-cap and sinks are the graph's; the configuration's fields are not asked. What vLLM's
layer cannot compute is refused before any weight is read, never served wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from vllm.model_executor.layers.attention import Attention, ChunkedLocalAttention
from vllm.model_executor.model_loader.weight_utils import (
    default_weight_loader,
    sharded_weight_loader,
)
from vllm.model_executor.utils import set_weight_attrs

from neuron_autoport.hosts.vllm.attention_facts import Facts, read_call
from neuron_autoport.hosts.vllm.compat import HostError, refused
from neuron_autoport.hosts.vllm.masks import Mask, layer_key
from neuron_autoport.hosts.vllm.operations import attend, can_attend, place_of
from neuron_autoport.hosts.vllm.turns import attention_calls, check_stages, give_turns, layer_of

INTERFACE = "neuron_autoport_vllm"
# Fields of a configuration that hold what a mask shows.
_WINDOWS = ("sliding_window", "attention_window_size", "window_size")
_CHUNK = "attention_chunk_size"


@dataclass(frozen=True)
class Reach:
    """What a query sees. window: so many keys, itself included, or all. chunk: of its own so many tokens, or all."""

    window: int | None
    chunk: int | None = None


def make_attention(model: Any, masks: dict[tuple[str, str | None], Mask], small: Any) -> None:
    """Give every attention module of the host's model its vLLM layer.

    Args:
        model: the host's model. masks: of the small model's layers by kind; empty if there is none.
        small: the small model's text configuration.

    Raises:
        HostError: an attention that vLLM's layer would not compute as configured.
    """
    port = model.proved.port
    inside = f"{port.base}." if port.base else ""
    modules: dict[str, nn.Module] = dict(model.model.named_modules())
    where = str(model.model_config.model)
    found = attention_calls(port)
    check_stages(found, int(model.parallel_config.pipeline_parallel_size), where)
    for path, calls in found.items():
        module = modules.get(path.removeprefix(inside))
        if module is None or type(module).__name__ == "PPMissingLayer":
            continue
        place = f"{path} ({port.where[path].trace.module_class.__name__})"
        mask = masks.get(layer_key(module, model.text_config))
        sharing = model.sharing.get(path.removeprefix(inside))
        ranks = int(model.parallel_config.tensor_parallel_size)
        ranks = ranks if sharing is not None and sharing.by_heads else 1
        give_turns(module, place, calls)
        sinks: dict[str, nn.Parameter] = {}
        for attribute, op in zip(calls.names(), calls.asked, strict=True):
            facts = read_call(op)
            assert isinstance(facts, Facts), facts  # `check_calls`
            if facts.sinks is not None and facts.sinks not in sinks:
                device = model.device_config.device
                sinks[facts.sinks] = _share_sinks(module, facts.sinks, ranks, device)
            reach = read_reach(facts, mask, model.text_config, small, place, where)
            name = f"model.{path.removeprefix(inside)}.{attribute}"
            own = sinks.get(facts.sinks or "")
            setattr(module, attribute, _layer(facts, reach, own, name, place, model, ranks))


def read_reach(
    facts: Facts, mask: Mask | None, config: Any, small: Any, place: str, where: str
) -> Reach:
    """How far a layer sees: as handed to the call, or, where its mask alone shows it, as configured."""
    if mask is None:
        return Reach(facts.window)
    if mask.problem is not None:
        raise refused("AP410", f"{place}: its tokens see each other by {mask.problem}", where)
    if mask.chunk is not None and mask.given is None:
        if getattr(small, _CHUNK, None) == mask.chunk:
            return Reach(None, int(getattr(config, _CHUNK)))
    elif mask.window == (mask.given or None):
        return Reach(facts.window)
    for field in _WINDOWS:
        if mask.window is not None and getattr(small, field, None) == mask.window:
            return Reach(int(getattr(config, field)))
    shown = f"a window of {mask.window}" if mask.window else "no window"
    shown = f"chunks of {mask.chunk}" if mask.chunk else shown
    told = f"a window of {mask.given}" if mask.given else "none"
    raise refused("AP410", f"{place}: its mask has {shown}, its attention is told {told}", where)


def _layer(
    facts: Facts,
    reach: Reach,
    sinks: nn.Parameter | None,
    name: str,
    place: str,
    model: Any,
    ranks: int,
) -> Attention:
    where = str(model.model_config.model)
    if facts.heads % ranks or (facts.kv_heads % ranks and ranks % facts.kv_heads):
        what = f"{facts.heads} query and {facts.kv_heads} key/value heads cannot be shared by {ranks} ranks"
        raise HostError(
            f"AP501: {place}: {what}", where, "vllm serve MODEL --tensor-parallel-size 1"
        )
    longest = int(model.model_config.max_model_len)
    kwargs: dict[str, Any] = {}
    if reach.window is not None and reach.window < longest:
        kwargs["per_layer_sliding_window"] = reach.window
    in_chunks = reach.chunk is not None and reach.chunk < longest
    if sinks is not None:
        kwargs["sinks"] = sinks
    if facts.slopes is not None:
        kwargs["alibi_slopes"] = list(facts.slopes)
    cache = model.cache_config
    if in_chunks:
        check_chunks(facts, reach, cache.block_size, place, where)
        kind, kwargs["attention_chunk_size"] = ChunkedLocalAttention, reach.chunk
    else:
        kind, kwargs["logits_soft_cap"] = Attention, facts.soft_cap
    held, cache.sliding_window = (
        cache.sliding_window,
        None,
    )  # one without a window of its own has none
    try:
        layer = kind(
            facts.heads // ranks,
            _head_size(facts, model, place, where),
            facts.scale,
            num_kv_heads=max(1, facts.kv_heads // ranks),
            cache_config=cache,
            quant_config=model.quant_config,
            prefix=name,
            **kwargs,
        )
    finally:
        cache.sliding_window = held
    layer.in_one_call = can_attend(layer, model.vllm_config)
    layer.place = place_of(layer)
    return layer


def check_chunks(facts: Facts, reach: Reach, block: int, place: str, where: str) -> None:
    """vLLM's layer for attention in chunks shows whole blocks of the cache, and knows neither cap nor sinks."""
    if facts.soft_cap is not None or facts.sinks is not None:
        what = f"{place}: in chunks vLLM's attention has neither a soft-cap nor sinks"
        raise refused("AP410", what, where)
    assert reach.chunk is not None
    if reach.chunk % block:
        what = f"AP410: {place}: chunks of {reach.chunk} tokens are no whole blocks of {block} in the cache"
        raise HostError(
            what, where, f"vllm serve {where} --block-size N, of which {reach.chunk} is a multiple"
        )


def _head_size(facts: Facts, model: Any, place: str, where: str) -> int:
    """The smallest width of a head that vLLM's backend has and keys and values fit in; zeros fill the rest."""
    from vllm.v1.attention.selector import get_attn_backend

    wanted = max(facts.key_size, facts.value_size)
    backend = get_attn_backend(
        wanted, torch.get_default_dtype(), model.cache_config.cache_dtype, use_mla=False
    )
    sizes = backend.get_supported_head_sizes()
    fitting = [size for size in sizes if size >= wanted] if sizes else [wanted]
    if not fitting:
        what = f"heads are {wanted} wide, {backend.get_name()} takes {max(sizes)} at most"
        raise refused("AP410", f"{place}: {what}", where)
    return int(min(fitting))


def _share_sinks(module: nn.Module, path: str, ranks: int, device: Any) -> nn.Parameter:
    """The sinks of this rank's heads, in the place of the model's parameter."""
    owner_path, _, name = path.rpartition(".")
    owner = module.get_submodule(owner_path)
    whole = getattr(owner, name)
    data = torch.empty(whole.numel() // ranks, dtype=whole.dtype, device=device)
    shared = nn.Parameter(data, requires_grad=False)
    loader = sharded_weight_loader(0) if ranks > 1 else default_weight_loader
    set_weight_attrs(shared, {"weight_loader": loader})
    setattr(owner, name, shared)
    return shared


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention interface: q [1, N, T, D], k and v [1, K, T, ...] -> [1, T, N, value width]."""
    layer = layer_of(module)
    tokens, width = query.shape[-2], value.shape[-1]
    if (query.shape[1], key.shape[1]) != (
        layer.num_heads,
        layer.num_kv_heads,
    ):  # it would not check
        raise ValueError(
            f"{layer.layer_name}: {query.shape[1]} query and {key.shape[1]} key heads for a cache of "
            f"{layer.num_heads} and {layer.num_kv_heads}"
        )
    rows = [_rows(x, layer.head_size) for x in (query, key, value)]
    if layer.in_one_call:
        out = attend(*rows, layer.place)
    else:
        out = layer(*(x.flatten(1) for x in rows))
    out = out.view(1, tokens, -1, layer.head_size)
    return (out if width == layer.head_size else out[..., :width]), None


def _rows(x: torch.Tensor, size: int) -> torch.Tensor:
    """[1, N, T, D] -> [T, N, size], heads filled up with zeros, which change no score."""
    x = x.transpose(1, 2)[0]
    return F.pad(x, (0, size - x.shape[-1])) if x.shape[-1] < size else x


ALL_ATTENTION_FUNCTIONS.register(INTERFACE, paged_attention)
