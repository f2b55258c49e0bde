"""What the compiled graph of one decoder layer holds on the Neuron host: fused calls, collectives, the rest.

    python -m benchmarks.neuron_graph [MODEL_TYPE ...]

Each model is built small and hosted on two ranks with one key/value head each, as the host's self-test
allows. The host's forward is compiled
whole, once for a prefill and once for a decode step, with two layers and with three; the difference is one layer.
NF and NK calls are one node each; what is inside them does not count. Nothing is timed and nothing of the plugin
is needed: the graph is the host's own. The last line is JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers
from torch import fx

from neuron_autoport import kernels as NK
from neuron_autoport import nf as NF
from neuron_autoport.errors import AutoportError
from neuron_autoport.hosts.neuron.assembly import Assembly, Ported, Without
from neuron_autoport.hosts.neuron.build import host_source, port_of
from neuron_autoport.hosts.neuron.checkpoint import MemoryCheckpoint
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from neuron_autoport.hosts.neuron.moe_blocks import decode_fits
from neuron_autoport.hosts.neuron.moe_form import norms_apart
from neuron_autoport.hosts.neuron.probe import read_layers
from neuron_autoport.hosts.neuron.selftest import self_test
from neuron_autoport.hosts.neuron.stepper import Stepper
from neuron_autoport.models.build import real_model
from neuron_autoport.models.source import ModelSource, load_model_config
from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.port import port_model
from neuron_autoport.rules.sources import load_library

TYPES = (
    "llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "granite", "phi3", "stablelm",
    "glm4", "olmo2", "smollm3", "cohere2", "mixtral", "qwen3_moe", "gpt_oss", "gpt2", "gpt_neox",
)  # fmt: skip
RANKS = 2
BUCKET = 128
# Sizes that the decode kernels take, and one key/value head for each rank.
SIZES = {
    "hidden_size": 256, "num_key_value_heads": RANKS, "n_embd": 256, "intermediate_size": 256,
    "moe_intermediate_size": 256,
}  # fmt: skip
MATMULS = {"matmul", "linear", "mm", "bmm", "addmm", "baddbmm", "einsum"}
COLLECTIVES = ("all_reduce", "all_gather")
_VIEWS = {
    "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "expand", "getitem", "split",
    "flatten", "unflatten", "contiguous", "getattr", "chunk", "size", "view_as", "t",
}  # fmt: skip


@dataclass
class Counts:
    """Nodes of a graph. functions: NF and NK calls. tensor_ops: all else but views of a tensor."""

    functions: Counter[str] = field(default_factory=Counter)
    collectives: Counter[str] = field(default_factory=Counter)
    tensor_ops: Counter[str] = field(default_factory=Counter)

    @property
    def matmuls(self) -> int:
        """Matrix products that are no fused call."""
        return sum(n for name, n in self.tensor_ops.items() if name in MATMULS)

    def minus(self, other: Counts) -> Counts:
        """What this graph has more."""
        return Counts(
            self.functions - other.functions,
            self.collectives - other.collectives,
            self.tensor_ops - other.tensor_ops,
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data, names in order."""
        return {
            "functions": dict(sorted(self.functions.items())),
            "collectives": dict(sorted(self.collectives.items())),
            "matmuls": self.matmuls,
            "tensor_ops": sum(self.tensor_ops.values()),
        }


class _Group:
    """A group of ranks of which only this one is there: its collectives are nodes, not sums."""

    world_size, rank_in_group, device_group = RANKS, 0, None

    def __init__(self, nodes: dict[str, Callable[..., torch.Tensor]]) -> None:
        self.all_reduce, self.all_gather = nodes["all_reduce"], nodes["all_gather"]


