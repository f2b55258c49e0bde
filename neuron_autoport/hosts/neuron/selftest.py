"""The hosted form tried on a small model of the same kind, before any weight of the real one is read.

The small model runs as transformers has it (eager, float32, whole sequences), and hosted: a padded prefill
of each of two requests, then both decoded together. Logits must agree. A fused form of attention, a mixture block's
form or a sharing that changes them is left out, by class; a model whose hosted form differs without them is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from neuron_autoport import __version__
from neuron_autoport.cache import cache_folder
from neuron_autoport.hosts.neuron.assembly import Assembly, Ported, Without
from neuron_autoport.hosts.neuron.build import port_of
from neuron_autoport.hosts.neuron.checkpoint import MemoryCheckpoint
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.neuron.mixers import foreign_mixers
from neuron_autoport.hosts.neuron.moe_form import read_forms
from neuron_autoport.hosts.neuron.options import ALONE, OWN, Served
from neuron_autoport.hosts.neuron.probe import read_layers
from neuron_autoport.hosts.neuron.share_experts import is_experts
from neuron_autoport.hosts.neuron.stepper import hosted_logits
from neuron_autoport.models.build import real_model
from neuron_autoport.models.source import ModelSource
from neuron_autoport.models.tiny import TinyConfigError, tiny_config
from neuron_autoport.port import port_model
from neuron_autoport.rules.rule import Rule
from neuron_autoport.rules.sources import load_library

TOLERANCE = 1e-4
LENGTHS = (11, 6)
STEPS = 3
RANKS = 2


def small_source(source: ModelSource) -> ModelSource:
    """A small model of the same kind.

    Raises:
        NeuronHostError: none can be made, so nothing can be tried.
    """
    try:
        config = tiny_config(source)
    except TinyConfigError as error:
        raise refuse(f"{source.name}: it cannot be tried beforehand: {error.what}") from None
    return replace(source, config=config, text_config=config.get_text_config())


def self_test(
    cls: type[Any],
    ported: Ported,
    small: ModelSource,
    ranks: int,
    served: Served = ALONE,
    rules: tuple[Rule, ...] | None = None,
) -> Without:
    """What must not be used for this model: decode forms and sharing that fail on the small one.

    The verdict is kept under a key of configuration, rewritten source, this host's source and versions.
    rules: the port was made with; None for all that apply here.

    Raises:
        NeuronHostError: the hosted small model computes something else.
    """
    how = (ranks > 1, served.by_expert, served.sequence_parallel)
    path = cache_folder("neuron_host") / f"{_key(ported, *how)}.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Without(dict(found["attention"]), dict(found["sharing"]), dict(found["experts"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there, or written by another version: try anew
    without = _try(
        Trial(cls, ported, small, served, rules or load_library()), ported.source.name, ranks
    )
    part = path.with_suffix(f".{os.getpid()}.part")
    found = {name: getattr(without, name) for name in ("attention", "sharing", "experts")}
    part.write_text(json.dumps(found))
    part.replace(path)
    return without


def _key(ported: Ported, *how: bool) -> str:
    digest = hashlib.sha256()
    parts = [__version__, torch.__version__, transformers.__version__, str(how)]
    parts += [ported.source.config.to_json_string(use_diff=False), ported.generated.text]
    here = Path(__file__).parent
    for folder in (
        here,
        here.parent / "weights",
        here.parents[1] / "nf",
        here.parents[1] / "kernels",
    ):
        parts += [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.py"))]
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:32]


def _try(test: Trial, name: str, ranks: int) -> Without:
    without = Without()
    error = test.error(test.unfused(), 1)
    if error > TOLERANCE:
        raise refuse(
            f"{name}: hosted, a small model of its kind gives other logits (relative error {error:.1e})",
            name,
        )
    for found, classes in ((without.attention, test.fused()), (without.experts, test.blocks)):
        for cls in classes:
            error = test.error(test.unfused(cls), 1)
            if error > TOLERANCE:
                found[cls] = f"on a small model it gave other logits (error {error:.1e})"
    if ranks > 1:
        test.try_sharing(without)
        test.try_sequence(without, name)
    return without


class Trial:
    """One small model, its reference logits, and its hosted forms."""

    def __init__(
        self,
        cls: type[Any],
        ported: Ported,
        small: ModelSource,
        served: Served,
        rules: tuple[Rule, ...],
    ) -> None:
        self.cls = cls
        self.served = Served(served.by_expert)  # as all ranks have all tokens
        self.asked = served
        refuse_state(ported.source, small)
        port = port_model(small, rules, without=ported.port.without)
        self.ported = port_of(small, port, read_layers(small))
        self.blocks = sorted({form.class_name for form in read_forms(port)[0].values()})
        model = real_model(small, dtype=torch.float32, attn_implementation="eager")
        self.state = {k: v.clone() for k, v in model.state_dict().items()}
        vocabulary = int(small.text_config.vocab_size)
        draw = torch.Generator().manual_seed(11)
        rows = [
            torch.randint(1, vocabulary, (n + STEPS,), generator=draw).tolist() for n in LENGTHS
        ]
        self.prompts = [row[:-STEPS] for row in rows]
        self.continued = [row[-STEPS:] for row in rows]
        with torch.no_grad():
            self.wanted = torch.stack(
                [
                    model(input_ids=torch.tensor([row]), use_cache=False).logits[0, -STEPS - 1 :]
                    for row in rows
                ]
            )

    def hosted(self, without: Without, ranks: Ranks) -> Any:
        assembly = Assembly(self.ported, ranks, torch.float32, without, self.served)
        model = assembly.make(self.cls, None)
        model.loading.load(model, MemoryCheckpoint(self.state), "cpu")
        return model

    def fused(self) -> list[str]:
        """Attention classes that can go to fused calls."""
        states = self.hosted(Without(any_size=True), Ranks()).layer_states.values()
        return sorted({s.facts.class_name for s in states if s.form is not None})

    def unfused(self, but: str = "") -> Without:
        """No fused attention and no mixture block in NF's form, but for one class."""
        names = {facts.class_name for facts in self.ported.layers} - {but}
        reason = "not in this trial"
        blocks = {name for name in self.blocks if name != but}
        return Without(
            dict.fromkeys(names, reason), experts=dict.fromkeys(blocks, reason), any_size=True
        )

    def error(self, without: Without, ranks: int) -> float:
        """Largest difference of logits, relative to the largest logit."""
        if ranks == 1:
            got = hosted_logits(self.hosted(without, Ranks()), self.prompts, self.continued)
        else:
            got = self.shared_logits(without, ranks)
        difference = (got - self.wanted).abs().max() / self.wanted.abs().max()
        return float(difference) if bool(torch.isfinite(difference)) else float("inf")

    def shared_logits(self, without: Without, count: int) -> torch.Tensor:
        """Logits of rank 0; every rank is a thread, and they meet at each collective."""
        meeting = Meeting(count)
        models = [self.hosted(without, Ranks(meeting.member(r))) for r in range(count)]
        results: list[Any] = [None] * count

        def run(rank: int) -> None:
            try:
                results[rank] = hosted_logits(models[rank], self.prompts, self.continued, rank)
            except (RuntimeError, ValueError, TypeError, AttributeError, IndexError):
                meeting.barrier.abort()

        threads = [threading.Thread(target=run, args=(r,)) for r in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if any(r is None for r in results):
            return torch.full_like(self.wanted, float("nan"))
        found: torch.Tensor = results[0]
        return found

    def try_sharing(self, without: Without) -> None:
        """Put every class whose sharing changes the logits into `without`."""
        if self.error(without, RANKS) <= TOLERANCE:
            return
        names = {p.trace.module_class.__name__ for p in self.ported.port.plans if p.sites}
        names |= {type(m).__name__ for m in self.ported.port.model.modules() if is_experts(m)}
        names |= set(self.blocks)
        reason = "shared by ranks, a small model gave other logits"
        alone = dict.fromkeys(names, reason)
        for name in sorted(names):
            others = {n: r for n, r in alone.items() if n != name}
            trial = Without(without.attention, others, without.experts)
            if self.error(trial, RANKS) > TOLERANCE:
                without.sharing[name] = reason

    def try_sequence(self, without: Without, name: str) -> None:
        """Refuse sequence-parallel prefill, if it is asked for and changes the logits."""
        if not self.asked.sequence_parallel:
            return
        self.served = self.asked
        if self.error(without, RANKS) > TOLERANCE:
            raise refuse(
                f"{name}: with the tokens of a prefill shared by ranks, a small model of its kind failed or gave "
                "other logits: something needs all tokens at once",
                name,
                f'additional_config={{"{OWN}": {{"sequence_parallel": false}}}}',
            )


def refuse_state(source: ModelSource, small: ModelSource) -> None:
    """Refuse a model with any other memory than keys and values.

    Raises:
        NeuronHostError: naming the module.
    """
    if mixers := foreign_mixers(small):
        raise refuse(
            f"{source.name}: {mixers[0]} carries information from token to token without the attention "
            "interface; the runner keeps keys and values only",
            source.name,
        )


class Meeting:
    """Collectives between threads of one process."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.barrier = threading.Barrier(count, timeout=60)
        self.given: list[Any] = [None] * count

    def member(self, rank: int) -> _Member:
        return _Member(self, rank)


class _Member:
    """One rank's group, with the interface of vLLM's group coordinator."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank_in_group, self.world_size = meeting, rank, meeting.count
        self.device_group = None

    def exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        self.meeting.given[self.rank_in_group] = x.clone()
        self.meeting.barrier.wait()
        found = list(self.meeting.given)
        self.meeting.barrier.wait()
        return found

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.exchange(x)).sum(0)

    def reduce_scatter(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return self.all_reduce(x).chunk(self.world_size, dim)[self.rank_in_group]

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.cat(self.exchange(x), dim)
