"""Put a hosted model together on the meta device: rewritten classes, shares of the ranks, recipes, plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from neuron_autoport.hosts.neuron.attention import NEURON_ATTENTION
from neuron_autoport.hosts.neuron.attention_place import AttentionPlacement
from neuron_autoport.hosts.neuron.buffers import persistent_to_parameters
from neuron_autoport.hosts.neuron.call import Call, LayerState
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.neuron.facts import LayerFacts
from neuron_autoport.hosts.neuron.fused_attention import settle_norms
from neuron_autoport.hosts.neuron.head import VocabHead
from neuron_autoport.hosts.neuron.install import install_sharded
from neuron_autoport.hosts.neuron.limits import own_calls, projection_limits
from neuron_autoport.hosts.neuron.loading import Loading
from neuron_autoport.hosts.neuron.model import Parts
from neuron_autoport.hosts.neuron.moe_blocks import Blocks
from neuron_autoport.hosts.neuron.norm_apart import MLP, norm_before
from neuron_autoport.hosts.neuron.options import ALONE, Served
from neuron_autoport.hosts.neuron.plan import HostPlan
from neuron_autoport.hosts.neuron.probe import base_model, use_experts
from neuron_autoport.hosts.neuron.recipes import Part, Recipe, Share, whole
from neuron_autoport.hosts.neuron.rope import check_rope, freeze_rope
from neuron_autoport.hosts.neuron.sampling import Sampling
from neuron_autoport.hosts.neuron.sequence import keep_whole
from neuron_autoport.hosts.neuron.share_experts import (
    is_experts,
    share_experts,
    why_whole_experts,
)
from neuron_autoport.hosts.neuron.sharing import (
    rank_heads,
    share_vocabulary,
    sum_results,
    why_whole,
)
from neuron_autoport.hosts.weights.names import ModelNames
from neuron_autoport.models.build import meta_model
from neuron_autoport.models.source import ModelSource
from neuron_autoport.port import Port
from neuron_autoport.rewrite.emit import Generated
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.trace.head import Head, UnknownHead, read_head


@dataclass(frozen=True, eq=False)
class Ported:
    """A model that is to be hosted: its configuration, plan and rewritten classes, and its layers."""

    source: ModelSource
    port: Port
    generated: Generated
    layers: list[LayerFacts]


@dataclass(frozen=True)
class Without:
    """What the self-test found not to hold, by class name and with the reason.

    attention: attention classes whose fused form fails. experts: mixture blocks whose NF form does. any_size: the
    sizes that kernels take do not matter; for trying the forms on a small model.
    """

    attention: dict[str, str] = field(default_factory=dict)
    sharing: dict[str, str] = field(default_factory=dict)
    experts: dict[str, str] = field(default_factory=dict)
    any_size: bool = False


class Assembly:
    """Puts a hosted model together on the meta device."""

    def __init__(
        self,
        ported: Ported,
        ranks: Ranks,
        dtype: torch.dtype,
        without: Without,
        served: Served = ALONE,
    ) -> None:
        self.ported, self.ranks, self.dtype, self.without = ported, ranks, dtype, without
        self.served, self.by_expert = served, served.by_expert
        self.recipes: dict[str, Recipe] = {}
        self.plan, self.call = HostPlan(), Call()
        self.shared: set[str] = set()

    def make(self, cls: type[Any], neuron_config: Any) -> Any:
        """An instance of `cls`."""
        source = self.ported.source
        head = read_vocabulary_head(self.ported.port, source.name)
        model = meta_model(source, dtype=self.dtype, attn_implementation=NEURON_ATTENTION)
        use_experts(model)
        check_rope(model, source.name)
        names = ModelNames.of(model)
        base, self.prefix = base_model(model), model.base_model_prefix
        if base is model:
            raise refuse(f"{source.name}: the model and its head are one module", source.name)
        self.install(base)
        self.blocks = blocks = Blocks(
            self.ported.port, base, self.prefix, self.call, self.ranks, self.recipes
        )
        self.shared |= blocks.put(self.without, self.by_expert, self.plan)
        persistent_to_parameters(base)
        self.attention = AttentionPlacement(
            self.ported, base, self.prefix, self.call, self.dtype, self.without, self.plan
        )
        states = [self.attention.put(facts, *self.heads(facts)) for facts in self.ported.layers]
        for name, reason in blocks.left(base).items():
            for phase in ("prefill", "decode"):
                self.plan.add(phase, name, "experts", reason)
        if self.ranks.size > 1:
            self.share_all_experts(base)
            self.share_embedding(model, base)
            self.sum_shared(base)
        vocab = self.vocab_head(head, names)
        for name, _ in base.named_parameters():
            self.recipes.setdefault(f"model.{name}", whole(f"{self.prefix}.{name}"))
        loading = Loading(names, self.recipes, self.ranks, lambda: _settle(base, states, blocks))
        sampling = Sampling.of(neuron_config, self.ranks)
        return cls(
            Parts(
                base=base,
                head=vocab,
                layers=states,
                call=self.call,
                ranks=self.ranks,
                sampling=sampling,
                loading=loading,
                host_plan=self.plan,
                dtype=self.dtype,
                sequence_parallel=self.served.sequence_parallel,
            )
        )

    def install(self, base: nn.Module) -> None:
        """Rewrite every planned module; note which ones the ranks share."""
        attention = {facts.path for facts in self.ported.layers}  # has a placement of its own
        for path, plan in self.ported.port.where.items():
            rewritten = self.ported.generated.classes.get(plan)
            if rewritten is None or not path.startswith(f"{self.prefix}."):
                continue
            below = path.removeprefix(f"{self.prefix}.")
            module = base.get_submodule(below)
            if type(module) is not plan.trace.module_class:
                continue
            split = self.split(plan)
            name = plan.trace.module_class.__name__
            for phase, function, reason in projection_limits(plan, split):
                self.plan.add(phase, name, function, reason)
            self.say_norm(path, name)
            for phase, call in own_calls(plan) if below not in attention else ():
                self.plan.add_own(phase, name, call)
            if split > 1:
                self.shared.add(below)
            places = (f"model.{below}", path)
            install_sharded(module, plan, rewritten, places, split, self.recipes)
            if split > 1:
                self.share_sinks(module, plan, places)

    def say_norm(self, path: str, name: str) -> None:
        """Why the norm before an MLP is not in its call."""
        plans = self.ported.port.where
        calls = {f for phase, f, _ in projection_limits(plans[path], 1)}
        found = norm_before(plans, path) if "mlp" in calls else None
        if found is not None:
            for phase in ("prefill", "decode"):
                self.plan.fold(phase, name, found[0], MLP, found[1])

    def split(self, plan: ClassPlan) -> int:
        """How many ranks share a class: all, or 1."""
        if self.ranks.size == 1 or not any(s.weights for s in plan.sites):
            return 1
        name = plan.trace.module_class.__name__
        reason = self.without.sharing.get(name) or why_whole(plan, self.ranks.size)
        if reason is not None:
            self.plan.replicated[name] = reason
        return self.ranks.size if reason is None else 1

    def share_sinks(self, module: nn.Module, plan: ClassPlan, places: tuple[str, str]) -> None:
        """Cut the one logit per head that an attention class gives its interface."""
        for op in plan.graph.ops:
            sinks = op.attrs.get("s_aux") if op.name == "attention" else None
            if sinks is None or sinks.name != "param":
                continue
            whole_one = getattr(module, sinks.target)
            size = whole_one.shape[0] // self.ranks.size
            cut = torch.empty(size, dtype=whole_one.dtype, device="meta")
            module.register_parameter(sinks.target, nn.Parameter(cut, requires_grad=False))
            part = Part(f"{places[1]}.{sinks.target}", share=Share(0, size))
            self.recipes[f"{places[0]}.{sinks.target}"] = Recipe((part,))

    def share_all_experts(self, base: nn.Module) -> None:
        """Give each rank some of the experts, or a part of each."""
        ranks = self.ranks.size
        for path, module in base.named_modules():
            if not is_experts(module):
                continue
            name = type(module).__name__
            reason = self.without.sharing.get(name)
            reason = reason or why_whole_experts(module, ranks, self.by_expert)
            if reason is not None and self.by_expert:
                raise refuse(f"expert parallel: {path} ({name}): {reason}", self.ported.source.name)
            if reason is not None:
                self.plan.replicated[name] = reason
                continue
            call = self.call if self.by_expert else None
            places = (f"model.{path}", f"{self.prefix}.{path}")
            share_experts(module, places, ranks, call, self.recipes)
            self.shared.add(path)

    def sum_shared(self, base: nn.Module) -> None:
        """Put the ranks' parts together; where each has its own tokens, attention that is whole sees all."""
        for below in self.shared:
            sum_results(base.get_submodule(below), self.call, self.ranks)
        if not self.served.sequence_parallel:
            return
        if (reason := self.plan.replicated.get("embedding")) is not None:
            raise refuse(f"sequence parallel: the token embedding is not shared: {reason}")
        for path in {facts.path for facts in self.ported.layers} - self.shared:
            keep_whole(base.get_submodule(path), self.call, self.ranks)

    def heads(self, facts: LayerFacts) -> tuple[int, int]:
        """Query and key/value heads of an attention layer on this rank."""
        if facts.path not in self.shared:
            return facts.heads, facts.kv_heads
        return rank_heads(facts.heads, facts.kv_heads, self.ranks.size)

    def share_embedding(self, model: Any, base: nn.Module) -> None:
        """Cut the token embedding by rows, if it is one that looks rows up."""
        embedding = model.get_input_embeddings()
        if not isinstance(embedding, nn.Embedding):
            self.plan.replicated["embedding"] = f"a {type(embedding).__name__} looks nothing up"
            return
        path = next(n for n, m in base.named_modules() if m is embedding)
        rows = share_vocabulary(embedding, self.call, self.ranks)
        part = Part(f"{self.prefix}.{path}.weight", share=Share(0, rows))
        self.recipes[f"model.{path}.weight"] = Recipe((part,))

    def vocab_head(self, head: Head, names: ModelNames) -> VocabHead:
        """This rank's part of the head."""
        weight = f"{head.module}.weight"
        vocab, width = names.tensors[weight].shape
        bias = f"{head.module}.bias" in names.tensors
        made = VocabHead(head, vocab, width, bias, self.dtype, self.ranks)
        share = Share(0, made.rows) if self.ranks.size > 1 else None
        self.recipes["lm_head.weight"] = Recipe((Part(weight, share=share),))
        if bias:
            self.recipes["lm_head.bias"] = Recipe((Part(f"{head.module}.bias", share=share),))
        return made


def read_vocabulary_head(port: Port, where: str) -> Head:
    """What stands between the last hidden state and the logits; a refusal if that is unknown."""
    try:
        return read_head(port.trace)
    except UnknownHead as error:
        raise refuse(f"{where}: logits: {error}", where) from None


def _settle(base: nn.Module, states: list[LayerState], blocks: Blocks) -> None:
    """What follows from weights and buffers, once they have their values."""
    freeze_rope(base)
    blocks.settle()
    for state in states:
        if state.form is not None:
            settle_norms(base.get_submodule(state.facts.path), state.form)
