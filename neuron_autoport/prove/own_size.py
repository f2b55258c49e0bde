"""Prove one class at its own sizes, by itself: for what the small model of the same kind does not show."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from neuron_autoport.errors import AutoportError
from neuron_autoport.models.weights import adversarial_
from neuron_autoport.prove.modules import Call, ModuleProof, prove_module
from neuron_autoport.prove.sizes import at_other_sizes
from neuron_autoport.rewrite.emit import Generated
from neuron_autoport.rewrite.plan import ClassPlan

# Larger ones are not proved: copies in float64 are made.
OWN_SIZE_LIMIT = 150_000_000


def prove_at_own_size(model: nn.Module, path: str, plan: ClassPlan, made: Generated) -> ModuleProof:
    """Prove one class of the full model, on random weights and on inputs like those it was traced with.

    Args:
        model: the full model, on meta. path: of the module. plan: its plan. made: has its rewritten class.
    """
    meta = model.get_submodule(path)
    name = type(meta).__name__
    size = sum(p.numel() for p in meta.parameters())
    if size > OWN_SIZE_LIMIT:
        return ModuleProof(
            path, name, None, None, f"{size:,} parameters are too many to prove at full size"
        )
    try:
        module = copy.deepcopy(meta).to_empty(device="cpu").float()
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
        _fill_unset(module)
        adversarial_(module)
        _compute_attention(module)
        call = _real_call(plan.trace.call)
        calls = [call, *at_other_sizes(module, call)]
    except (RuntimeError, AutoportError) as error:
        return ModuleProof(path, name, None, None, f"could not be made real: {error}")
    return prove_module(path, module, plan, made.classes[plan], calls)


def _compute_attention(module: nn.Module) -> None:
    """Let a copy of a traced module compute attention: its children name the leaf it was traced with."""
    for part in module.modules():
        config: Any = getattr(part, "config", None)  # the copy's own
        if hasattr(config, "_attn_implementation"):
            config._attn_implementation = "eager"


def _fill_unset(module: nn.Module) -> None:
    """Parameters held directly by a class of the model's own: ones, as its norms start."""
    for part in module.modules():
        if not callable(getattr(part, "reset_parameters", None)):
            for parameter in part.parameters(recurse=False):
                nn.init.ones_(parameter) if parameter.dim() < 2 else nn.init.normal_(
                    parameter, std=0.05
                )


def _real_call(call: Call) -> Call:
    generator = torch.Generator().manual_seed(1)

    def real(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point():
            return torch.randn(tensor.shape, generator=generator)
        if tensor.dtype is torch.bool:
            return torch.ones(tensor.shape, dtype=torch.bool)
        return torch.arange(tensor.numel()).reshape(tensor.shape).to(tensor.dtype)

    return pytree.tree_map_only(torch.Tensor, real, call)
