"""How a model would be served on a number of ranks: every call, phase and bucket, and what is refused.

The plugin's functions fall back to torch without a word when a limit is broken. Here each call says
beforehand what it runs in, for the sizes of one rank and each prefill bucket. Nothing is built but meta
tensors, and nothing is tried: the host does that before it serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from neuron_autoport.hosts.neuron.assembly import Assembly, Ported, Without
from neuron_autoport.hosts.neuron.attention import SEGMENTS
from neuron_autoport.hosts.neuron.build import port_of
from neuron_autoport.hosts.neuron.call import LayerState
from neuron_autoport.hosts.neuron.decode_step import decode_limit
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.experts import DENSE
from neuron_autoport.hosts.neuron.facts import LayerFacts, attention_limit
from neuron_autoport.hosts.neuron.limits import MOST_TOKENS, site_limit
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from neuron_autoport.hosts.neuron.plan import own_attention
from neuron_autoport.hosts.neuron.probe import read_layers
from neuron_autoport.hosts.neuron.share_experts import is_experts
from neuron_autoport.kernels.calls import kernel_calls
from neuron_autoport.models.source import ModelSource
from neuron_autoport.port import Port
from neuron_autoport.rewrite.plan import ClassPlan

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
KERNEL = "kernel"
MOST_BATCH_HEADS = 512  # of flash_attention
MOST_ROWS = 128  # requests times heads of attention_decode


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

    count: modules of the class. tokens: of a prefill call; requests of a decode step. runs: `kernel`,
    `kernel: NAME` or `torch: reason`.
    """

    phase: str
    tokens: int
    class_name: str
    count: int
    call: str
    runs: str


@dataclass(frozen=True)
class Refused:
    """What cannot work, or costs the decode kernel, on this many ranks. instead: what to do."""

    what: str
    message: str
    instead: str


@dataclass(frozen=True)
class Serving:
    """The table. valid: sizes of tensor parallel that can work. fused: those that keep the decode kernel.

    kv_heads: of each attention class, per rank; copies: ranks that hold the same ones. whole: classes that
    every rank has all of, and why.
    """

    asked: Asked
    rows: tuple[Row, ...]
    refused: tuple[Refused, ...]
    valid: tuple[int, ...]
    fused: tuple[int, ...]
    kv_heads: dict[str, int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)


class _Planned(Ranks):
    """A group that is only planned for: it has a size and no members."""

    def __init__(self, size: int) -> None:
        super().__init__(None)
        self.size = size


