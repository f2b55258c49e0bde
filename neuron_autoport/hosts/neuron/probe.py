"""What each attention layer of a model does, read from one run on the meta device.

Transformers dispatches attention and mask making through two registries. The model runs once with
functions of our own in both: the mask function gives a marker and keeps the rule it stands for, the
attention function notes layer, head counts and arguments. The window of a layer is then read from
the rule of its mask, at positions up to a million, not from any configuration field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from neuron_autoport.errors import ModelError
from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.neuron.experts import EXPERTS
from neuron_autoport.hosts.neuron.facts import LayerFacts
from neuron_autoport.hosts.neuron.rope import check_rope, freeze_rope
from neuron_autoport.models.build import meta_model
from neuron_autoport.models.source import ModelSource

PROBE = "neuron_autoport_probe"
# Arguments of the interface that do not change the result in inference: dropout is zero there, and what
# is visible comes from the mask.
_HARMLESS = frozenset(
    {"dropout", "is_causal", "sliding_window", "position_ids", "use_cache", "cache_position"}
    | {"output_attentions", "output_hidden_states", "output_router_logits", "layer_idx"}
    | {"position_embeddings", "return_dict", "past_key_values", "num_items_in_batch"}
)
_MEANT = frozenset({"scaling", "softcap", "s_aux"})
_BATCH, _TOKENS = 2, 7
_QUERIES = (0, 1, 2, 3, 4, 6, 7, 11, 63, 64, 127, 128, 129, 511, 1000, 1023, 1024, 4095, 4096, 4097)
_FAR = (8191, 8192, 32767, 32768, 40000, 131072, 262144, 1_000_000)


@dataclass
class _Seen:
    """What one run noted. masks: markers with the rule each stands for."""

    paths: dict[int, str]
    layers: list[LayerFacts]
    masks: list[tuple[torch.Tensor, Callable[..., Any]]]
    where: str


_active: list[_Seen] = []


def read_layers(source: ModelSource | PretrainedConfig) -> list[LayerFacts]:
    """The attention layers of a model in the order they run.

    Raises:
        NeuronHostError: a layer the runner's cache or our attention cannot serve, by name and reason.
    """
    where = source.name if isinstance(source, ModelSource) else source.model_type
    try:
        model = meta_model(source, attn_implementation=PROBE)
    except ModelError as error:
        raise refuse(f"{where}: its attention cannot be replaced: {error.what}", where) from None
    use_experts(model)
    check_rope(model, where)
    freeze_rope(model)  # it would look at the positions, which have no values here
    base = base_model(model)
    seen = _Seen({id(m): n for n, m in base.named_modules()}, [], [], where)
    ids = torch.zeros(_BATCH, _TOKENS, dtype=torch.long, device="meta")
    given = torch.ones(_BATCH, _TOKENS, dtype=torch.long, device="meta")
    _active.append(seen)
    try:
        with torch.no_grad():
            base(input_ids=ids, attention_mask=given, use_cache=False)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise refuse(f"{where}: its layers cannot be read without running it: {reason}") from error
    finally:
        _active.pop()
    if not seen.layers:
        raise refuse(f"{where}: no layer calls the attention interface, so none can use the cache")
    return seen.layers


def base_model(model: Any) -> nn.Module:
    """The model without its head."""
    base = getattr(model, model.base_model_prefix, None) if model.base_model_prefix else None
    return base if isinstance(base, nn.Module) else model


def use_experts(model: Any) -> None:
    """Make the model's experts classes, if it has any, run through our interface."""
    if (
        hasattr(model, "_can_set_experts_implementation")
        and model._can_set_experts_implementation()
    ):
        model.config._experts_implementation = EXPERTS
        for part in model.modules():
            config = getattr(part, "config", None)
            if isinstance(config, PretrainedConfig):
                config._experts_implementation_internal = EXPERTS


def _probe_mask(mask_function: Callable[..., Any], **kwargs: Any) -> torch.Tensor:
    shape = (kwargs["batch_size"], 1, kwargs["q_length"], kwargs["kv_length"])
    marker = torch.empty(shape, dtype=torch.bool, device="meta")
    if _active:
        _active[-1].masks.append((marker, mask_function))
    return marker


def _probe_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    batch, heads, length, _ = query.shape
    if _active:
        _note(_active[-1], module, query, key, value, attention_mask, kwargs)
    return query.new_empty(batch, length, heads, value.shape[-1]), None


def _note(
    seen: _Seen,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    kwargs: dict[str, Any],
) -> None:
    path, name = seen.paths.get(id(module), ""), type(module).__name__
    place = f"{seen.where}: {path} ({name})"
    if any(f.path == path for f in seen.layers):
        raise refuse(f"{place} attends twice in one pass; a layer has one cache", seen.where)
    if query.shape[2] != _TOKENS or key.shape[2] != _TOKENS:
        raise refuse(
            f"{place} attends with {query.shape[2]} queries to {key.shape[2]} keys for {_TOKENS} "
            "tokens; the runner's cache holds one key per token",
            seen.where,
        )
    size, value_size = int(query.shape[-1]), int(value.shape[-1])
    if value_size != size:
        raise refuse(
            f"{place}: keys are {size} wide and values {value_size} (latent attention); the runner's "
            "cache holds keys and values of one width",
            seen.where,
        )
    for argument, given in kwargs.items():
        if given is not None and argument not in _HARMLESS | _MEANT:
            raise refuse(f"{place} gives its attention `{argument}`, which is unknown", seen.where)
    scale, cap = kwargs.get("scaling"), kwargs.get("softcap")
    seen.layers.append(
        LayerFacts(
            path,
            name,
            int(query.shape[1]),
            int(key.shape[1]),
            size,
            _window(mask, seen, place),
            size**-0.5 if scale is None else float(scale),
            float(cap) if cap else None,
            kwargs.get("s_aux") is not None,
        )
    )


def _window(mask: Any, seen: _Seen, place: str) -> int | None:
    """The window of the rule a mask stands for; refuses any rule that is not causal with a window."""
    rule = next((f for m, f in seen.masks if mask is m or getattr(mask, "_base", None) is m), None)
    if rule is None:
        what = "no mask" if mask is None else "a mask of its own making"
        raise refuse(
            f"{place} attends with {what}; only masks of transformers are known", seen.where
        )
    window: int | None = None
    zero = torch.zeros((), dtype=torch.long)
    for query in (*_QUERIES, *_FAR):
        key = torch.arange(query + 8)
        try:
            shown = rule(zero, zero, torch.tensor(query), key).expand(key.shape)
            visible = torch.nonzero(shown).flatten().tolist()
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise refuse(f"{place}: its mask depends on the batch: {error}", seen.where) from error
        first = visible[0] if visible else query + 1
        if visible != list(range(first, query + 1)):
            raise refuse(f"{place}: its mask is not causal with a window", seen.where)
        width = query - first + 1
        if first > 0 and window is None:
            window = width
        if width != min(query + 1, window or query + 1):
            raise refuse(f"{place}: its window is not the same for every position", seen.where)
    return window


ALL_ATTENTION_FUNCTIONS.register(PROBE, _probe_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(PROBE, _probe_mask)
