"""NK.rms_norm against the Hugging Face norms it stands for, bit for bit, and against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.llama4.modeling_llama4 import Llama4TextL2Norm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from neuron_autoport import kernels as NK

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 8), (7, 64), (2, 5, 96), (2, 3, 4, 33)]
EPS = 1e-3


def data(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(3))
    if kind == "outliers":
        x[..., ::8] *= 40.0
    elif kind == "tiny":
        x *= 1e-3  # eps dominates
    return x.to(dtype)


def weights(width: int, dtype: torch.dtype) -> Tensor:
    """1 + 0.5 * normal, with some below zero."""
    w = 1 + 0.5 * torch.randn(width, generator=torch.Generator().manual_seed(4))
    w[::5] = -w[::5]
    return w.to(dtype)


def loaded(module: nn.Module, weight: Tensor) -> nn.Module:
    module.weight = nn.Parameter(weight)
    return module


CASES = pytest.mark.parametrize("kind", ["normal", "outliers", "tiny"])


@CASES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_bitwise_as_hugging_face(shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> None:
    x, w = data(shape, kind, dtype), weights(shape[-1], dtype)
    width = shape[-1]
    llama = loaded(LlamaRMSNorm(width, eps=EPS), w)(x)
    gemma = loaded(Gemma3RMSNorm(width, eps=EPS), w)(x)
    olmo = loaded(Olmo2RMSNorm(width, eps=EPS), w)(x)
    l2 = Llama4TextL2Norm(eps=EPS)(x)
    assert torch.equal(NK.rms_norm(x, w, EPS), llama)
    assert torch.equal(NK.rms_norm(x, w, EPS, offset=1.0, weight_in_fp32=True), gemma)
    assert torch.equal(NK.rms_norm(x, w, EPS, weight_in_fp32=True), olmo)
    assert torch.equal(NK.rms_norm(x, eps=EPS), l2)
    assert NK.rms_norm(x, w, EPS).dtype == dtype


def test_the_forms_differ_in_bfloat16() -> None:
    """Otherwise the bitwise test above would not tell the rounding orders apart."""
    x, w = data((64, 96), "outliers", torch.bfloat16), weights(96, torch.bfloat16)
    assert not torch.equal(NK.rms_norm(x, w), NK.rms_norm(x, w, weight_in_fp32=True))


def test_float32_weight_on_bfloat16_input_promotes_as_the_source_does() -> None:
    x, w = data((7, 64), "normal", torch.bfloat16), weights(64, torch.float32)
    want = loaded(LlamaRMSNorm(64, eps=1e-6), w)(x)
    got = NK.rms_norm(x, w)
    assert got.dtype == want.dtype == torch.float32
    assert torch.equal(got, want)
    assert NK.rms_norm(x, w, weight_in_fp32=True).dtype == torch.bfloat16


@CASES
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("dtype", "ulps"), [(torch.float32, 8.0), (torch.bfloat16, 0.51)])
def test_within_rounding_of_float64(
    dtype: torch.dtype, ulps: float, offset: float, kind: str
) -> None:
    """float32: at most 8 roundings; bfloat16 with the weight in float32: the final one only."""
    x, w = data((9, 96), kind, dtype), weights(96, dtype)
    x64 = x.double()
    exact = x64 / (x64.square().mean(-1, keepdim=True) + EPS).sqrt() * (offset + w.double())
    got = NK.rms_norm(x, w, EPS, offset=offset, weight_in_fp32=True)
    ulp = exact.abs().log2().floor().exp2() * torch.finfo(dtype).eps
    # offset + weight may cancel; what float32 loses there is relative to the sum's operands
    slack = torch.finfo(torch.float32).eps * x64.abs().max()
    assert ((got.double() - exact).abs() <= ulps * ulp + slack * offset).all()


def test_per_head_weight_and_gradient() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 4, requires_grad=True)
    y = NK.rms_norm(x.float(), w, 0.0, weight_in_fp32=True)
    rows = [NK.rms_norm(x[:, i].float(), w[i], 0.0) for i in range(3)]
    assert torch.equal(y, torch.stack(rows, dim=1))
    y.square().sum().backward()  # with eps 0 and fixed weights sum of squares is sum(w^2 x^2) / ms
    assert x.grad is not None
    radial = (x.grad * x).sum(-1)  # the norm does not change along x
    assert radial.abs().max() < 1e-5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": torch.ones(8), "offset": 1.0}, "offset=1.0"),
        ({"offset": 1.0}, "offset=1.0"),
        ({"offset": 1.0, "weight_in_fp32": True}, "offset=1.0"),
        ({"weight": torch.ones(1)}, "last axes"),
        ({"weight": torch.ones(4), "weight_in_fp32": True}, "last axes"),
    ],
)
def test_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NK.rms_norm(torch.ones(3, 8), **arguments)  # type: ignore[arg-type]


def test_traces_in_one_graph() -> None:
    x, w = torch.randn(3, 16), weights(16, torch.float32)
    compiled = torch.compile(NK.rms_norm, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, w, offset=1.0, weight_in_fp32=True), loaded_gemma(w)(x))


def loaded_gemma(weight: Tensor) -> nn.Module:
    return loaded(Gemma3RMSNorm(weight.shape[0], eps=1e-6), weight)
