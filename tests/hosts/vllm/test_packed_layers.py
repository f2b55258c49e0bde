"""Which of vLLM's layers run on packed weights, and that they compute what they did."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("vllm")
from vllm.lora.layers.base import BaseLayerWithLoRA
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)

from neuron_autoport import nf as NF
from neuron_autoport.hosts.vllm.compiled import _forward_of
from neuron_autoport.hosts.vllm.layers import GATED, IS_GATED, LayerHalf
from neuron_autoport.hosts.vllm.packed import build
from neuron_autoport.hosts.vllm.packed.build import LEVELS, Kernel
from neuron_autoport.hosts.vllm.packed.layers import HostedLinear, PackedHead, pack_linears
from tests.hosts.vllm.packing import CAPABLE

pytestmark = pytest.mark.skipif(not CAPABLE, reason="no CPU of a known level")


class OwnMethod(UnquantizedLinearMethod):
    """Somebody's own way to run a layer that is not quantized."""


class Head(ParallelLMHead):
    """The class without its ranks."""

    def __init__(self) -> None:
        nn.Module.__init__(self)


def layer(method: Any, outputs: int = 96, made: nn.Module | None = None) -> Any:
    module: Any = made if made is not None else nn.Module()
    numbers = torch.Generator().manual_seed(outputs)
    weight = nn.Parameter(torch.randn(outputs, 40, generator=numbers), requires_grad=False)
    module.weight, module.quant_method = weight, method
    return module


