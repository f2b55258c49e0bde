"""A small runner that drives a model class by the plugin's contract, on one or more gloo ranks.

    result = generate(MyModel, folder, prompts, 8, tp=2, batch=4, buckets=(128, 256))
    result.tokens            # one list of ids per prompt
    result.log               # rank 0's calls of the double: verdicts, traps, collectives, graphs

Everything that can be set is a field of `engine.options.Options`. A model that breaks the contract
raises `ContractError`; so does a call that steps into a documented trap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.neuron.double import CallLog, ContractError, State, installed
from tests.neuron.engine.options import Options
from tests.neuron.engine.rank import Rank
from tests.neuron.engine.tables import Request
from tests.neuron.ranks import on_ranks

Prompts = Sequence[Sequence[int]]


@dataclass
class Round:
    """Requests that run together; rounds run one after the other on the same loaded model.

    tokens: how many to generate, for all or for each prompt. arrivals: the step at which each
    prompt arrives. sampling: (top_k, top_p, temperature) of each. allowed: bool [V] masks of each.
    """

    prompts: Prompts
    tokens: int | Sequence[int]
    arrivals: Sequence[int] = ()
    sampling: Sequence[tuple[float, float, float]] = ()
    allowed: Sequence[Tensor | None] = ()

    def requests(self) -> list[Request]:
        """The requests, fresh."""
        made = []
        for index, prompt in enumerate(self.prompts):
            wanted = self.tokens if isinstance(self.tokens, int) else self.tokens[index]
            request = Request(index, list(prompt), wanted)
            if self.arrivals:
                request.arrival = self.arrivals[index]
            if self.sampling:
                request.sampling = self.sampling[index]
            if self.allowed:
                request.allowed = self.allowed[index]
            made.append(request)
        return made


@dataclass
class Generation:
    """What came out: ids per prompt, logits per prompt [steps, V] if forward gave them, the log."""

    tokens: list[list[int]]
    logits: list[Tensor | None]
    log: CallLog = field(default_factory=CallLog)


def generate(
    model_class: Any, folder: str | Path, prompts: Prompts, max_new_tokens: int, **options: Any
) -> Generation:
    """Greedy ids for each prompt, through the whole life cycle of the contract.

    Args:
        model_class: the class, or "module:Class".
        folder: checkpoint with config.json and safetensors.
        options: fields of `Options`: tp, batch, buckets, chunk, on_device_sampling, ...

    Raises:
        ContractError: the model breaks the contract, on any rank, or the ranks disagree.
    """
    rounds = [Round(prompts, max_new_tokens)]
    return generate_rounds(model_class, folder, rounds, Options(**options))[0]


def generate_rounds(
    model_class: Any, folder: str | Path, rounds: Sequence[Round], options: Options
) -> list[Generation]:
    """The rounds one after the other on one loaded model, on `options.tp` ranks; rank 0's results.

    Raises:
        ContractError: as `generate`.
    """
    if options.tp == 1:
        return _run(model_class, str(folder), rounds, options)
    return generate_jobs([Job(model_class, folder, rounds)], options)[0]


@dataclass(frozen=True)
class Job:
    """A model, its checkpoint, and the rounds to run on it."""

    model_class: Any
    folder: str | Path
    rounds: Sequence[Round]


def generate_jobs(jobs: Sequence[Job], options: Options) -> list[list[Generation]]:
    """Several models one after the other in the same rank processes; rank 0's results.

    Raises:
        ContractError: as `generate`.
    """

    def run() -> list[list[Generation]]:
        return [_run(job.model_class, str(job.folder), job.rounds, options) for job in jobs]

    return _agreed(on_ranks(options.tp, run))


def _agreed(answers: Sequence[list[list[Generation]]]) -> list[list[Generation]]:
    """Rank 0's results, if all ranks have the same tokens."""
    tokens = [[[g.tokens for g in job] for job in answer] for answer in answers]
    if any(other != tokens[0] for other in tokens):
        raise ContractError(f"tokens differ between ranks: {tokens}")
    return answers[0]


def _run(
    model_class: Any, folder: str, rounds: Sequence[Round], options: Options
) -> list[Generation]:
    """All rounds on this rank."""
    ep_degree = options.ep_degree if options.expert_parallel else 1
    with installed(State(simulate=options.simulate), ep_degree) as double:
        rank = Rank(model_class, folder, options, double)
        results = []
        for each in rounds:
            requests = each.requests()
            rank.generate(requests)
            logits = [torch.stack(r.logits) if r.logits else None for r in requests]
            log = double.log
            results.append(Generation([r.output for r in requests], logits, log))
            double.log = CallLog(graphs=log.graphs, read=log.read)
        return results
