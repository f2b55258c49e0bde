"""Give each attention layer its state and the fused calls it goes to, and say in the plan what runs where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from neuron_autoport.hosts.neuron.attention import STATE
from neuron_autoport.hosts.neuron.attention_form import (
    AttentionForm,
    NotThis,
    read_attention_form,
)
from neuron_autoport.hosts.neuron.call import Call, LayerState
from neuron_autoport.hosts.neuron.decode_step import decode_limit
from neuron_autoport.hosts.neuron.facts import LayerFacts, attention_limit
from neuron_autoport.hosts.neuron.fused_attention import with_form
from neuron_autoport.hosts.neuron.fused_heads import heads_limit, inside
from neuron_autoport.hosts.neuron.limits import own_calls
from neuron_autoport.hosts.neuron.plan import HostPlan, own_attention

if TYPE_CHECKING:
    from neuron_autoport.hosts.neuron.assembly import Ported, Without

QKV = "NF.qkv_proj"


class AttentionPlacement:
    """The attention layers of one assembly. prefix: of the base model's names in the whole model.

    said: of each layer with projections in one call, by its path: what else could be in that call (`QK-norm and
    RoPE`), and why it is not.
    """

    def __init__(
        self,
        ported: Ported,
        base: nn.Module,
        prefix: str,
        call: Call,
        dtype: torch.dtype,
        without: Without,
        plan: HostPlan,
    ) -> None:
        self.ported, self.base, self.prefix, self.call = ported, base, prefix, call
        self.dtype, self.without, self.plan = dtype, without, plan
        self.said: dict[str, tuple[str, str | None]] = {}

    def put(self, facts: LayerFacts, heads: int, kv_heads: int) -> LayerState:
        """Place one layer. heads, kv_heads: of this rank."""
        limit = attention_limit(facts)
        state = LayerState(facts, self.call, limit, heads, kv_heads)
        module = self.base.get_submodule(facts.path)
        setattr(module, STATE, state)
        name = facts.class_name
        self.plan.add("prefill", name, "flash_attention", limit)
        if limit is not None:
            self.plan.add_own("prefill", name, own_attention(facts, self.dtype))
        self.plan.add("chunked prefill", name, "segmented_attention", limit)
        form, no_form = self._form(facts)
        no_decode = self._no_decode(facts, kv_heads) or no_form
        no_heads = self._no_heads(module, facts, form) or no_form
        fuses = form is not None and bool(inside(form))
        if form is not None and (no_decode is None or (fuses and no_heads is None)):
            with_form(module, form, decode=no_decode is None, heads=fuses and no_heads is None)
        self.plan.add("decode", name, "attention_decode", no_decode)
        self._say_heads(state, form, no_heads)
        return state

    def _form(self, facts: LayerFacts) -> tuple[AttentionForm | None, str | None]:
        """(form, None), or (None, why there is none)."""
        path = f"{self.prefix}.{facts.path}"
        where = self.ported.port.where
        plan = where.get(path)
        if plan is None or plan not in self.ported.generated.classes:
            return None, "the class is not rewritten"
        if (reason := self.without.attention.get(facts.class_name)) is not None:
            return None, reason
        try:
            return read_attention_form(plan, lambda child: where.get(f"{path}.{child}")), None
        except NotThis as no:
            return None, str(no)

    def _no_decode(self, facts: LayerFacts, kv_heads: int) -> str | None:
        """Why decode steps cannot be one call."""
        if self.without.any_size and facts.softcap is None:
            return None
        hidden = int(self.ported.source.text_config.hidden_size)
        return decode_limit(facts, hidden, kv_heads)

    def _no_heads(
        self, module: nn.Module, facts: LayerFacts, form: AttentionForm | None
    ) -> str | None:
        """Why QK-norm and RoPE cannot be in the call of the projections."""
        if form is None or self.without.any_size:
            return None
        columns = int(getattr(module, f"{form.qkv.attr}_weight").shape[-1])
        return heads_limit(form.qkv.in_features, columns)

    def _say_heads(self, state: LayerState, form: AttentionForm | None, reason: str | None) -> None:
        """Where QK-norm and RoPE are, in the phases that run the projections."""
        name = state.facts.class_name
        plan = self.ported.port.where.get(f"{self.prefix}.{state.facts.path}")
        if plan is None or plan not in self.ported.generated.classes:
            return
        what = "QK-norm and RoPE" if form is None else inside(form)
        if what and any(w.shard == "heads" for site in plan.sites for w in site.weights):
            self.said[state.name] = (what, reason)
            for phase in ("prefill",) if state.fused_decode else ("prefill", "decode"):
                self.plan.fold(phase, name, what, QKV, reason)
        for phase, call in own_calls(plan):
            if not state.fused_heads and not (phase == "decode" and state.fused_decode):
                self.plan.add_own(phase, name, call)