def loaded(model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """As vLLM has it after loading."""
    pack_linears(model, dtype)
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(module)
    return model


@pytest.mark.parametrize("bias", [None, torch.arange(96.0)])
def test_a_linear_layer(bias: Tensor | None) -> None:
    linear = layer(UnquantizedLinearMethod())
    weight, x = linear.weight.detach().clone(), torch.randn(2, 5, 40)
    loaded(nn.ModuleList([linear]))
    assert type(linear.quant_method) is HostedLinear
    y = linear.quant_method.apply(linear, x, bias)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(y.double(), exact, rtol=1e-6, atol=1e-5)
    assert linear.weight.numel() == 0  # one copy of it is kept, the packed one


def gated_layer(sizes: tuple[int, int] = (48, 48), **changed: Any) -> Any:
    """As the host builds gate and up of one MLP: a merged layer."""
    linear = layer(UnquantizedLinearMethod(), outputs=sum(sizes))
    facts = {"output_partition_sizes": list(sizes), "skip_bias_add": False, "gather_output": False}
    for name, value in {IS_GATED: True, "bias": None, **facts, **changed}.items():
        setattr(linear, name, value)
    return linear


@pytest.mark.parametrize("bias", [None, torch.arange(96.0) / 50 - 1])
@pytest.mark.parametrize("act_fn", [NF.ActFnType.SiLU, NF.ActFnType.GELU_Tanh_Approx])
def test_gate_and_up_of_an_mlp_run_with_their_activation(
    bias: Tensor | None, act_fn: NF.ActFnType
) -> None:
    owner = nn.Module()
    owner.both = linear = gated_layer(bias=bias)
    numbers = torch.Generator().manual_seed(1)
    x, down = (torch.randn(shape, generator=numbers) for shape in ((5, 40), (48, 8)))
    weight = linear.weight.detach().clone()
    loaded(owner)
    gate, up = LayerHalf(owner, "both", second=False), LayerHalf(owner, "both", second=True)
    calls: list[str] = []
    linear.forward = lambda x: calls.append("whole") or linear.quant_method.apply(linear, x, bias)
    y = NF.mlp(x, gate, up, down, act_fn=act_fn)
    both = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    first, second = both.chunk(2, dim=-1)
    act = F.silu if act_fn is NF.ActFnType.SiLU else functools.partial(F.gelu, approximate="tanh")
    torch.testing.assert_close(
        y.double(), act(first) * second @ down.double(), rtol=1e-5, atol=2e-3
    )
    assert not calls and linear.weight.numel() == 0
    # What the kernel does not have runs on the whole product: another activation, clamps, halves in another order.
    y = NF.mlp(x, gate, up, down, act_fn=NF.ActFnType.GELU)
    torch.testing.assert_close(
        y.double(), F.gelu(first) * second @ down.double(), rtol=1e-5, atol=2e-3
    )
    y = NF.mlp(x, gate, up, down, act_fn=act_fn, up_clamp_upper_limit=0.5)
    torch.testing.assert_close(
        y.double(), act(first) * second.clamp(max=0.5) @ down.double(), rtol=1e-5, atol=2e-3
    )
    y = NF.mlp(x, up, gate, down, act_fn=act_fn)
    torch.testing.assert_close(
        y.double(), act(second) * first @ down.double(), rtol=1e-5, atol=2e-3
    )
    assert calls == ["whole"] * 3


def test_the_inside_of_an_mlp_is_one_operation_of_its_graph() -> None:
    """Nothing is timed: a graph that makes halves and their activation apart has more operations."""
    owner = nn.Module()
    owner.both = gated_layer(bias=torch.zeros(96))
    loaded(owner)
    gate, up = LayerHalf(owner, "both", second=False), LayerHalf(owner, "both", second=True)
    graphs: list[torch.fx.GraphModule] = []

    def seen(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    run = torch.compile(lambda x, down: NF.mlp(x, gate, up, down), backend=seen, fullgraph=True)
    run(torch.randn(5, 40), torch.randn(48, 8))
    (graph,) = graphs
    called = [str(node.target) for node in graph.graph.nodes if node.op.startswith("call_")]
    assert len(called) == 2, called
    assert "packed_halves" in called[0] and "matmul" in called[1], called


def test_what_wraps_the_layer_to_add_to_its_output_is_not_passed_by() -> None:
    """vLLM puts a module around each layer for LoRA, which has the layer's public attributes."""
    owner = nn.Module()
    owner.both = linear = gated_layer()
    loaded(owner)
    wrapper: Any = BaseLayerWithLoRA()
    wrapper.base_layer = linear
    gate, up = LayerHalf(owner, "both", second=False), LayerHalf(owner, "both", second=True)
    x = torch.randn(5, 40)
    assert gate.gated_linear(x, up, NF.ActFnType.SiLU) is not None
    owner.both = wrapper
    assert wrapper.output_partition_sizes == [48, 48]  # a name that is the layer's
    assert gate.gated_linear(x, up, NF.ActFnType.SiLU) is None


@pytest.mark.parametrize(
    "linear",
    [
        gated_layer((32, 64)),
        gated_layer(**{IS_GATED: False}),
        gated_layer(gather_output=True),
        gated_layer(skip_bias_add=True),
    ],
    ids=["unlike parts", "no MLP", "gathered", "bias apart"],
)
def test_other_layers_of_two_parts_have_no_activation(linear: Any) -> None:
    weight, x = linear.weight.detach().clone(), torch.randn(5, 40)
    loaded(nn.ModuleList([linear]))
    assert not hasattr(linear, GATED)
    torch.testing.assert_close(linear.quant_method.apply(linear, x), x @ weight.t())


def test_the_head_keeps_its_weight_for_the_embedding() -> None:
    head = layer(UnquantizedEmbeddingMethod(), outputs=200, made=Head())
    weight, x = head.weight.detach().clone(), torch.randn(3, 40)
    loaded(nn.ModuleList([head]))
    assert type(head.quant_method) is PackedHead
    exact = x.double() @ weight.double().t()
    torch.testing.assert_close(
        head.quant_method.apply(head, x).double(), exact, rtol=1e-6, atol=1e-5
    )
    assert torch.equal(head.quant_method.embedding(head, torch.tensor([7])), weight[[7]])


def test_a_layer_too_narrow_for_a_panel_runs_as_vllm_runs_it() -> None:
    router = layer(UnquantizedLinearMethod(), outputs=8)
    weight, x = router.weight.detach().clone(), torch.randn(5, 40)
    loaded(nn.ModuleList([router]))
    torch.testing.assert_close(router.quant_method.apply(router, x), x @ weight.t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vllms_product_is_called_as_a_function(dtype: torch.dtype) -> None:
    """What writes into a tensor may come to stand behind what reads it, in a compiled graph; a function cannot."""
    # 24: too few for a panel of ours, and not what vLLM has a kernel of its own for on CPUs with AMX.
    linear = layer(UnquantizedLinearMethod(), outputs=24)
    linear.weight.data = linear.weight.to(dtype)
    weight, bias, x = (
        linear.weight.detach().clone(),
        torch.ones(24).to(dtype),
        torch.randn(2, 3, 40).to(dtype),
    )
    loaded(nn.ModuleList([linear]), dtype)
    graphs: list[torch.fx.GraphModule] = []

    def seen(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    run = torch.compile(lambda x: linear.quant_method.apply(linear, x, bias), backend=seen)
    torch.testing.assert_close(run(x), F.linear(x, weight, bias))
    called = [node.target for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert (
        torch.ops.neuron_autoport.onednn in called
        or torch.ops.neuron_autoport.onednn.default in called
    )
    assert not any("_C.onednn_mm" in str(target) for target in called)


def test_a_layer_that_vllm_has_other_plans_for_runs_as_vllm_runs_it() -> None:
    """It reads the weight of this one elsewhere."""
    linear = layer(UnquantizedLinearMethod())
    linear._cpu_skip_gemm_dispatch = True
    loaded(nn.ModuleList([linear]))
    assert linear.cpu_linear is F.linear and linear.weight.shape == (96, 40)


def test_a_weight_of_three_axes_is_left_to_those_who_read_it() -> None:
    convolution = layer(UnquantizedLinearMethod())
    convolution.weight = nn.Parameter(torch.randn(96, 1, 4), requires_grad=False)
    weight = convolution.weight.detach().clone()
    loaded(nn.ModuleList([convolution]))
    assert torch.equal(convolution.weight, weight) and not hasattr(convolution, "cpu_linear")


@pytest.mark.parametrize(
    "method", [OwnMethod(), UnquantizedEmbeddingMethod()], ids=["own method", "an embedding"]
)
def test_other_layers_are_left_alone(method: Any) -> None:
    other = layer(method)
    pack_linears(nn.ModuleList([other]), torch.float32)
    assert other.quant_method is method


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    build.kernel.cache_clear()
    monkeypatch.setenv(build.SETTING, "0")
    yield
    build.kernel.cache_clear()


@pytest.mark.usefixtures("without")
def test_switched_off_vllms_product_runs() -> None:
    linear = layer(UnquantizedLinearMethod())
    weight, x = linear.weight.detach().clone(), torch.randn(5, 40)
    loaded(nn.ModuleList([linear]))
    assert linear.quant_method.kernel is None
    torch.testing.assert_close(linear.quant_method.apply(linear, x), x @ weight.t())


def test_compiled_code_of_one_kernel_is_not_read_by_another() -> None:
    """vLLM keeps compiled code under the name of this function."""
    proved: Any = SimpleNamespace(generated=SimpleNamespace(text="class Rewritten: ..."))
    new, old = (Kernel(level, *[Mock()] * 3) for level in LEVELS)
    names = [_forward_of(proved, made).__qualname__ for made in (None, new, old, new)]
    assert len(set(names)) == 3 and names[1] == names[3]
