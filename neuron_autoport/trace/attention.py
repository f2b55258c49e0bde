"""The attention interface as one leaf of a trace, with all its arguments.

Transformers dispatches attention through a registry of functions. While a model is traced its
configuration names the implementation registered here, which records one node and returns an empty
result of the right shape. Registering a name changes no class and no other implementation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

TRACE_ATTENTION = "neuron_autoport_trace"


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> torch.Tensor:
    """Shape of softmax(q k^T) v: query [B, N, S, D], value [B, Nkv, S, Dv] -> [B, S, N, Dv]."""
    batch, heads, length, _ = query.shape
    return query.new_empty(batch, length, heads, value.shape[-1])


def _trace_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    from neuron_autoport.trace.tracer import active_session

    session = active_session()
    if session is None:
        if (
            query.device.type != "meta"
        ):  # the leaf computes nothing: its result is memory as it was found
            raise RuntimeError(f"`{TRACE_ATTENTION}` stands for attention in a trace only")
        return attention(query, key, value, attention_mask, **kwargs), None
    named = {k: v for k, v in kwargs.items() if v is not None}
    return session.leaf_call(attention, (query, key, value, attention_mask), named), None


ALL_ATTENTION_FUNCTIONS.register(TRACE_ATTENTION, _trace_attention)
