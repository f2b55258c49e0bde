"""The rows of a serving table: what every call of a hosted model runs in, by phase and bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from neuron_autoport.hosts.neuron.assembly import Assembly, Ported, Without
from neuron_autoport.hosts.neuron.attention import SEGMENTS
from neuron_autoport.hosts.neuron.attention_place import QKV
from neuron_autoport.hosts.neuron.call import LayerState
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.facts import LayerFacts, attention_limit
from neuron_autoport.hosts.neuron.limits import MOST_TOKENS, site_limit
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from neuron_autoport.hosts.neuron.moe_blocks import Blocks
from neuron_autoport.hosts.neuron.moe_form import MoEForm
from neuron_autoport.hosts.neuron.moe_sizes import MoESizes
from neuron_autoport.hosts.neuron.norm_apart import MLP, norm_before
from neuron_autoport.hosts.neuron.plan import folded, own_attention
from neuron_autoport.hosts.neuron.share_experts import is_experts
from neuron_autoport.kernels.calls import kernel_calls
from neuron_autoport.rewrite.plan import ClassPlan

KERNEL = "kernel"
MOST_BATCH_HEADS = 512  # of flash_attention


@dataclass(frozen=True)
class Asked:
    """What a table is for. buckets: prefill lengths. batch: requests in a decode step."""

    target: str
    tp: int
    buckets: tuple[int, ...]
    batch: int = 1
    block_size: int = 32


@dataclass(frozen=True)
class Row:
    """One call of one class in one phase and bucket.

    count: modules of the class. tokens: of a prefill call; requests of a decode step. runs: as in `plan.Choice`.
    """

    phase: str
    tokens: int
    class_name: str
    count: int
    call: str
    runs: str


class _Planned(Ranks):
    """A group that is only planned for: it has a size and no members."""

    def __init__(self, size: int) -> None:
        super().__init__(None)
        self.size = size


class Table:
    """The rows, from a hosted model of meta tensors."""

    def __init__(self, ported: Ported, asked: Asked) -> None:
        self.ported, self.asked = ported, asked
        self.assembly = Assembly(ported, _Planned(asked.tp), torch.bfloat16, Without())
        self.hosted = self.assembly.make(NeuronTransformersForCausalLM, None)
        self.states: list[LayerState] = list(self.hosted.layer_states.values())
        self.modules: list[Any] = list(self.hosted.model.modules())

    def rows(self) -> Iterator[Row]:
        found = [*self.projections(), *self.attention(), *self.experts(), *self.ends()]
        counts: dict[Row, int] = {}  # of rows that differ in nothing else
        for row in found:
            alike = replace(row, count=0)
            counts[alike] = counts.get(alike, 0) + row.count
        rows = [replace(row, count=count) for row, count in counts.items()]
        order = {"prefill": 0, "chunked prefill": 1, "decode": 2}
        yield from sorted(rows, key=lambda r: (order[r.phase], r.tokens))

    def projections(self) -> Iterator[Row]:
        """Calls in the rewritten sources."""
        where = self.ported.port.where
        in_decode = self._inside(decode=True)
        for plan in dict.fromkeys(where.values()):
            if plan not in self.ported.generated.classes:
                continue
            paths = [path for path, used in where.items() if used is plan]
            ranks = self.assembly.split(plan)
            for tokens in self.asked.buckets:
                yield from self._calls(plan, paths, ranks, "prefill", tokens)
            left = [p for p in paths if p not in in_decode]
            if left:
                yield from self._calls(plan, left, ranks, "decode", self.asked.batch)

    def _calls(
        self, plan: ClassPlan, paths: list[str], ranks: int, phase: str, tokens: int
    ) -> Iterator[Row]:
        name = plan.trace.module_class.__name__
        apart = [p for p in paths if p not in self._inside(decode=False)]
        for site in plan.sites:
            found = site_limit(site, ranks, tokens)
            if found is not None:
                runs = KERNEL if found[1] is None else f"torch: {found[1]}"
                yield Row(phase, tokens, name, len(paths), f"NF.{found[0]}", runs)
            if found is not None and found[0] == "mlp":
                yield from self._norms(name, paths, phase, tokens)
            for call in kernel_calls(site, phase) if apart else ():
                yield Row(phase, tokens, name, len(apart), f"NK.{call.kernel.name}", call.runs)

    def _norms(self, name: str, paths: list[str], phase: str, tokens: int) -> Iterator[Row]:
        """What stands before MLPs, and why it is not in their call."""
        found = [norm_before(self.ported.port.where, path) for path in paths]
        for what, reason in dict.fromkeys(f for f in found if f is not None):
            runs = folded(MLP, reason)
            yield Row(phase, tokens, name, found.count((what, reason)), what, runs)

    def _inside(self, *, decode: bool) -> set[str]:
        """Paths of modules that are in a fused call in decode; or whose QK-norm and RoPE are in the projections'."""
        found = set()
        for state in self.states:
            form = state.form
            if form is None or not (state.fused_decode if decode else state.fused_heads):
                continue
            path = f"{self.assembly.prefix}.{state.facts.path}"
            found.add(path)
            if form.norm is not None:
                found |= {f"{path}.{n}" for n in (form.norm.query, form.norm.key)}
        for moe, _ in self.assembly.blocks.put_here.values() if decode else ():
            found |= {moe.norm.path, moe.path} if moe.norm is not None else set()
        return found

    def attention(self) -> Iterator[Row]:
        groups: dict[tuple[Any, ...], list[LayerState]] = {}
        for state in self.states:
            facts = state.facts
            key = (
                facts.class_name,
                facts.head_dim,
                facts.window,
                facts.softcap,
                state.fused_decode,
                self.assembly.attention.said.get(state.name),
            )
            groups.setdefault(key, []).append(state)
        decode = {
            c.class_name: c.runs for c in self.assembly.plan.choices if c.call == "attention_decode"
        }
        for states in groups.values():
            state, count = states[0], len(states)
            name = state.facts.class_name
            for tokens in self.asked.buckets:
                call, runs = self._prefill(state, tokens)
                yield Row("prefill", tokens, name, count, call, runs)
                reason = self._chunk(state.facts, tokens)
                runs = KERNEL if reason is None else f"torch: {reason}"
                yield Row("chunked prefill", tokens, name, count, "NF.segmented_attention", runs)
            runs = KERNEL if state.fused_decode else decode[name]
            yield from self._said(state, count)
            yield Row("decode", self.asked.batch, name, count, "NF.attention_decode", runs)

    def _said(self, state: LayerState, count: int) -> Iterator[Row]:
        """Where QK-norm and RoPE are."""
        found = self.assembly.attention.said.get(state.name)
        if found is None:
            return
        what, reason = found
        steps = [s for s in self._steps() if s[0] == "prefill" or not state.fused_decode]
        for phase, tokens in steps:
            yield Row(phase, tokens, state.facts.class_name, count, what, folded(QKV, reason))

    def _prefill(self, state: LayerState, tokens: int) -> tuple[str, str]:
        limit = attention_limit(state.facts)
        if limit is not None:
            return "NK.softcap_attention", own_attention(state.facts, torch.bfloat16).runs
        if state.heads > MOST_BATCH_HEADS:
            limit = f"{state.heads} heads per rank, the kernel takes {MOST_BATCH_HEADS}"
        if tokens > MOST_TOKENS:
            limit = f"{tokens} tokens, the kernel takes {MOST_TOKENS}"
        return "NF.flash_attention", KERNEL if limit is None else f"torch: {limit}"

    def _chunk(self, facts: LayerFacts, tokens: int) -> str | None:
        limit, size = attention_limit(facts), self.asked.block_size
        if limit is not None:
            return limit
        if tokens not in SEGMENTS:
            return f"a segment of {tokens} tokens is none of {', '.join(map(str, SEGMENTS))}"
        if facts.window and facts.window % size:
            return f"window {facts.window} is no multiple of the block size {size}"
        return None

    def experts(self) -> Iterator[Row]:
        blocks: dict[tuple[str, MoESizes], list[MoEForm]] = {}
        for form, sizes in self.assembly.blocks.put_here.values():
            blocks.setdefault((form.class_name, sizes), []).append(form)
        for (name, sizes), forms in blocks.items():
            for step, tokens in self._steps():
                for phase, call, reason in Blocks.calls(forms[0], sizes, tokens):
                    if phase == step:
                        runs = KERNEL if reason is None else f"torch: {reason}"
                        yield Row(phase, tokens, name, len(forms), f"NF.{call}", runs)
        found = [m for m in self.modules if is_experts(m)]
        for name, reason in self.assembly.blocks.left(self.hosted.model).items():
            count = sum(type(m).__name__ == name for m in found)
            for phase, tokens in self._steps():
                yield Row(phase, tokens, name, count, "experts", f"torch: {reason}")

    def ends(self) -> Iterator[Row]:
        """The look-up of tokens and the head, for which the plugin has no kernel."""
        for phase, tokens in self._steps():
            yield Row(phase, tokens, "embedding", 1, "look-up", "torch: NF has no kernel for it")
            yield Row(phase, tokens, "head", 1, "matmul", "torch: NF has no linear map on its own")

    def _steps(self) -> Iterator[tuple[str, int]]:
        for bucket in self.asked.buckets:
            yield "prefill", bucket
        yield "decode", self.asked.batch
