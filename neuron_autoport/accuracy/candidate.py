"""Variants of one model: the reference in any dtype, and its port with any set of rules.

A variant is built unit by unit from the same float32 weights, so reference and port differ in nothing but
the rewrite, and a whole model of either kind is these units put together.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from neuron_autoport.accuracy.weights import Weights
from neuron_autoport.errors import AutoportError
from neuron_autoport.models.build import meta_model
from neuron_autoport.port import Port, replan
from neuron_autoport.rewrite.emit import Generated, generate
from neuron_autoport.rewrite.install import install_all
from neuron_autoport.rewrite.plan import ClassPlan

# What a host may change on a unit after the rewrite: called with the unit's path and module.
Adjust = Callable[[str, nn.Module], None]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A port to be judged: its plan, its generated classes, and what a host does beside.

    adjust: applied to every unit of the port after the rewrite, never to the reference. It stands for
    what a host changes (an attention backend, a weight loader); tests inject faults through it.
    """

    port: Port
    generated: Generated
    adjust: Adjust | None = None

    def without(self, pairs: frozenset[str], rules: Any) -> Candidate:
        """The same port planned again without these `Class:rule` pairs.

        A smaller rule that would take the place of one switched off is left out, too: what is asked
        is whether the rest is right.
        """
        known, off = set(self.pairs()), self.port.without | pairs
        while True:
            port = replan(self.port, rules, off)
            part = Candidate(port, generate(port.plans, "a part of the port"), self.adjust)
            new = set(part.pairs()) - known
            if not new:
                return part
            off |= new

    def rewritten(self, path: str) -> ClassPlan | None:
        """The plan of the module at `path`, if it is rewritten."""
        plan = self.port.where.get(path)
        return plan if plan is not None and plan in self.generated.classes else None

    def changes(self, path: str) -> bool:
        """Can the unit at `path` differ from the reference's at all?"""
        return self.adjust is not None or bool(self.rules_at(path))

    def rules_at(self, path: str) -> tuple[str, ...]:
        """`Class:rule` of every site at or below `path`."""
        inside = f"{path}." if path else ""
        found = dict.fromkeys(
            f"{p.trace.module_class.__name__}:{s.rule.name}"
            for where, p in self.port.where.items()
            if where == path or where.startswith(inside)
            for s in p.sites
            if p in self.generated.classes
        )
        return tuple(found)

    def pairs(self) -> tuple[str, ...]:
        """Every `Class:rule` pair of the port."""
        return self.rules_at("")


