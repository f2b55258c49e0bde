"""NF.o_proj's torch reference against a float64 einsum over heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from neuron_autoport import nf as NF

SHAPES = [(1, 4, 8, 5, 32), (2, 3, 16, 7, 40), (3, 1, 6, 1, 10)]  # B, N, D, S, H


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_heads_first_and_merged(draw: Any, close: Any, shape: Any, with_bias: bool) -> None:
    b, n, d, s, h = shape
    heads = draw(b, n, d, s, outliers=True)
    weight, bias = draw(n * d, h), draw(1, h) if with_bias else None
    want = np.einsum(
        "bnds,ndh->bsh", heads.double().numpy(), weight.double().numpy().reshape(n, d, h)
    )
    if bias is not None:
        want = want + bias.double().numpy()
    close(NF.o_proj(heads, weight, bias), want)
    merged = torch.stack([heads[:, :, :, i].reshape(b, n * d) for i in range(s)], dim=1)
    close(NF.o_proj(merged, weight, bias), want)


def test_gradcheck(draw: Any) -> None:
    leaves = [draw(*shape).double().requires_grad_() for shape in ((2, 2, 3, 2), (6, 4), (1, 4))]
    assert torch.autograd.gradcheck(NF.o_proj, leaves)
