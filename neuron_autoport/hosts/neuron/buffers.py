"""Buffers of a model built on the meta device: made real without loading or building it again.

Persistent buffers are checkpoint tensors and become parameters, because the runner's loader reads
parameters only. The others (rotary frequencies, scales) are what the model's own `_init_weights` writes
into them; one it does not write stays unknown and is refused by name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from neuron_autoport.hosts.neuron.errors import refuse


def persistent_to_parameters(model: nn.Module) -> None:
    """Make every persistent buffer a parameter of the same name."""
    for module in model.modules():
        for name in [n for n in module._buffers if n not in module._non_persistent_buffers_set]:
            tensor = module._buffers.pop(name)
            if tensor is not None:
                module.register_parameter(name, nn.Parameter(tensor, requires_grad=False))


def fill_buffers(model: nn.Module, device: torch.device | str, where: str) -> None:
    """Give every meta buffer its value, on `device`. Parameters are not touched.

    Raises:
        NeuronHostError: a buffer whose value the model's initialisation does not give.
    """
    owners: dict[int, PreTrainedModel] = {}
    for owner in (m for m in model.modules() if isinstance(m, PreTrainedModel)):
        owners.update({id(m): owner for m in owner.modules()})
    for path, module in model.named_modules():
        names = [n for n, b in module._buffers.items() if b is not None and b.is_meta]
        if not names:
            continue
        owner = owners.get(id(module))
        for name in names:
            module._buffers[name] = _unset(module._buffers[name])
        if owner is not None:
            with torch.no_grad(), torch.device("cpu"), _Kept(module):
                owner._init_weights(module)
        for name in names:
            buffer = module._buffers[name]
            if buffer is None or torch.equal(
                buffer.nan_to_num(7.5), _unset(buffer).nan_to_num(7.5)
            ):
                raise refuse(f"the value of the buffer {path}.{name} is not known", where)
            module._buffers[name] = buffer.to(device)


def _unset(like: Any) -> torch.Tensor:
    """A tensor with values no initialisation writes everywhere."""
    odd = float("nan") if like.is_floating_point() else 77
    return torch.full(like.shape, odd, dtype=like.dtype, device="cpu")


class _Kept:
    """Leaves a module's parameters as they are while it is initialised."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.kept = dict(module._parameters)

    def __enter__(self) -> None:
        for name, tensor in self.kept.items():
            if tensor is not None:
                self.module._parameters[name] = nn.Parameter(
                    torch.empty_like(tensor, device="meta"), requires_grad=False
                )

    def __exit__(self, *_: object) -> None:
        self.module._parameters.update(self.kept)