@dataclass(eq=False)
class Builder:
    """Makes units and models of the reference and of a candidate.

    weights: the reference's. dtype: what `low` units are in; `truth` units are in the next higher one, on
    weights as rounded to `dtype`, so that only the computation is compared.
    """

    weights: Weights
    dtype: torch.dtype
    _dtypes: dict[str, torch.dtype] = field(default_factory=dict)

    def __post_init__(self) -> None:
        like = meta_model(self.weights.source, dtype=self.dtype, attn_implementation="eager")
        tensors = like.state_dict(keep_vars=True)
        self._dtypes = {n: t.dtype for n, t in tensors.items() if t.is_floating_point()}

    @property
    def higher(self) -> torch.dtype:
        return torch.float64 if self.dtype is torch.float32 else torch.float32

    def truth(self, path: str) -> nn.Module:
        """The reference's unit in the higher precision, on rounded weights."""
        made = self.weights.unit(path)
        self._round(made, path)
        return _widen(made, self.higher)

    def reference(self, path: str) -> nn.Module:
        """The reference's unit in `dtype`."""
        made = self.weights.unit(path)
        self._round(made, path)
        return made

    def ported(self, path: str, candidate: Candidate) -> nn.Module:
        """The candidate's unit in `dtype`."""
        made = self.reference(path)
        return self.rewrite(made, path, candidate)

    def rewrite(self, unit: nn.Module, path: str, candidate: Candidate) -> nn.Module:
        """Rewrite a unit in place."""
        before = f"{path}."
        below = {
            where[len(before) :]: plan
            for where, plan in candidate.port.where.items()
            if f"{where}.".startswith(before)
        }
        install_all(unit, below, candidate.generated)
        if candidate.adjust is not None:
            candidate.adjust(path, unit)
        return unit

    def model_fp32(self) -> nn.Module:
        """The reference as loaded: float32, weights not rounded."""
        if not self.weights.layered:
            return self.weights.model
        model = copy.deepcopy(self.weights.model)
        for path in self.weights.units:
            _stream(model, path, partial(self.weights.unit, path))
        return model

    def model(self, candidate: Candidate | None = None, *, truth: bool = False) -> nn.Module:
        """A whole model: the reference's, or the candidate's.

        Args:
            candidate: None for the reference. truth: in the higher precision.

        In a layered run a unit is built when it is called and given up after the call.
        """
        model = copy.deepcopy(self.weights.model)
        for path in self.weights.units:
            if self.weights.layered:
                _stream(model, path, partial(self._built, path, candidate, truth))
                continue
            unit = model.get_submodule(path)
            self._round(unit, path)
            if truth:
                _widen(unit, self.higher)
            elif candidate is not None:
                self.rewrite(unit, path, candidate)
        return self._finish(model, candidate, truth)

    def _built(self, path: str, candidate: Candidate | None, truth: bool) -> nn.Module:
        if truth:
            return self.truth(path)
        return self.reference(path) if candidate is None else self.ported(path, candidate)

    def _finish(self, model: nn.Module, candidate: Candidate | None, truth: bool) -> nn.Module:
        """What lies in no unit: parameters of containers, tables, and rewritten containers."""
        inside = tuple(f"{u}." for u in self.weights.units)
        for name, tensor in model.named_parameters():
            if not name.startswith(inside) and not tensor.is_meta:
                tensor.data = tensor.data.to(self._dtypes.get(name, tensor.dtype))
                if truth:
                    tensor.data = tensor.data.to(self.higher)
        if truth:
            for module in model.modules():
                _widen_buffers(module, self.higher)
        if candidate is not None and not truth:
            outside = {
                path: plan
                for path, plan in candidate.port.where.items()
                if not f"{path}.".startswith(inside) and candidate.rewritten(path) is not None
            }
            for path, plan in outside.items():
                if self.weights.layered and any(s.weights for s in plan.sites):
                    raise AutoportError(
                        f"{path or 'the model'} holds rewritten weights outside its layers: it cannot "
                        "be processed layer by layer",
                        path,
                        "autoport validate MODEL --memory GIB with more memory",
                    )
            install_all(model, outside, candidate.generated)
        return model

    def _round(self, unit: nn.Module, path: str) -> None:
        """Give each tensor the dtype it has when a checkpoint is loaded in `dtype`."""
        for name, tensor in unit.state_dict(keep_vars=True).items():
            wanted = self._dtypes.get(f"{path}.{name}")
            if wanted is not None and tensor.dtype is not wanted:
                tensor.data = tensor.data.to(wanted)


def _widen(unit: nn.Module, dtype: torch.dtype) -> nn.Module:
    return unit.to(dtype)


def _widen_buffers(module: nn.Module, dtype: torch.dtype) -> None:
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.is_floating_point():
            module._buffers[name] = buffer.to(dtype)


def _stream(model: nn.Module, path: str, build: Callable[[], nn.Module]) -> None:
    """Let the unit at `path` be built when it is called."""
    shell = model.get_submodule(path)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return build().forward(*args, **kwargs)

    # An instance attribute: hooks of the shell still run around it.
    object.__setattr__(shell, "forward", forward)


def layer_number(path: str) -> int | None:
    """The first number in a module's path: `model.layers.7.mlp` is of layer 7."""
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)
    return int(found[1]) if found else None
