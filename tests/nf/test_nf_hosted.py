"""Hosted weights, eager and in a full graph: a host's layer is called, merged layers once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neuron_autoport import nf as NF


class Merged(nn.Module):
    """A host's merged gate/up layer: [out, in] weight, own bias, result in a tuple."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 2 * inner)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.layer(x), None


class Half:
    """One half of an owner's merged layer; the host finds the layer by name at each call."""

    def __init__(self, owner: nn.Module, name: str, index: int) -> None:
        self.owner, self.name, self.index = owner, name, index

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        assert bias is None
        y, _ = getattr(self.owner, self.name)(x)
        return y.chunk(2, dim=-1)[self.index]

    def pair_linear(self, x: Tensor, other: object) -> tuple[Tensor, Tensor] | None:
        if not isinstance(other, Half) or other.owner is not self.owner:
            return None
        if other.name != self.name or (self.index, other.index) != (0, 1):
            return None
        y, _ = getattr(self.owner, self.name)(x)
        gate, up = y.chunk(2, dim=-1)
        return gate, up


class Whole:
    """A weight that is a whole layer, without `pair_linear`."""

    def __init__(self, owner: nn.Module, name: str) -> None:
        self.owner, self.name = owner, name

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = getattr(self.owner, self.name)(x)
        return y if bias is None else y + bias


class HostMLP(nn.Module):
    """A rewritten MLP as a host sets it up."""

    def __init__(self, swapped: bool = False) -> None:
        super().__init__()
        self.gate_up_proj = Merged(8, 6)
        self.down_proj = nn.Linear(6, 8)
        self.gate, self.up = Half(self, "gate_up_proj", 0), Half(self, "gate_up_proj", 1)
        self.down = Whole(self, "down_proj")
        if swapped:
            self.gate, self.up = self.up, self.gate

    def forward(self, x: Tensor) -> Any:
        return NF.mlp(x, self.gate, self.up, self.down, act_fn=NF.ActFnType.GELU)


def expected(mlp: HostMLP, x: Tensor, swapped: bool = False) -> Tensor:
    gate, up = mlp.gate_up_proj.layer(x).double().chunk(2, -1)
    if swapped:
        gate, up = up, gate
    cdf = 0.5 * (1 + torch.erf(gate / 2**0.5))
    down = mlp.down_proj
    result: Tensor = gate * cdf * up @ down.weight.double().t() + down.bias.double()
    return result


def count_runs(module: nn.Module) -> list[None]:
    runs: list[None] = []
    module.register_forward_hook(lambda *_: runs.append(None))
    return runs


def test_merged_layer_runs_once() -> None:
    mlp, x = HostMLP(), torch.randn(5, 8)
    runs = count_runs(mlp.gate_up_proj)
    torch.testing.assert_close(mlp(x).double(), expected(mlp, x), atol=1e-6, rtol=1e-5)
    assert len(runs) == 1


def test_halves_in_the_wrong_order_are_no_pair() -> None:
    mlp, x = HostMLP(swapped=True), torch.randn(5, 8)
    runs = count_runs(mlp.gate_up_proj)
    want = expected(mlp, x, swapped=True)
    torch.testing.assert_close(mlp(x).double(), want, atol=1e-6, rtol=1e-5)
    assert len(runs) == 2


def test_pair_is_not_used_when_a_bias_must_be_added() -> None:
    class Biased(Half):
        def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
            y = super().linear(x, None)
            return y if bias is None else y + bias

    mlp, x, bias = HostMLP(), torch.randn(5, 8), torch.randn(1, 6)
    gate, up = Biased(mlp, "gate_up_proj", 0), Biased(mlp, "gate_up_proj", 1)
    got = NF.mlp(x, gate, up, mlp.down, up_b=bias)
    g, u = mlp.gate_up_proj.layer(x).chunk(2, -1)
    want = mlp.down_proj(g * torch.sigmoid(g) * (u + bias))
    torch.testing.assert_close(got, want)