def _all_reduce(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def _all_gather(x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.cat([x] * RANKS, dim)


@contextmanager
def opaque_calls() -> Iterator[dict[str, Callable[..., torch.Tensor]]]:
    """NF and NK functions are one node each while open; gives the collectives' nodes."""
    named = [(NF, n) for n in NF.__all__ if n.islower() and n not in _NOT_CALLS]
    named += [(NK, n) for n in NK.__all__]
    before = [(module, name, getattr(module, name)) for module, name in named]
    try:
        for module, name, function in before:
            label = "NF" if module is NF else "NK"
            setattr(module, name, _node(function, f"{label}.{name}"))
        yield {
            "all_reduce": _node(_all_reduce, "all_reduce"),
            "all_gather": _node(_all_gather, "all_gather"),
        }
    finally:
        for module, name, function in before:
            setattr(module, name, function)


_NOT_CALLS = {"backend", "moved", "decoding", "decode_phase"}


def _node(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    allowed: Callable[..., Any] = torch._dynamo.allow_in_graph(call)
    return allowed


def count(graph: fx.Graph) -> Counts:
    """The nodes of a graph by kind."""
    found = Counts()
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "?")
        name = str(name).strip("_")
        if name.startswith(("NF.", "NK.")):
            found.functions[name] += 1
        elif name in COLLECTIVES:
            found.collectives[name] += 1
        elif name not in _VIEWS:
            found.tensor_ops[name] += 1
    return found


def small(model_type: str, layers: int) -> ModelSource:
    """A small model of a type, of sizes that the decode kernel takes, with so many layers."""
    source = load_model_config(model_type)
    config = copy.deepcopy(tiny_config(source))
    text = config.get_text_config()
    for name, value in {**SIZES, "num_hidden_layers": layers}.items():
        if hasattr(text, name):
            setattr(text, name, value)
    kinds = getattr(text, "layer_types", None)
    if kinds:  # all alike, so that a layer more is the same layer
        text.layer_types = ["full_attention" if "full_attention" in kinds else kinds[0]] * layers
    if hasattr(text, "no_rope_layers"):
        text.no_rope_layers = [1] * layers
    return replace(source, config=config, text_config=text)


def ported(source: ModelSource) -> Ported:
    """A small model as it is hosted; not proved."""
    host_source(source.config)
    library = load_library()
    port = norms_apart(port_model(source, library), library, decode_fits(RANKS, False))
    return port_of(source, port, read_layers(source))


def graphs(of: Ported, without: Without) -> dict[str, Counts]:
    """The graphs of a model's prefill and decode on two ranks.

    Args:
        without: what the host's self-test rules out.
    """
    source = of.source
    state = real_model(source, dtype=torch.float32).state_dict()
    found: dict[str, Counts] = {}
    with opaque_calls() as nodes:
        ranks = Ranks(_Group(nodes))
        made = Assembly(of, ranks, torch.float32, without)
        model = made.make(NeuronTransformersForCausalLM, None)
        model.loading.load(model, MemoryCheckpoint(state), "cpu")
        stepper = Stepper(model, (5, 5), 2)
        for phase in ("prefill", "decode"):

            def keep(gm: fx.GraphModule, _: Any, phase: str = phase) -> Callable[..., Any]:
                found[phase] = count(gm.graph)
                return gm.forward

            torch._dynamo.reset()
            stepper.model = torch.compile(model, fullgraph=True, dynamic=False, backend=keep)
            if phase == "prefill":
                stepper.prefill(0, [3, 4, 5, 6, 7], BUCKET)
            else:
                stepper.decode([3, 4], [5, 5], 2)
    return found


def layer_counts(model_type: str) -> dict[str, Counts]:
    """One decoder layer, by phase.

    Raises:
        NeuronHostError: the host does not drive this type.
    """
    first = ported(small(model_type, 2))
    without = self_test(NeuronTransformersForCausalLM, first, first.source, RANKS)
    two, three = graphs(first, without), graphs(ported(small(model_type, 3)), without)
    return {phase: three[phase].minus(two[phase]) for phase in ("prefill", "decode")}


def _line(phase: str, counts: Counts) -> str:
    calls = ", ".join(f"{n} ×{c}" if c > 1 else n for n, c in sorted(counts.functions.items()))
    sums = sum(counts.collectives.values())
    rest = f"{sums} collectives, {counts.matmuls} other matmuls, {sum(counts.tensor_ops.values())} tensor ops"
    return f"  {phase:8} {rest}; {calls or 'no fused call'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("types", nargs="*", default=list(TYPES))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    result: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for model_type in options.types:
        print(model_type, flush=True)
        try:
            counts = layer_counts(model_type)
        except AutoportError as error:
            refused[model_type] = error.what
            print(f"  not hosted: {error.what}")
            continue
        for phase, each in counts.items():
            print(_line(phase, each), flush=True)
        result[model_type] = {phase: each.as_json() for phase, each in counts.items()}
    print(json.dumps({"architectures": len(result), "layers": result, "refused": refused}))


if __name__ == "__main__":
    main()
