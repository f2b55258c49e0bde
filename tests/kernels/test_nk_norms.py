"""NK.add_rms_norm and NK.layer_norm against the Hugging Face lines they stand for, and float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P

from neuron_autoport import kernels as NK
from tests.kernels import bounds
from tests.kernels.data import DTYPES, KINDS, rows, weight

EPS = 1e-3
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
by_kind = pytest.mark.parametrize("kind", KINDS)


def loaded(module: nn.Module, weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    module.weight = nn.Parameter(weight)
    if bias is not None:
        module.bias = nn.Parameter(bias)
    return module


@by_kind
@by_dtype
def test_add_rms_norm_is_two_lines_of_torch(dtype: torch.dtype, kind: str) -> None:
    x, residual = rows(2, 5, 96, kind=kind, dtype=dtype), rows(2, 5, 96, dtype=dtype)
    w = weight(96, dtype)
    llama, gemma = (loaded(c(96, eps=EPS), w) for c in (LlamaRMSNorm, Gemma3RMSNorm))
    summed = residual + x
    got, total = NK.add_rms_norm(x, residual, w, EPS)
    assert torch.equal(total, summed) and torch.equal(got, llama(summed))
    got, total = NK.add_rms_norm(x, residual, w, EPS, offset=1.0, weight_in_fp32=True)
    assert torch.equal(total, summed) and torch.equal(got, gemma(summed))


def test_the_norm_reads_the_rounded_sum() -> None:
    x, residual = (rows(64, 96, kind=kind, dtype=torch.bfloat16) for kind in ("outliers", "normal"))
    got, _ = NK.add_rms_norm(x, residual)
    wide = NK.rms_norm(residual.float() + x.float()).to(torch.bfloat16)
    assert not torch.equal(got, wide)


@by_kind
@by_dtype
def test_layer_norm_is_that_of_torch(dtype: torch.dtype, kind: str) -> None:
    x, w, b = rows(7, 96, kind=kind, dtype=dtype), weight(96, dtype), weight(96, dtype, "bias")
    for scale, shift in ((None, None), (w, None), (w, b)):
        want = F.layer_norm(x, (96,), scale, shift, EPS)
        assert torch.equal(NK.layer_norm(x, scale, shift, EPS), want)
    nemotron = loaded(NemotronLayerNorm1P(96, eps=EPS), w, b)
    assert torch.equal(NK.layer_norm(x, w + 1, b, EPS), nemotron(x))


@by_kind
@by_dtype
def test_written_out_layer_norm_is_that_of_cohere(dtype: torch.dtype, kind: str) -> None:
    x = rows(3, 4, 96, kind=kind, dtype=dtype)
    for w in (weight(96, dtype), weight(4 * 96, dtype).view(4, 96)):  # per channel; per head
        want = loaded(CohereLayerNorm(tuple(w.shape), eps=EPS), w)(x)
        got = NK.layer_norm(x, w, eps=EPS, weight_in_fp32=True)
        assert torch.equal(got, want) and got.dtype == dtype


@by_kind
@by_dtype
def test_layer_norm_within_rounding_of_float64(dtype: torch.dtype, kind: str) -> None:
    x, w, b = rows(9, 200, kind=kind, dtype=dtype), weight(200, dtype), weight(200, dtype, "b")
    got = NK.layer_norm(x, w, b, EPS, offset=1.0, weight_in_fp32=True)
    bounds.check(got, bounds.layer(x, w, b, EPS, offset=1.0))


ONES = torch.ones(3, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NK.add_rms_norm(ONES, ONES[:1]), "shapes of x"),
        (lambda: NK.add_rms_norm(ONES, ONES, ONES[0, :4]), "last axes"),
        (lambda: NK.add_rms_norm(ONES, ONES, ONES[0], offset=1.0), "offset=1.0"),
        (lambda: NK.layer_norm(ONES, ONES[0, :4]), "last axes of weight"),
        (lambda: NK.layer_norm(ONES, None, ONES[0, :4]), "last axes of bias"),
        (lambda: NK.layer_norm(ONES, ONES[0], offset=1.0), "offset=1.0"),
        (lambda: NK.layer_norm(ONES, offset=1.0, weight_in_fp32=True), "offset=1.0"),
    ],
)
def test_refused(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()
