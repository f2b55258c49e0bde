"""All mixture blocks of one assembly: which get NF's form, how the ranks share them, what the plan says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torch import nn

from neuron_autoport.hosts.neuron.call import Call
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.neuron.experts import DENSE
from neuron_autoport.hosts.neuron.moe_form import SWITCHED_OFF, MoEForm, read_forms
from neuron_autoport.hosts.neuron.moe_place import Placement, local_sizes, why_whole
from neuron_autoport.hosts.neuron.moe_sizes import (
    MoESizes,
    decode_limit,
    experts_limit,
    mapping_limit,
)
from neuron_autoport.hosts.neuron.plan import HostPlan
from neuron_autoport.hosts.neuron.recipes import Recipe
from neuron_autoport.hosts.neuron.share_experts import is_experts
from neuron_autoport.port import Port
from neuron_autoport.trace.experts import ExpertsFacts

if TYPE_CHECKING:
    from neuron_autoport.hosts.neuron.assembly import Without

MAPPING, CTE, TKG = "build_blockwise_mapping", "moe_cte", "moe_block_tkg"


def decode_fits(ranks: int, by_expert: bool) -> Callable[[ExpertsFacts], bool]:
    """Does `moe_block_tkg` take experts on so many ranks?"""

    def fits(known: ExpertsFacts) -> bool:
        shared = ranks if why_whole(known, ranks, by_expert) is None else 1
        return decode_limit(local_sizes(known, shared, by_expert)) is None

    return fits


class Blocks:
    """The mixture blocks of a base model, by their path in the whole model.

    put_here: form of each that has one, and its sizes on this rank.
    """

    def __init__(
        self,
        port: Port,
        base: nn.Module,
        prefix: str,
        call: Call,
        ranks: Ranks,
        recipes: dict[str, Recipe],
    ) -> None:
        self.base, self.prefix, self.ranks = base, prefix, ranks
        self.call, self.recipes = call, recipes
        self.forms, self.reasons = read_forms(port)
        self.put_here: dict[str, tuple[MoEForm, MoESizes]] = {}
        self.placement: Placement | None = None

    def put(self, without: Without, by_expert: bool, plan: HostPlan) -> set[str]:
        """Give each block its form; paths below the base of modules whose results the ranks must sum.

        Raises:
            NeuronHostError: expert parallel, and the experts of a block do not divide.
        """
        self.placement = Placement(
            self.base, self.prefix, self.call, self.ranks, without.any_size, self.recipes
        )
        sums = set()
        for path, form in self.forms.items():
            if not path.startswith(f"{self.prefix}."):
                continue
            if form.class_name in without.experts:
                self.reasons[path] = without.experts[form.class_name]
                continue
            shared = self._shared(form, without, by_expert, plan)
            form = self.placement.put(form, shared, by_expert)
            sizes = local_sizes(form.known, shared, by_expert)
            self.put_here[path] = (form, sizes)
            for phase, call, reason in self.calls(form, sizes):
                plan.add(phase, form.class_name, call, reason)
            if shared > 1:
                sums.add(self.placement.below(form.experts_path))
        return sums

    def _shared(self, form: MoEForm, without: Without, by_expert: bool, plan: HostPlan) -> int:
        """How many ranks share the experts of a block: all, or 1."""
        if self.ranks.size == 1:
            return 1
        reason = without.sharing.get(form.class_name)
        reason = reason or why_whole(form.known, self.ranks.size, by_expert)
        if reason is None:
            return self.ranks.size
        if by_expert:
            raise refuse(f"expert parallel: {form.experts_path}: {reason}")
        plan.replicated[form.class_name] = reason
        return 1

    @staticmethod
    def calls(
        form: MoEForm, sizes: MoESizes, tokens: int | None = None
    ) -> Iterator[tuple[str, str, str | None]]:
        """(phase, NF function, why it does not run in a kernel). tokens: of a prefill, if they matter."""
        router = form.no_router or SWITCHED_OFF
        yield "prefill", "router", router
        reason = experts_limit(sizes)
        if reason is None and tokens is not None:
            reason = mapping_limit(sizes.experts, tokens)
        for call in (MAPPING, CTE):
            yield "prefill", call, None if reason is None else f"{reason}; {DENSE}"
        yield "decode", TKG, None if form.norm is not None else f"{form.no_decode}; {DENSE}"

    def left(self, base: nn.Module) -> dict[str, str]:
        """Experts classes that keep transformers' layout, and why."""
        reasons = {
            f"{path}.": reason for path, reason in self.reasons.items() if path not in self.put_here
        }
        found: dict[str, str] = {}
        for below, module in base.named_modules():
            path = f"{self.prefix}.{below}"
            if is_experts(module):
                why = next((r for p, r in reasons.items() if path.startswith(p)), "")
                found[type(module).__name__] = f"{why}; {DENSE}" if why else DENSE
        return found

    def settle(self) -> None:
        """What follows from the weights, once they are loaded."""
        for form, _ in self.put_here.values():
            assert self.placement is not None
            self.placement.settle(form)
