"""How a model would be served on a number of ranks: every call, phase and bucket, and what is refused.

The plugin's functions fall back to torch without a word when a limit is broken. Here each call says
beforehand what it runs in, for the sizes of one rank and each prefill bucket. Nothing is built but meta
tensors, and nothing is tried: the host does that before it serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuron_autoport.hosts.neuron.build import port_of
from neuron_autoport.hosts.neuron.decode_step import decode_limit
from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.neuron.facts import LayerFacts
from neuron_autoport.hosts.neuron.moe_blocks import decode_fits
from neuron_autoport.hosts.neuron.moe_form import norms_apart
from neuron_autoport.hosts.neuron.probe import read_layers
from neuron_autoport.hosts.neuron.serving_table import Asked, Row, Table
from neuron_autoport.models.plain import NEXT, stops_serving
from neuron_autoport.models.source import ModelSource
from neuron_autoport.port import Port
from neuron_autoport.rules.rule import Rule

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_ROWS = 128  # requests times heads of attention_decode


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


def serving(source: ModelSource, port: Port, rules: Iterable[Rule], asked: Asked) -> Serving:
    """The table of a planned model. rules: it was planned with.

    Raises:
        NeuronHostError: the runner cannot drive the model at all; by name and reason.
    """
    if (stopped := stops_serving(source)) is not None:
        raise refuse(stopped, source.name, NEXT)
    layers = read_layers(source)
    ported = port_of(source, norms_apart(port, rules, decode_fits(asked.tp, False)), layers)
    vocabulary = int(source.text_config.vocab_size)
    refused = tuple(_refusals(layers, source.text_config, asked))
    valid = tuple(n for n in SIZES if not _impossible(layers, vocabulary, n))
    hidden = int(source.text_config.hidden_size)
    fused = tuple(
        n for n in valid if all(decode_limit(f, hidden, _kv_heads(f, n)) is None for f in layers)
    )
    table = Table(ported, asked)
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
