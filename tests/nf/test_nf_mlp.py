"""NF.mlp's torch reference against a float64 formula written here in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neuron_autoport import nf as NF

erf = np.vectorize(math.erf)
ACT: dict[NF.ActFnType, Any] = {
    NF.ActFnType.SiLU: lambda g: g / (1 + np.exp(-g)),
    NF.ActFnType.Swish: lambda g: g / (1 + np.exp(-g)),
    NF.ActFnType.GELU: lambda g: 0.5 * g * (1 + erf(g / math.sqrt(2))),
    NF.ActFnType.GELU_Tanh_Approx: lambda g: (
        0.5 * g * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)))
    ),
}
SHAPES = [(1, 16, 24), (5, 64, 176), (33, 48, 8)]


def f64(value: Tensor) -> np.ndarray:
    return value.detach().double().numpy()


def make(draw: Any, tokens: int, hidden: int, inner: int) -> dict[str, Any]:
    return {
        "hidden": draw(tokens, hidden, outliers=True),
        "gate_w": draw(hidden, inner, scale=hidden**-0.5),
        "up_w": draw(hidden, inner, scale=hidden**-0.5),
        "down_w": draw(inner, hidden, scale=inner**-0.5),
    }


@pytest.mark.parametrize("act", list(ACT))
@pytest.mark.parametrize("shape", SHAPES)
def test_gated(draw: Any, close: Any, shape: tuple[int, int, int], act: NF.ActFnType) -> None:
    a = make(draw, *shape)
    x, gate, up, down = (f64(each) for each in a.values())
    close(NF.mlp(**a, act_fn=act), (ACT[act](x @ gate) * (x @ up)) @ down)


@pytest.mark.parametrize("shape", SHAPES)
def test_biases(draw: Any, close: Any, shape: tuple[int, int, int]) -> None:
    a = make(draw, *shape)
    gate_b, up_b, down_b = draw(1, shape[2]), draw(1, shape[2]), draw(1, shape[1])
    x, gate, up, down = (f64(each) for each in a.values())
    inner = ACT[NF.ActFnType.SiLU](x @ gate + f64(gate_b)) * (x @ up + f64(up_b))
    got = NF.mlp(**a, gate_b=gate_b, up_b=up_b, down_b=down_b)
    close(got, inner @ down + f64(down_b))


def test_skip_gate_activates_up_and_does_not_look_at_gate(draw: Any, close: Any) -> None:
    a = make(draw, 7, 32, 40)
    up_b, down_b = draw(1, 40), draw(1, 32)
    a["gate_w"] = torch.full((3, 3), math.nan)
    x, _, up, down = (f64(each) for each in a.values())
    got = NF.mlp(**a, skip_gate=True, act_fn=NF.ActFnType.GELU, up_b=up_b, down_b=down_b)
    close(got, ACT[NF.ActFnType.GELU](x @ up + f64(up_b)) @ down + f64(down_b))


def test_rms_norm_and_residual(draw: Any, close: Any) -> None:
    a = make(draw, 9, 64, 80)
    gamma, extra = 1 + draw(1, 64, scale=0.5), draw(9, 64, outliers=True)
    got = NF.mlp(
        **a,
        eps=1e-3,
        ln_w=gamma,
        norm_type=NF.NormType.RMS_NORM,
        fused_add_tensor=extra,
        store_fused_add_result=True,
    )
    x, gate, up, down = (f64(each) for each in a.values())
    total = x + f64(extra)
    normed = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-3) * f64(gamma)
    assert isinstance(got, tuple)
    close(got[0], (ACT[NF.ActFnType.SiLU](normed @ gate) * (normed @ up)) @ down)
    close(got[1], total, rel=1e-7)


def test_residual_without_storing_returns_one_tensor(draw: Any, close: Any) -> None:
    a, extra = make(draw, 4, 16, 24), draw(4, 16)
    x, gate, up, down = (f64(each) for each in a.values())
    total = x + f64(extra)
    got = NF.mlp(**a, fused_add_tensor=extra)
    close(got, (ACT[NF.ActFnType.SiLU](total @ gate) * (total @ up)) @ down)


@pytest.mark.parametrize("beta", [True, False])
def test_layer_norm(draw: Any, close: Any, beta: bool) -> None:
    a = make(draw, 6, 40, 24)
    gamma = 1 + draw(1, 40, scale=0.5)
    shift = draw(1, 40) if beta else None
    x, gate, up, down = (f64(each) for each in a.values())
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * f64(gamma)
    x = x if shift is None else x + f64(shift)
    got = NF.mlp(**a, eps=1e-5, ln_w=gamma, norm_b=shift, norm_type=NF.NormType.LAYER_NORM)
    close(got, (ACT[NF.ActFnType.SiLU](x @ gate) * (x @ up)) @ down)


def test_skip_gamma(draw: Any, close: Any) -> None:
    a = make(draw, 6, 40, 24)
    x, gate, up, down = (f64(each) for each in a.values())
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    got = NF.mlp(**a, norm_type=NF.NormType.RMS_NORM_SKIP_GAMMA)
    close(got, (ACT[NF.ActFnType.SiLU](x @ gate) * (x @ up)) @ down)


@pytest.mark.parametrize(
    "limits",
    [
        {"gate_clamp_upper_limit": 0.5},
        {"up_clamp_lower_limit": -0.25},
        {
            "gate_clamp_upper_limit": 7.0,
            "gate_clamp_lower_limit": -1.0,
            "up_clamp_upper_limit": 2.0,
            "up_clamp_lower_limit": -2.0,
        },
    ],
)
def test_clamps_before_activation(draw: Any, close: Any, limits: dict[str, Any]) -> None:
    a = make(draw, 9, 32, 48)
    x, gate_w, up_w, down = (f64(each) for each in a.values())
    low, high = limits.get, limits.get
    gate = np.clip(
        x @ gate_w, low("gate_clamp_lower_limit", -1e9), high("gate_clamp_upper_limit", 1e9)
    )
    up = np.clip(x @ up_w, low("up_clamp_lower_limit", -1e9), high("up_clamp_upper_limit", 1e9))
    want = (ACT[NF.ActFnType.SiLU](gate) * up) @ down
    close(NF.mlp(**a, **limits), want)
    unclamped = (ACT[NF.ActFnType.SiLU](x @ gate_w) * (x @ up_w)) @ down
    assert np.abs(unclamped - want).max() > 0.01 * np.abs(want).max()


def test_bfloat16_stays_bfloat16(draw: Any, close: Any) -> None:
    a: dict[str, Any] = {name: value.bfloat16() for name, value in make(draw, 9, 64, 80).items()}
    gamma = (1 + draw(1, 64, scale=0.5)).bfloat16()
    x, gate, up, down = (f64(each) for each in a.values())
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * f64(gamma)
    got = NF.mlp(**a, ln_w=gamma, norm_type=NF.NormType.RMS_NORM, output_dtype=torch.bfloat16)
    assert isinstance(got, Tensor) and got.dtype == torch.bfloat16
    close(got, (ACT[NF.ActFnType.SiLU](x @ gate) * (x @ up)) @ down, rel=0.03)


def test_gradients_reach_every_argument(draw: Any) -> None:
    a: dict[str, Any] = make(draw, 3, 8, 6)
    a["ln_w"], a["down_b"], a["fused_add_tensor"] = draw(1, 8), draw(1, 8), draw(3, 8)
    leaves = [value.double().requires_grad_() for value in a.values()]

    def run(*values: Tensor) -> Tensor:
        given: dict[str, Any] = dict(zip(a, values, strict=True))
        y = NF.mlp(**given, norm_type=NF.NormType.RMS_NORM)
        assert isinstance(y, Tensor)
        return y

    assert torch.autograd.gradcheck(run, leaves)
