"""The paged cache write of NF.qkv_proj: which slots change, to what, and which must not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neuron_autoport import nf as NF

NQ, NKV, D, H, BLOCKS, BLOCK = 4, 2, 8, 24, 6, 4
F = (NQ + 2 * NKV) * D
SLOTS = {
    "one sequence": [4, 5, 6, 7, 16, 17],
    "out of order": [23, 0, 9, 2, 14, 1],
    "padding last": [4, 5, 6, 7, -1, -1],
    "padding first": [-1, -1, 0, 1, 2, 3],
    "padding between, slot 0 used": [-1, 0, -1, 9, -1, -1],
    "last slot is not a skip": [23, 22, -1, -1, -1, 20],
    "nothing to write": [-1, -1, -1, -1, -1, -1],
}


def caches(draw: Any, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    k_cache, v_cache = (draw(BLOCKS, NKV, BLOCK, D).to(dtype) for _ in range(2))
    return k_cache, v_cache


def written(cache: Tensor, rows: np.ndarray, slots: list[int]) -> np.ndarray:
    """The cache in float64 after a plain Python loop over tokens."""
    result = cache.double().numpy().copy()
    for token, slot in enumerate(slots):
        if slot >= 0:
            result[slot // BLOCK, :, slot % BLOCK] = rows[token]
    return result


def rope_tables(tokens: int) -> tuple[Tensor, Tensor]:
    angles = torch.arange(tokens)[:, None] * 0.3 ** torch.arange(D // 2)
    both = torch.cat((angles, angles), -1)[None]
    return both.cos(), both.sin()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_writes_k_after_rope_and_plain_v(
    draw: Any, close: Any, slots: list[int], compiled: bool
) -> None:
    hidden, weight, bias = draw(1, 6, H, outliers=True), draw(H, F), draw(1, F)
    k_cache, v_cache = caches(draw)
    before = k_cache.clone(), v_cache.clone()
    cos, sin = rope_tables(6)
    run = NF.qkv_proj
    if compiled:
        run = torch.compile(NF.qkv_proj, fullgraph=True, backend="eager")
    got = run(
        hidden,
        weight,
        bias=bias,
        d_head=D,
        cos_cache=cos,
        sin_cache=sin,
        num_q_heads=NQ,
        num_kv_heads=NKV,
        k_cache=k_cache,
        v_cache=v_cache,
        use_block_kv=True,
        block_size=BLOCK,
        slot_mapping=torch.tensor(slots, dtype=torch.int32),
    )
    y = hidden.double().numpy()[0] @ weight.double().numpy() + bias.double().numpy()
    y = y.reshape(6, -1, D)
    pairs = y[..., : D // 2] + 1j * y[..., D // 2 :]
    pairs = pairs * (cos.double() + 1j * sin.double()).numpy()[0, :, None, : D // 2]
    turned = np.concatenate((pairs.real, pairs.imag), -1)
    assert got[1] is k_cache and got[2] is v_cache
    close(got[0], turned[:, :NQ].reshape(1, 6, -1))
    close(k_cache, written(before[0], turned[:, NQ : NQ + NKV], slots))
    close(v_cache, written(before[1], y[:, NQ + NKV :], slots))
    for now, was in zip((k_cache, v_cache), before, strict=True):
        untouched = torch.ones(BLOCKS * BLOCK, dtype=torch.bool)
        untouched[[slot for slot in slots if slot >= 0]] = False
        rows_now, rows_was = (
            each.transpose(1, 2).reshape(BLOCKS * BLOCK, -1)[untouched] for each in (now, was)
        )
        assert torch.equal(rows_now, rows_was)


def test_uninitialised_cache_does_not_leak(draw: Any) -> None:
    """NaN in slots that are not written stays there and goes nowhere else."""
    k_cache, v_cache = (torch.full((BLOCKS, NKV, BLOCK, D), torch.nan) for _ in range(2))
    call(draw, k_cache, v_cache, [-1, 6, -1, 7])
    for cache in (k_cache, v_cache):
        finite = torch.isfinite(cache).all(-1).all(1).flatten()
        assert finite.nonzero().flatten().tolist() == [6, 7]


def call(
    draw: Any, k_cache: Tensor, v_cache: Tensor, slots: list[int], **more: Any
) -> tuple[Tensor, Tensor]:
    """One call of two rows of len(slots) / 2 tokens; gives the k and v written, [T, heads, D]."""
    hidden, weight = draw(2, len(slots) // 2, H), draw(H, F)
    NF.qkv_proj(
        hidden,
        weight,
        d_head=D,
        num_q_heads=NQ,
        num_kv_heads=NKV,
        k_cache=k_cache,
        v_cache=v_cache,
        use_block_kv=True,
        block_size=BLOCK,
        slot_mapping=torch.tensor(slots).view(2, -1),
        **more,
    )
    y = (hidden @ weight).view(len(slots), -1, D)
    return y[:, NQ : NQ + NKV], y[:, NQ + NKV :]


def test_two_rows_and_bfloat16_cache(draw: Any) -> None:
    k_cache, v_cache = caches(draw, torch.bfloat16)
    k, v = call(draw, k_cache, v_cache, [3, -1, 8, 23], kv_dtype=torch.bfloat16)
    for cache, rows in ((k_cache, k), (v_cache, v)):
        for token, (block, offset) in {0: (0, 3), 2: (2, 0), 3: (5, 3)}.items():
            assert torch.equal(cache[block, :, offset], rows[token].bfloat16())


@pytest.mark.parametrize("slots", [[5, -1, 0, 12], [-1, -1, -1, -1]])
def test_fp8_cache_is_divided_by_the_scale_and_clamped(draw: Any, slots: list[int]) -> None:
    k_cache, v_cache = caches(draw, torch.float8_e4m3fn)
    before = k_cache.float(), v_cache.float()
    k, v = call(
        draw,
        k_cache,
        v_cache,
        slots,
        k_scale=torch.tensor([[0.25]]),
        v_scale=torch.tensor([[0.5]]),
        fp8_max=12.0,
        fp8_min=-12.0,
        kv_dtype=torch.float8_e4m3fn,
    )
    for cache, was, rows, scale in ((k_cache, before[0], k, 0.25), (v_cache, before[1], v, 0.5)):
        stored = (rows / scale).clamp(-12.0, 12.0).to(torch.float8_e4m3fn).double().numpy()
        assert np.array_equal(cache.double().numpy(), written(was, stored, slots))
    assert (k.abs() / 0.25 > 12.0).any()


def test_no_gradient_goes_into_the_cache(draw: Any) -> None:
    hidden, weight = draw(1, 2, H), draw(H, F).requires_grad_()
    k_cache, v_cache = caches(draw)
    q, _, _ = NF.qkv_proj(
        hidden,
        weight,
        d_head=D,
        num_q_heads=NQ,
        num_kv_heads=NKV,
        k_cache=k_cache,
        v_cache=v_cache,
        use_block_kv=True,
        block_size=BLOCK,
        slot_mapping=torch.tensor([0, 1]),
    )
    q.sum().backward()
    assert not k_cache.requires_grad and not v_cache.requires_grad
    assert weight.grad is not None
    want = hidden.sum((0, 1))[:, None].expand(H, NQ * D)
    torch.testing.assert_close(weight.grad[:, : NQ * D], want)
    assert weight.grad[:, NQ * D :].count_nonzero() == 0
