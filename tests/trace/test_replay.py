"""A traced graph, run with real values, gives what the module gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3MLP, Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.phi3.modeling_phi3 import Phi3MLP

from neuron_autoport.models.weights import adversarial_
from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.tracer import trace_model
from tests.helpers import small_config, zoo_class


def replay(module: nn.Module, graph: fx.Graph, *args: Any) -> tuple[Any, ...]:
    """Run the nodes one by one; a leaf calls the child module."""
    values: dict[fx.Node, Any] = {}
    inputs = iter(args)
    for node in graph.nodes:
        given, named = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
        if node.op == "placeholder":
            values[node] = next(inputs)
        elif node.op == "get_attr":
            values[node] = module.get_parameter(node.target)
        elif node.op == "call_module":
            values[node] = module.get_submodule(node.target)(*given, **named)
        elif node.op == "call_function":
            values[node] = node.target(*given, **named)
        else:
            return tuple(given[0])
    raise AssertionError("a graph without an output")


BUILD = [
    ("LlamaMLP", lambda: LlamaMLP(small_config("llama", mlp_bias=True)), (2, 7, 64)),
    ("Gemma3MLP", lambda: Gemma3MLP(small_config("gemma3_text")), (2, 7, 64)),
    ("Phi3MLP", lambda: Phi3MLP(small_config("phi3")), (2, 7, 64)),
    ("LlamaRMSNorm", lambda: LlamaRMSNorm(64, eps=1e-2), (2, 7, 64)),
    ("Gemma3RMSNorm", lambda: Gemma3RMSNorm(64, eps=1e-2), (2, 7, 64)),
    ("Olmo2RMSNorm", lambda: Olmo2RMSNorm(64, eps=1e-2), (2, 4, 7, 64)),
    ("Linear", lambda: nn.Linear(64, 8), (2, 7, 64)),
    ("LayerNorm", lambda: nn.LayerNorm(64), (3, 64)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("build", "shape"), [b[1:] for b in BUILD], ids=[b[0] for b in BUILD])
def test_replay_equals_the_module(build: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = build().eval()
        adversarial_(module)
        x = torch.randn(shape).to(dtype)
    module = module.to(dtype)
    with torch.device("meta"):
        other = build().eval().to(dtype)
    trace = trace_model(other, (torch.empty(shape, dtype=dtype, device="meta"),))
    assert trace.end is None
    with torch.no_grad():
        (found,) = replay(module, trace.graph, x)
        expected = module(x)
    assert torch.equal(found, expected)
    assert trace.result.shape == expected.shape and trace.result.dtype == expected.dtype


LINEARS = [
    ("nn.Linear(W, I)", (16, 24, "out_in", True)),
    ("nn.Linear(W, I, bias=False)", (16, 24, "out_in", False)),
    ("Conv1D(I, W)", (16, 24, "in_out", True)),
    ("nn.Sequential(nn.Linear(W, I))", None),
    ("nn.Bilinear(W, W, I)", None),
    ("torch.nn.utils.parametrizations.weight_norm(nn.Linear(W, I))", None),
    ("Scaled()", None),
    ("Reshaped()", None),
]


@pytest.mark.parametrize(("child", "facts"), LINEARS, ids=[entry[0] for entry in LINEARS])
def test_linear_maps_are_known_by_what_they_do(child: str, facts: Any) -> None:
    cls = zoo_class(f"""
    from transformers.pytorch_utils import Conv1D

    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(W, I)

        def forward(self, x):
            return super().forward(x) * 2

    class Reshaped(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(I, 7 * W))

        def forward(self, x):
            return F.linear(x.reshape(2, -1), self.weight)

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = {child}

        def forward(self, x):
            return self.child(x{", x" if "Bilinear" in child else ""})
    """)
    with torch.device("meta"):
        module = cls().eval()
    trace = trace_model(module, (torch.empty(2, 7, 16, device="meta"),))
    assert trace.end is None, trace.end
    found = linear_of(trace.children[0].trace)
    if facts is None:
        assert found is None
        return
    assert found is not None
    assert (found.in_features, found.out_features, found.layout, found.bias is not None) == facts
    assert found.weight == "weight"
