"""The double's MLP and quantized norm against torch's own functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as TF

from tests.neuron.double import State
from tests.neuron.test_double_attention import NF, enum, rms

Draw = Callable[..., Tensor]


def close(got: Tensor, want: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "SiLU": TF.silu,
    "GELU": TF.gelu,
    "GELU_Tanh_Approx": lambda x: TF.gelu(x, approximate="tanh"),
    "Swish": TF.silu,
}


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_mlp(double: State, draw: Draw, act: str) -> None:
    """Residual add, norm, biases; the sum is given back on demand."""
    x, add, gamma = draw(5, 32), draw(5, 32), draw(1, 32)
    gate, up, down = draw(32, 24), draw(32, 24), draw(24, 32)
    gate_b, up_b, down_b = draw(1, 24), draw(1, 24), draw(1, 32)
    got, total = NF().mlp(
        x,
        gate,
        up,
        down,
        1e-5,
        gamma,
        act_fn=enum("ActFnType")[act],
        gate_b=gate_b,
        up_b=up_b,
        down_b=down_b,
        norm_type=enum("NormType").RMS_NORM,
        fused_add_tensor=add,
        store_fused_add_result=True,
    )
    assert torch.equal(total, x + add)
    n = rms(x + add, gamma[0], 1e-5)
    close(got, (ACTIVATIONS[act](n @ gate + gate_b) * (n @ up + up_b)) @ down + down_b, 1e-4)


def test_mlp_without_a_gate(double: State, draw: Draw) -> None:
    x, up, down = draw(3, 16), draw(16, 8), draw(8, 16)
    got = NF().mlp(x, up, up, down, skip_gate=True, act_fn=enum("ActFnType").GELU)
    close(got, TF.gelu(x @ up) @ down)


def test_rmsnorm_quant(double: State, draw: Draw) -> None:
    """One scale: clamped at 240; one per row: its largest value becomes 448."""
    x, gamma = draw(4, 16) * 100, draw(16)
    scale = torch.full((128, 1), 0.01)
    n = rms(x, gamma, 1e-6)
    static = NF().rmsnorm_quant(x, gamma, scale)
    close(static.float(), (n / 0.01).clamp(-240, 240).to(torch.float8_e4m3fn).float())
    rows = NF().rmsnorm_quant(x, gamma, quantization_type=enum("QuantizationType").ROW)
    scales = rows[:, 16:].contiguous().view(torch.float32)
    close(scales[:, 0], n.abs().amax(-1) / 448)
    assert rows[:, :16].float().abs().amax(-1).tolist() == [448.0] * 4