def test_mixed_hosted_and_tensor() -> None:
    owner = nn.ModuleDict({"gate": nn.Linear(8, 6, bias=False), "down": nn.Linear(6, 8)})
    gate, down = Whole(owner, "gate"), Whole(owner, "down")
    owner.gate, owner.down = owner["gate"], owner["down"]
    x, up, bias = torch.randn(5, 8), torch.randn(8, 6), torch.randn(1, 6)
    g = owner["gate"](x) + bias
    want = owner["down"](g * torch.sigmoid(g) * (x @ up))
    torch.testing.assert_close(NF.mlp(x, gate, up, down, gate_b=bias), want)
    g = owner["gate"](x)
    want = owner["down"](g * torch.sigmoid(g) * (x @ up))
    torch.testing.assert_close(NF.mlp(x, gate, up, down), want)


@pytest.mark.parametrize("swapped", [False, True])
def test_full_graph_with_any_number_of_tokens(swapped: bool) -> None:
    mlp = HostMLP(swapped)
    graphs: list[Any] = []

    def count(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(mlp, fullgraph=True, dynamic=True, backend=count)
    for tokens in (2, 5, 17, 64):
        x = torch.randn(tokens, 8)
        want = expected(mlp, x, swapped)
        torch.testing.assert_close(compiled(x).double(), want, atol=1e-6, rtol=1e-5)
    [graph] = graphs
    linears = sum(node.target is nn.functional.linear for node in graph.graph.nodes)
    assert linears == (3 if swapped else 2)


class HostAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj, self.out = nn.Linear(8, 16), nn.Linear(8, 8)
        self.qkv_w, self.o_w = Whole(self, "qkv_proj"), Whole(self, "out")

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        qkv: Any = NF.qkv_proj(
            x[None],
            self.qkv_w,
            cos_cache=cos,
            sin_cache=sin,
            num_q_heads=2,
            num_kv_heads=1,
            qk_norm_pre_rope_q_norm=NF.NormType.RMS_NORM,
            qk_norm_pre_rope_k_norm=NF.NormType.RMS_NORM,
        )
        return NF.o_proj(qkv[..., :8], self.o_w)[0]


def test_attention_projections_in_a_full_graph() -> None:
    host = HostAttention()
    compiled = torch.compile(host, fullgraph=True, dynamic=True, backend="eager")
    for tokens in (2, 7, 33):
        x = torch.randn(tokens, 8)
        angles = torch.rand(1, tokens, 2).repeat(1, 1, 2)
        cos, sin = angles.cos(), angles.sin()
        q = host.qkv_proj(x).double()[:, :8].view(tokens, 2, 4)
        q = q / (q.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        turned = torch.cat((-q[..., 2:], q[..., :2]), -1)
        q = q * cos[0].double()[:, None] + turned * sin[0].double()[:, None]
        want = q.reshape(tokens, 8) @ host.out.weight.double().t() + host.out.bias.double()
        got = compiled(x, cos, sin)
        torch.testing.assert_close(got.double(), want, atol=1e-6, rtol=1e-5)


def test_tensor_weights_in_one_dynamic_graph() -> None:
    """Plain tensors, all three functions: one graph for every token count."""
    width, graphs = 8, []
    w, down, qkv_w = torch.randn(8, 6), torch.randn(6, 8), torch.randn(8, 16)
    row = torch.randn(1, 8)

    def run(x: Tensor) -> Any:
        y: Any = NF.mlp(x, w, w, down, down_b=row, norm_type=NF.NormType.LAYER_NORM, ln_w=row)
        qkv: Any = NF.qkv_proj(y[None], qkv_w, d_head=4, output_layout=NF.QKVOutputLayout.NBdS)
        return NF.o_proj(qkv[:2].transpose(0, 1), torch.eye(width), row)

    def count(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(run, fullgraph=True, backend=count)
    first = torch.randn(3, width)
    torch._dynamo.mark_dynamic(first, 0)
    for x in (first, torch.randn(5, width), torch.randn(40, width)):
        assert torch.equal(compiled(x), run(x))
    assert len(graphs) == 1
