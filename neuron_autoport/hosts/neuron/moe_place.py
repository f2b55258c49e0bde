"""Put a mixture block in NF's form on the meta model: weights in NF's layout, one rank's share, and the norm.

The experts' weights become `nf_gate_up` [E, H, 2, I] and `nf_down` [E, I, H], read from the checkpoint in
that layout; what is added to up goes into its bias. A router that NF runs becomes `nf_router` [H, E].
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from neuron_autoport.hosts.neuron.call import Call
from neuron_autoport.hosts.neuron.decode_step import norm_gamma
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.moe import GAMMA, hold_block, pass_on
from neuron_autoport.hosts.neuron.moe_experts import EXPERTS_STATE, ExpertsState
from neuron_autoport.hosts.neuron.moe_form import MoEForm
from neuron_autoport.hosts.neuron.moe_sizes import MoESizes, decode_limit
from neuron_autoport.hosts.neuron.recipes import Part, Recipe, Share
from neuron_autoport.trace.experts import ExpertsFacts

Recipes = dict[str, Recipe]


def local_sizes(known: ExpertsFacts, ranks: int, by_expert: bool) -> MoESizes:
    """One rank's part of the experts; ranks is 1 where each has all."""
    experts = known.experts // ranks if by_expert else known.experts
    inner = known.intermediate if by_expert else known.intermediate // ranks
    biases = (known.up_bias is not None, known.down_bias is not None)
    return MoESizes(experts, known.hidden, inner, biases)


def why_whole(known: ExpertsFacts, ranks: int, by_expert: bool) -> str | None:
    """Why so many ranks cannot share the experts; None if they can."""
    if by_expert:
        count = known.experts
        return f"{count} experts do not divide by {ranks} ranks" if count % ranks else None
    inner = known.intermediate
    return f"inner size {inner} does not divide by {ranks} ranks" if inner % ranks else None