def serving(source: ModelSource, port: Port, asked: Asked) -> Serving:
    """The table of a planned model.

    Raises:
        NeuronHostError: the runner cannot drive the model at all; by name and reason.
    """
    layers = read_layers(source)
    ported = port_of(source, port, layers)
    vocabulary = int(source.text_config.vocab_size)
    refused = tuple(_refusals(layers, source.text_config, asked))
    valid = tuple(n for n in SIZES if not _impossible(layers, vocabulary, n))
    hidden = int(source.text_config.hidden_size)
    fused = tuple(
        n for n in valid if all(decode_limit(f, hidden, _kv_heads(f, n)) is None for f in layers)
    )
    table = _Table(ported, asked)
    return Serving(
        asked,
        tuple(table.rows()),
        refused,
        valid,
        fused,
        {s.facts.class_name: s.kv_heads for s in table.states},
        {s.facts.class_name: asked.tp * s.kv_heads // s.facts.kv_heads for s in table.states},
        dict(table.assembly.plan.replicated),
    )


def _kv_heads(facts: LayerFacts, ranks: int) -> int:
    """Key/value heads of one rank."""
    return max(facts.kv_heads // ranks, 1)


def _impossible(layers: Sequence[LayerFacts], vocabulary: int, ranks: int) -> list[Refused]:
    found = []
    for facts in {(f.heads, f.kv_heads): f for f in layers}.values():
        if facts.heads % ranks or (facts.kv_heads % ranks and ranks % facts.kv_heads):
            what = f"{facts.heads} query and {facts.kv_heads} key/value heads"
            message = f"{facts.class_name}: {what} do not divide by {ranks} ranks"
            found.append(Refused("heads", message, "every rank would keep the whole class"))
    if vocabulary % ranks:
        message = f"the vocabulary of {vocabulary} does not divide by {ranks} ranks"
        instead = "the host pads the head; masks of structured outputs would not fit"
        found.append(Refused("vocabulary", message, instead))
    return found


def _refusals(layers: Sequence[LayerFacts], config: Any, asked: Asked) -> Iterator[Refused]:
    yield from _impossible(layers, int(config.vocab_size), asked.tp)
    for facts in {(f.class_name, f.kv_heads): f for f in layers}.values():
        if decode_limit(facts, int(config.hidden_size), 1) is None:
            yield from _decode_refusals(facts, asked)
    for bucket in asked.buckets:
        if bucket <= asked.tp or bucket % asked.tp:
            verb = "is not above" if bucket <= asked.tp else "does not divide by"
            message = f"a prefill bucket of {bucket} tokens {verb} {asked.tp} ranks"
            yield Refused("bucket", message, "sequence parallel splits its tokens over the ranks")


def _decode_refusals(facts: LayerFacts, asked: Asked) -> Iterator[Refused]:
    """What costs the decode kernel of layers that could have it."""
    count = _kv_heads(facts, asked.tp)
    if count > 1:
        message = f"{facts.class_name}: {count} key/value heads per rank lose the decode kernel"
        yield Refused("kv_heads", message, f"--tp {facts.kv_heads} has one per rank")
        return
    rows = asked.batch * max(facts.heads // asked.tp, 1)
    if rows > MOST_ROWS:
        message = f"{facts.class_name}: {rows} rows of requests and heads in the decode kernel"
        instead = f"one nkilib release states {MOST_ROWS} at most; the plugin does not check"
        yield Refused("batch", message, instead)


class _Table:
    """The rows, from a hosted model of meta tensors."""

    def __init__(self, ported: Ported, asked: Asked) -> None:
        self.ported, self.asked = ported, asked
        self.assembly = Assembly(ported, _Planned(asked.tp), torch.bfloat16, Without())
        hosted = self.assembly.make(NeuronTransformersForCausalLM, None)
        self.states: list[LayerState] = list(hosted.layer_states.values())
        self.modules: list[Any] = list(hosted.model.modules())

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
        in_kernel = self._inside_fused_decode()
        for plan in dict.fromkeys(where.values()):
            if plan not in self.ported.generated.classes:
                continue
            paths = [path for path, used in where.items() if used is plan]
            ranks = self.assembly.split(plan)
            for tokens in self.asked.buckets:
                yield from self._calls(plan, len(paths), ranks, "prefill", tokens)
            left = [p for p in paths if p not in in_kernel]
            if left:
                yield from self._calls(plan, len(left), ranks, "decode", self.asked.batch)

    def _calls(
        self, plan: ClassPlan, count: int, ranks: int, phase: str, tokens: int
    ) -> Iterator[Row]:
        name = plan.trace.module_class.__name__
        for site in plan.sites:
            found = site_limit(site, ranks, tokens)
            if found is not None:
                runs = KERNEL if found[1] is None else f"torch: {found[1]}"
                yield Row(phase, tokens, name, count, f"NF.{found[0]}", runs)
            for call in kernel_calls(site, phase):
                yield Row(phase, tokens, name, count, f"NK.{call.kernel.name}", call.runs)

    def _inside_fused_decode(self) -> set[str]:
        """Paths of modules that do nothing in decode: the fused function has their part."""
        found = set()
        for state in self.states:
            if state.form is None:
                continue
            path = f"{self.assembly.prefix}.{state.facts.path}"
            found.add(path)
            if state.form.norm is not None:
                found |= {f"{path}.{n}" for n in (state.form.norm.query, state.form.norm.key)}
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
                state.form is None,
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
            runs = decode[name] if state.form is None else KERNEL
            yield Row("decode", self.asked.batch, name, count, "NF.attention_decode", runs)

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
        found = [m for m in self.modules if is_experts(m)]
        counts = {type(m).__name__: sum(type(o) is type(m) for o in found) for m in found}
        for name, count in counts.items():
            for phase, tokens in self._steps():
                yield Row(phase, tokens, name, count, "experts", f"torch: {DENSE}")

    def ends(self) -> Iterator[Row]:
        """The look-up of tokens and the head, for which the plugin has no kernel."""
        for phase, tokens in self._steps():
            yield Row(phase, tokens, "embedding", 1, "look-up", "torch: NF has no kernel for it")
            yield Row(phase, tokens, "head", 1, "matmul", "torch: NF has no linear map on its own")

    def _steps(self) -> Iterator[tuple[str, int]]:
        for bucket in self.asked.buckets:
            yield "prefill", bucket
        yield "decode", self.asked.batch
