"""Experts of a mixture behind transformers' interface: in NF's form where a block has one, else in plain torch.

Transformers dispatches experts classes through a registry. Its own functions choose rows by value,
which neither the meta device nor a compiled graph can do. Here every expert runs on every token and its
result is weighted, with zero for tokens that did not choose it. That is more work, but it lowers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from neuron_autoport.hosts.neuron.moe_experts import EXPERTS_STATE, affinities_of, run_experts

EXPERTS = "neuron_autoport_dense"
# What runs where no NF function does, as plans say it.
DENSE = "every expert runs on every token"


def dense_experts(
    module: Any, hidden: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """sum over experts e of weight[t, e] * expert_e(hidden[t]); hidden [T, H] -> [T, H].

    Where each rank has some of the experts, the sum over those.

    Args:
        top_k_index, top_k_weights: [T, k], the chosen experts of each token and their weights. An index
            that is no expert's chooses none.
    """
    if (state := getattr(module, EXPERTS_STATE, None)) is not None:
        affinities = affinities_of(top_k_index, top_k_weights, state.experts)
        return run_experts(module, hidden, affinities)
    up_name = "gate_up_proj" if module.has_gate else "up_proj"
    first, second = getattr(module, up_name), module.down_proj
    count = first.shape[0]
    call = getattr(module, "neuron_call", None)
    index = top_k_index if call is None else top_k_index - call.rank * count
    index = torch.where((index >= 0) & (index < count), index, torch.full_like(index, count))
    chosen = F.one_hot(index.long(), count + 1)[..., :count].to(top_k_weights.dtype)
    weights = (chosen * top_k_weights[..., None]).sum(1)
    result = torch.zeros_like(hidden)
    for expert in range(count):
        inner = _product(module, hidden, first[expert], up_name, expert)
        inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
        inner = _product(module, inner, second[expert], "down_proj", expert)
        result = result + (inner * weights[:, expert, None]).to(result.dtype)
    return result


def _product(
    module: Any, x: torch.Tensor, weight: torch.Tensor, name: str, expert: int
) -> torch.Tensor:
    y = x @ weight if module.is_transposed else F.linear(x, weight)
    return y + getattr(module, f"{name}_bias")[expert] if module.has_bias else y


ALL_EXPERTS_FUNCTIONS.register(EXPERTS, dense_experts)
