"""Turn one module instance into its rewritten form: fused weights in, replaced children out.

Weights become parameters `[in, out]`, biases `[1, out]`; the instance's class becomes the generated one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from neuron_autoport.fused import FusedWeight, WeightPart, plain_attributes
from neuron_autoport.rewrite.emit import Generated
from neuron_autoport.rewrite.plan import ClassPlan


def install(module: nn.Module, plan: ClassPlan, rewritten: type[nn.Module]) -> None:
    """Rewrite `module` in place; its checkpoint values are kept, moved to the fused weights."""
    for site in plan.sites:
        for weight in site.weights:
            _add_weight(module, weight)
    for path in sorted({p for site in plan.sites for p in site.modules}):
        owner, _, name = path.rpartition(".")
        delattr(module.get_submodule(owner), name)
    module.__class__ = rewritten


def install_all(model: nn.Module, where: Mapping[str, ClassPlan], made: Generated) -> None:
    """Rewrite in place every module of `model` that a plan of its own kind was made for.

    Args:
        where: the plans, by the path of a module below `model`.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, plan in where.items():
        module = modules.get(path)
        # One module may stand under two paths; it is rewritten once.
        if module is not None and plan in made.classes and type(module) is plan.trace.module_class:
            install(module, plan, made.classes[plan])


def _add_weight(module: nn.Module, weight: FusedWeight) -> None:
    with torch.no_grad():
        columns = [_columns(module, part) for part in weight.parts]
        matrix = torch.cat(columns, dim=1).contiguous()
    module.register_parameter(f"{weight.attr}_weight", nn.Parameter(matrix, requires_grad=False))
    if weight.has_bias:
        bias = torch.cat([_bias(module, part) for part in weight.parts])[None]
        module.register_parameter(f"{weight.attr}_bias", nn.Parameter(bias, requires_grad=False))
    for name, value in plain_attributes(weight, weight.sizes).items():
        setattr(module, name, value)


def _columns(module: nn.Module, part: WeightPart) -> torch.Tensor:
    """Columns of the [in, out] weight that come from one module."""
    weight = getattr(module.get_submodule(part.module), part.weight)
    matrix = weight.t() if part.layout == "out_in" else weight
    return matrix[:, part.index]


def _bias(module: nn.Module, part: WeightPart) -> torch.Tensor:
    owner = module.get_submodule(part.module)
    if part.bias is None:  # a part without a bias beside one that has it adds zero
        like = getattr(owner, part.weight)
        return like.new_zeros(part.width)
    with torch.no_grad():
        return getattr(owner, part.bias)[part.index].clone()