class Placement:
    """Puts forms on the base model of an assembly.

    Args:
        prefix: path of the base in the whole model. any_size: the sizes kernels take do not matter. recipes:
            those of the new parameters are added here.
    """

    def __init__(
        self,
        base: nn.Module,
        prefix: str,
        call: Call,
        ranks: Ranks,
        any_size: bool,
        recipes: Recipes,
    ) -> None:
        self.base, self.prefix, self.call, self.ranks = base, prefix, call, ranks
        self.any_size, self.recipes = any_size, recipes

    def below(self, path: str) -> str:
        """A path of the whole model in the base model."""
        return path.removeprefix(f"{self.prefix}.")

    def put(self, form: MoEForm, shared: int, by_expert: bool) -> MoEForm:
        """Give a block the form; returns it without what its sizes here do not allow.

        Args:
            shared: ranks that share the experts, 1 if each has all. by_expert: each has some of them.
        """
        known = form.known
        sizes = local_sizes(known, shared, by_expert)
        experts: Any = self.base.get_submodule(self.below(form.experts_path))
        limit = None if self.any_size else decode_limit(sizes)
        if limit is None and form.norm is not None and form.norm.fused:
            limit = f"the norm before the block is in {', '.join(sorted(form.norm.fused))}"
        if limit is not None and form.norm is not None:
            form = replace(form, norm=None, no_decode=limit)
        ranks = self.ranks if shared > 1 else Ranks()
        state = ExpertsState(
            form.top_k, known.experts, sizes, form.between, self.call, by_expert and shared > 1, ranks,
            self.any_size,
        )  # fmt: skip
        self._experts(experts, form, sizes, shared, by_expert)
        object.__setattr__(experts, EXPERTS_STATE, state)
        if form.call is not None and (form.no_router is None or form.norm is not None):
            block = self.base.get_submodule(self.below(form.path))
            self._router(block, form)
            hold_block(block, form)
            if form.norm is not None:
                pass_on(self.base.get_submodule(self.below(form.norm.path)), block)
        return form

    def settle(self, form: MoEForm) -> None:
        """Give the block the weight of the norm before it, when weights are loaded."""
        if form.norm is None:
            return
        norm = self.base.get_submodule(self.below(form.norm.path))
        block = self.base.get_submodule(self.below(form.path))
        gamma = norm_gamma(norm, form.norm.eps, form.known.hidden)
        block.register_buffer(GAMMA, gamma, persistent=False)

    def _experts(
        self, module: nn.Module, form: MoEForm, sizes: MoESizes, shared: int, by_expert: bool
    ) -> None:
        known, path = form.known, form.experts_path
        like = getattr(module, known.up)
        some = Share(0, sizes.experts) if by_expert and shared > 1 else None
        cut = shared > 1 and not by_expert
        transpose, inner = known.layout == "out_in", sizes.inner
        up = _halves(known, f"{path}.{known.up}", transpose, Share(-1, inner) if cut else some, 0.0)
        down = Part(f"{path}.{known.down}", transpose, share=Share(1, inner) if cut else some)
        count, width = sizes.experts, sizes.hidden
        made: dict[str, tuple[Recipe, tuple[int, ...]] | None] = {
            "nf_gate_up": (Recipe(up, dim=2, stacked=True), (count, width, 2, inner)),
            "nf_down": (Recipe((down,)), (count, inner, width)),
            "nf_gate_up_bias": None,
            "nf_down_bias": None,
        }
        if known.up_bias is not None:
            name, offset = f"{path}.{known.up_bias}", known.gate.up_offset
            parts = _halves(known, name, False, Share(-1, inner) if cut else some, offset)
            made["nf_gate_up_bias"] = (Recipe(parts, dim=1, stacked=True), (count, 2, inner))
        if known.down_bias is not None:
            part = Part(f"{path}.{known.down_bias}", share=some)
            scale = 1.0 / shared if cut else 1.0
            made["nf_down_bias"] = (Recipe((part,), scale=scale), (count, width))
        for name in known.parameters:
            delattr(module, name)
        self._register(module, self.below(path), made, like.dtype)

    def _router(self, block: nn.Module, form: MoEForm) -> None:
        router = form.router
        assert router is not None
        weight = _parameter(block, router.weight)
        part = Part(f"{form.path}.{router.weight}", router.weight_layout == "out_in")
        sizes = (form.known.hidden, router.experts)
        made: dict[str, tuple[Recipe, tuple[int, ...]] | None] = {
            "nf_router": (Recipe((part,)), sizes),
            "nf_router_bias": None,
        }
        if router.weight_bias is not None:
            name = f"{form.path}.{router.weight_bias}"
            made["nf_router_bias"] = (Recipe((Part(name),), row=True), (1, router.experts))
        gone = (router.weight, router.weight_bias) if form.no_router is None else ()
        for path in filter(None, gone):  # the block's own code does not run
            owner, _, leaf = path.rpartition(".")
            delattr(block.get_submodule(owner), leaf)
        self._register(block, self.below(form.path), made, weight.dtype)

    def _register(
        self,
        module: nn.Module,
        path: str,
        made: dict[str, tuple[Recipe, tuple[int, ...]] | None],
        dtype: torch.dtype,
    ) -> None:
        for name, given in made.items():
            if given is None:
                module.register_parameter(name, None)
                continue
            recipe, shape = given
            tensor = torch.empty(shape, dtype=dtype, device="meta")
            module.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
            self.recipes[f"model.{path}.{name}"] = recipe


def _parameter(block: nn.Module, path: str) -> torch.Tensor:
    owner, _, leaf = path.rpartition(".")
    found: torch.Tensor = getattr(block.get_submodule(owner), leaf)
    return found


def _halves(
    known: ExpertsFacts, name: str, transpose: bool, share: Share | None, offset: float
) -> tuple[Part, Part]:
    """Gate and up of a packed tensor whose last dimension, once transposed, holds both."""
    inner = known.intermediate
    first, second = range(inner), range(inner, 2 * inner)
    if known.gate.order == "interleaved":
        first, second = range(0, 2 * inner, 2), range(1, 2 * inner, 2)
    if known.gate.order == "up_gate":
        first, second = second, first
    gate = Part(name, transpose, first, share)
    return gate, Part(name, transpose, second, share, plus=offset)
