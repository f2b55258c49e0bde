"""One rank of the runner: load, spec, caches, compile, warm up, then steps until all are done.

A prefill step holds one request, or one chunk of it; between two prefill steps the running requests
decode, so requests join and leave while others run. Run-time forwards may not recompile.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.neuron.double import ContractError
from tests.neuron.double.state import State
from tests.neuron.engine import model as loading
from tests.neuron.engine.caches import make_caches
from tests.neuron.engine.graphs import backend
from tests.neuron.engine.inputs import Inputs, Maker
from tests.neuron.engine.options import Options
from tests.neuron.engine.tables import Request, Tables
from tests.neuron.engine.warmup import warmup_steps

# More graphs of one function than any test has buckets: torch gives up after eight.
BUCKETS = 256


class Rank:
    """A loaded, compiled and warmed-up model on one rank."""

    def __init__(self, model_class: Any, folder: str, options: Options, double: State) -> None:
        self.options, self.double = options, double
        double.model_dtype = options.dtype
        double.semantics = options.semantics
        double.compute = options.compute
        model, config = loading.load(model_class, folder, options)
        self.vocab = int(getattr(config, "vocab_size", 0) or config.text_config.vocab_size)
        self.model: Any = model
        self.step: Any = self._compiled() if options.compile else model
        caches = make_caches(self.model.get_kv_spec(), options)
        self.step.bind_kv_cache(caches.bound)
        rank = torch.tensor(dist.get_rank(), dtype=torch.int32)
        self.maker = Maker(options, Tables(caches, options), self.vocab, rank)
        for name, inputs in warmup_steps(self.maker):
            self._forward(f"warmup {name}", inputs)
        for buffer in caches.buffers:
            options.faults.unused(buffer[:, 1:])
        self._same_graphs()
        double.log.clear()

    def _compiled(self) -> Any:
        return torch.compile(self.model, fullgraph=True, dynamic=False, backend=backend)

    def _same_graphs(self) -> None:
        """All ranks compiled the same programs.

        Raises:
            ContractError: they did not: the rank is in the graph as a number.
        """
        mine = [graph.digest for graph in self.double.log.graphs]
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        if any(other != mine for other in everyone):
            raise ContractError("the ranks compiled different graphs: pass the rank as a tensor")

    def _forward(self, name: str, inputs: Inputs) -> Any:
        self.double.log.step = name
        with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=BUCKETS):
            return self.step(**inputs)

    def generate(self, requests: list[Request]) -> None:
        """Run all requests to their end."""
        waiting = sorted(requests, key=lambda request: (request.arrival, request.index))
        running: list[Request] = []
        clock = 0
        while waiting or running:
            ready = [r for r in waiting if r.arrival <= clock]
            if ready and len(running) < self.options.batch:
                request = ready[0]
                if self._prefill(request):
                    waiting.remove(request)
                    running.append(request)
                self._leave(running)
            if running:
                self._decode(running)
                self._leave(running)
            clock += 1
        self._no_traps()

    def _prefill(self, request: Request) -> bool:
        """One prefill step; whether the prompt is through."""
        left = len(request.prompt) - request.computed
        count = min(left, self.options.prefill_buckets[-1])
        if self.options.chunk is None and count < left:
            raise ValueError(f"a prompt of {left} tokens is above the last prefill bucket")
        self.maker.tables.reserve(request, count)
        inputs = self.maker.prefill(request, count)
        output = self._run(f"prefill {inputs['input_ids'].shape[0]}", inputs)
        request.computed += count
        if count == left:
            self._take(output, [request])
        return count == left

    def _decode(self, running: list[Request]) -> None:
        for request in running:
            self.maker.tables.reserve(request, 1)
        inputs = self.maker.decode(running)
        output = self._run(f"decode {inputs['input_ids'].shape[0]}", inputs)
        for request in running:
            request.computed += 1
        self._take(output, running)

    def _run(self, name: str, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """(tokens, logits or None) of a step, its return value checked."""
        if not self.options.compile:
            output = self._forward(name, inputs)
        else:
            with torch.compiler.set_stance("fail_on_recompile"):
                output = self._forward(name, inputs)
        rows = inputs["sampling_positions"].shape[0]
        return self._checked(output, rows)

    def _checked(self, output: Any, rows: int) -> tuple[Tensor, Tensor | None]:
        if not self.options.on_device_sampling:
            self._check_logits(output, rows)
            return output.argmax(-1), output
        tokens, logits = output if isinstance(output, tuple) else (output, None)
        if not isinstance(tokens, Tensor) or tokens.dtype != torch.int32:
            raise ContractError(
                f"with on-device sampling forward gives int32 tokens, got {tokens!r}"
            )
        if tuple(tokens.shape) != (rows,):
            raise ContractError(f"tokens must be [{rows}], got {list(tokens.shape)}")
        wanted = bool(self.options.max_logprobs)
        if wanted or logits is not None:
            self._check_logits(logits, rows)
        if logits is not None and not wanted:
            self.double.log.trap("forward", "full logits are gathered though nobody asked for them")
        return tokens, logits

    def _check_logits(self, logits: Any, rows: int) -> None:
        if not isinstance(logits, Tensor) or tuple(logits.shape) != (rows, self.vocab):
            got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ContractError(f"logits must be [{rows}, {self.vocab}], got {got}")

    def _take(self, output: tuple[Tensor, Tensor | None], requests: list[Request]) -> None:
        tokens, logits = output
        for at, request in enumerate(requests):
            request.output.append(int(tokens[at]))
            if logits is not None:
                request.logits.append(logits[at].float().clone())

    def _leave(self, running: list[Request]) -> None:
        """Requests that are done leave; the last request moves into the gap, as vLLM does it."""
        for at in reversed(range(len(running))):
            if running[at].done:
                self.maker.tables.release(running[at])
                running[at] = running[-1]
                running.pop()

    def _no_traps(self) -> None:
        if self.double.log.traps and not self.options.allow_traps:
            raise ContractError(f"documented traps: {dict(self.double.log.traps)}")
