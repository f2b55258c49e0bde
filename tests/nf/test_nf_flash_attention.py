"""NF.flash_attention's torch reference against a float64 loop over queries, keys and heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neuron_autoport import nf as NF

HEADS, KV, SEEN, D = 4, 2, 9, 8


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: int = 0, sink: Tensor | None = None
) -> np.ndarray:
    """softmax over the visible keys of each query, one by one."""
    a, b, c = (x.double().numpy() for x in (q, k, v))
    out = np.zeros((a.shape[0], a.shape[1], c.shape[2]))
    group = a.shape[0] // b.shape[0]
    for head in range(a.shape[0]):
        for i in range(a.shape[1]):
            keys = [j for j in range(i + 1) if not window or j > i - window]
            weights = np.array([np.exp(scale * a[head, i] @ b[head // group, j]) for j in keys])
            total = weights.sum() + (0.0 if sink is None else np.exp(float(sink[head, 0])))
            out[head, i] = sum(w * c[head // group, j] for w, j in zip(weights, keys, strict=True))
            out[head, i] /= total
    return out


@pytest.mark.parametrize("window", [None, 0, 1, 3, 100])
@pytest.mark.parametrize("with_sink", [False, True])
def test_window_and_sink(draw: Any, close: Any, window: int | None, with_sink: bool) -> None:
    q, k, v = draw(HEADS, SEEN, D), draw(KV, SEEN, D), draw(KV, SEEN, D)
    sink = draw(HEADS, 1, scale=2.0) if with_sink else None
    got = NF.flash_attention(q, k, v, scale=0.3, sink=sink, sliding_window=window, tp_k=True)
    close(got, attention(q, k, v, 0.3, window or 0, sink))


@pytest.mark.parametrize(("tp_q", "tp_k", "tp_out"), [(False, False, True), (True, False, False)])
def test_layouts_and_default_scale(
    draw: Any, close: Any, tp_q: bool, tp_k: bool, tp_out: bool
) -> None:
    q, k, v = draw(HEADS, SEEN, D), draw(KV, SEEN, D), draw(KV, SEEN, D)
    given = q if tp_q else q.transpose(1, 2)
    got = NF.flash_attention(given, k.transpose(1, 2), v, tp_q=tp_q, tp_k=tp_k, tp_out=tp_out)
    close(got.transpose(1, 2) if tp_out else got, attention(q, k, v, D**-0.5))


def test_errors(draw: Any) -> None:
    q, k, v = draw(HEADS, SEEN, D), draw(KV, SEEN, D), draw(KV, SEEN, D)
    with pytest.raises(ValueError, match="is tp_k wrong"):
        NF.flash_attention(q, k, v)
    with pytest.raises(ValueError, match="causal_mask is False"):
        NF.flash_attention(q, k, v, tp_k=True, causal_mask=False, sliding_window=4)
    with pytest.raises(ValueError, match=r"sink must be \[4, 1\]"):
        NF.flash_attention(q, k, v, tp_k=True, sink=torch.zeros(4))
    with pytest.raises(NotImplementedError, match="k_prior"):
        NF.flash_attention(q, k, v, tp_k=True, k_prior=k)
