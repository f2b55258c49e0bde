"""NF.segmented_attention's torch reference: pages, prior tokens, windows, against a float64 loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from neuron_autoport import nf as NF

HEADS, KV, D, BLOCK, BLOCKS = 4, 2, 8, 4, 12
TABLE = [7, 2, 9, 4, -1, -1]


@pytest.mark.parametrize("prior", [0, 4, 8])
@pytest.mark.parametrize("window", [None, 3, 6])
@pytest.mark.parametrize("with_sink", [False, True])
def test_against_a_loop(
    draw: Any, close: Any, prior: int, window: int | None, with_sink: bool
) -> None:
    count = 6
    q = draw(HEADS, count, D)
    k_cache, v_cache = draw(BLOCKS, KV, BLOCK, D), draw(BLOCKS, KV, BLOCK, D)
    sink = draw(HEADS, 1) if with_sink else None
    got = NF.segmented_attention(
        q,
        k_cache,
        v_cache,
        torch.tensor([TABLE], dtype=torch.int32),
        torch.full((HEADS, 1), prior, dtype=torch.int32),
        BLOCK,
        512,
        scale=0.4,
        sliding_window=window,
        sink=sink,
    )
    want = np.zeros((HEADS, count, D))
    keys, values = k_cache.double().numpy(), v_cache.double().numpy()
    for head in range(HEADS):
        for i in range(count):
            total = 0.0 if sink is None else np.exp(float(sink[head, 0]))
            for position in range(prior + i + 1):
                if window and position <= prior + i - window:
                    continue
                at = (TABLE[position // BLOCK], head // (HEADS // KV), position % BLOCK)
                weight = np.exp(0.4 * (q[head, i].double().numpy() @ keys[at]))
                total += weight
                want[head, i] += weight * values[at]
            want[head, i] /= total
    close(got, want)


def test_transposed(draw: Any) -> None:
    caches = draw(BLOCKS, KV, BLOCK, D), draw(BLOCKS, KV, BLOCK, D)
    q, table = draw(HEADS, 5, D), torch.tensor([TABLE], dtype=torch.int32)
    prior = torch.full((HEADS, 1), 4)
    plain = NF.segmented_attention(q, *caches, table, prior, BLOCK, 512)
    turned = NF.segmented_attention(
        q.transpose(1, 2), *caches, table, prior, BLOCK, 512, tp_q=False, tp_out=True
    )
    assert torch.equal(turned.transpose(1, 2), plain)


def test_errors(draw: Any) -> None:
    caches = draw(BLOCKS, KV, BLOCK, D), draw(BLOCKS, KV, BLOCK, D)
    q, prior = draw(HEADS, 5, D), torch.zeros(HEADS, 1)
    table = torch.tensor([TABLE], dtype=torch.int32)
    with pytest.raises(ValueError, match="block_size is 8"):
        NF.segmented_attention(q, *caches, table, prior, 8, 512)
    with pytest.raises(ValueError, match=r"prior_tokens must be \[4, 1\]"):
        NF.segmented_attention(q, *caches, table, prior[:1], BLOCK, 512)
    with pytest.raises(NotImplementedError, match="fp8_packed"):
        NF.segmented_attention(q, *caches, table, prior, BLOCK, 512, fp8_packed=True)
