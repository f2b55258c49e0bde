"""NK.act_and_mul against the lines of Hugging Face MLPs, bit for bit, and against float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers.activations import ACT2FN
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from neuron_autoport import kernels as NK
from neuron_autoport.kernels.act_and_mul import KINDS
from tests.kernels import bounds
from tests.kernels.data import DTYPES, rows

NAMES = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu2": "relu2"}
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@by_dtype
@pytest.mark.parametrize("kind", NAMES)
def test_bitwise_as_hugging_face(kind: str, dtype: torch.dtype) -> None:
    gate, up = 3 * rows(2, 5, 64, dtype=dtype), rows(2, 5, 64, kind="outliers", dtype=dtype)
    act = ACT2FN[NAMES[kind]]
    assert torch.equal(NK.act_and_mul(gate, up, kind), act(gate) * up)
    # DeepSeek V4 clamps before the activation
    want = act(gate.clamp(max=2.0)) * up.clamp(min=-2.0, max=2.0)
    assert torch.equal(NK.act_and_mul(gate, up, kind, limit=2.0), want)


@by_dtype
def test_clamped_swiglu_is_that_of_gpt_oss(dtype: torch.dtype) -> None:
    gate, up = 6 * rows(5, 64, dtype=dtype), 6 * rows(5, 64, kind="outliers", dtype=dtype)
    experts = SimpleNamespace(limit=7.0, alpha=1.702)
    mixed = torch.stack((gate, up), dim=-1).flatten(-2)
    want = GptOssExperts._apply_gate(experts, mixed)
    assert torch.equal(NK.act_and_mul(gate, up, "clamped_swiglu", limit=7.0), want)
    assert not torch.equal(NK.act_and_mul(gate, up, "clamped_swiglu"), want)
    other = NK.act_and_mul(gate, up, "clamped_swiglu", limit=7.0, alpha=1.0)
    assert not torch.equal(other, want)


@by_dtype
@pytest.mark.parametrize("kind", KINDS)
def test_within_rounding_of_float64(kind: str, dtype: torch.dtype) -> None:
    gate, up = 4 * rows(9, 200, dtype=dtype), rows(9, 200, dtype=dtype)
    bounds.check(NK.act_and_mul(gate, up, kind, limit=7.0), bounds.gate(gate, up, kind, 7.0))


def test_refused() -> None:
    ones = torch.ones(2, 8)
    with pytest.raises(ValueError, match="kind 'swish'"):
        NK.act_and_mul(ones, ones, "swish")
    with pytest.raises(ValueError, match="silu has none"):
        NK.act_and_mul(ones, ones, alpha=1.0)
    with pytest.raises(ValueError, match="limit=-1"):
        NK.act_and_mul(ones, ones, limit=-1.0)
    with pytest.raises(ValueError, match="shapes of gate"):
        NK.act_and_mul(ones, ones[:, :4])
