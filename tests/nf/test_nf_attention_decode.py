"""NF.attention_decode and its mask against a plain float64 loop over requests, heads and positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neuron_autoport import nf as NF

H, D, BLOCK, BLOCKS, WIDTH = 24, 8, 32, 20, 8
CONTEXT = BLOCK * WIDTH
TABLES = [
    [3, 11, 5, 2, 17, 1, 4, 6],
    [9, 12, -1, -1, -1, -1, -1, -1],
    [14, 15, 16, -1, -1, -1, -1, -1],
]


@dataclass
class Case:
    """A decode step of three requests."""

    heads: int
    kv_heads: int
    x: Tensor
    w_qkv: Tensor
    k_cache: Tensor
    v_cache: Tensor
    positions: Tensor

    def arguments(self, **more: Any) -> dict[str, Any]:
        batch, active = self.positions.shape
        mask = NF.gen_attention_decode_mask(
            self.positions.view(1, -1).float(), batch, self.heads, active, CONTEXT, block_len=BLOCK
        )
        return {
            "W_qkv": self.w_qkv,
            "active_blocks_table": torch.tensor(TABLES, dtype=torch.int32),
            "K_cache": self.k_cache.clone(),
            "V_cache": self.v_cache.clone(),
            "attention_mask": mask,
            **more,
        }


def case(draw: Any, heads: int = 4, kv_heads: int = 1, active: int = 1) -> Case:
    start = torch.tensor([200, 40, 70])
    return Case(
        heads,
        kv_heads,
        draw(3, active, H),
        draw(H, (heads + 2 * kv_heads) * D, scale=0.3),
        draw(BLOCKS, kv_heads, BLOCK, D),
        draw(BLOCKS, kv_heads, BLOCK, D),
        start[:, None] + torch.arange(active),
    )


def split(case: Case, y: np.ndarray) -> list[np.ndarray]:
    """[B, S, F] -> q, k, v [B, S, heads, D]."""
    cuts = np.cumsum([case.heads * D, case.kv_heads * D])
    return [part.reshape(*part.shape[:2], -1, D) for part in np.split(y, cuts, axis=-1)]


def loop(
    case: Case,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    window: int = 0,
    sink: np.ndarray | None = None,
) -> np.ndarray:
    """Attention of every new token to what is cached before the step and the new tokens up to it."""
    keys, values = case.k_cache.double().numpy(), case.v_cache.double().numpy()
    out = np.zeros_like(q)
    first = case.positions[:, 0].tolist()
    for b, s, n in np.ndindex(q.shape[:3]):
        kv, total = n // (case.heads // case.kv_heads), 0.0 if sink is None else np.exp(sink[n])
        now = first[b] + s
        for position in range(now + 1):
            if window and position <= now - window:
                continue
            if position >= first[b]:
                key, value = k[b, position - first[b], kv], v[b, position - first[b], kv]
            else:
                at = (TABLES[b][position // BLOCK], kv, position % BLOCK)
                key, value = keys[at], values[at]
            weight = np.exp(q[b, s, n] @ key * D**-0.5)
            total += weight
            out[b, s, n] += weight * value
        out[b, s, n] /= total
    return out


@pytest.mark.parametrize(("heads", "kv_heads", "active"), [(4, 1, 1), (4, 2, 1), (3, 1, 3)])
def test_attention_and_output(
    draw: Any, close: Any, heads: int, kv_heads: int, active: int
) -> None:
    given = case(draw, heads, kv_heads, active)
    w_out, bias, sink = draw(heads * D, H), draw(1, H), draw(heads, 1)
    got, k_new, v_new = NF.attention_decode(
        given.x, **given.arguments(W_out=w_out, bias_out=bias, sink=sink)
    )
    q, k, v = split(given, given.x.double().numpy() @ given.w_qkv.double().numpy())
    seen = loop(given, q, k, v, sink=sink[:, 0].double().numpy())
    merged = seen.reshape(3 * active, heads * D)
    close(got, merged @ w_out.double().numpy() + bias.double().numpy())
    close(k_new, k.transpose(3, 0, 2, 1).reshape(D, 3 * kv_heads, active))
    close(v_new, v.transpose(0, 2, 1, 3))


def test_norm_rope_and_bias(draw: Any, close: Any) -> None:
    given = case(draw)
    bias, q_gamma, k_gamma = draw(1, given.w_qkv.shape[1]), draw(1, D), draw(1, D)
    angle = given.positions.double().numpy()[..., None] * np.exp(-np.arange(D // 2) / 2.0)
    table = torch.from_numpy(angle).permute(2, 0, 1)
    got, *_ = NF.attention_decode(
        given.x,
        **given.arguments(
            bias_qkv=bias,
            rmsnorm_QK_pre_rope_enabled=True,
            rmsnorm_QK_pre_rope_eps=1e-3,
            rmsnorm_QK_pre_rope_W_Q=q_gamma,
            rmsnorm_QK_pre_rope_W_K=k_gamma,
            cos=table.cos().float(),
            sin=table.sin().float(),
        ),
    )
    y = given.x.double().numpy() @ given.w_qkv.double().numpy() + bias.double().numpy()
    q, k, v = split(given, y)
    turned = []
    for heads, gamma in ((q, q_gamma), (k, k_gamma)):
        heads = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-3) * gamma.double().numpy()
        low, high = heads[..., : D // 2], heads[..., D // 2 :]
        c, s = np.cos(angle)[:, :, None], np.sin(angle)[:, :, None]
        turned.append(np.concatenate([low * c - high * s, high * c + low * s], -1))
    close(got, loop(given, turned[0], turned[1], v).transpose(0, 2, 3, 1), 1e-5)


@pytest.mark.parametrize("window", [1, 30, 500])
def test_window_through_the_mask_and_through_positions(draw: Any, close: Any, window: int) -> None:
    given = case(draw)
    start = (given.positions - window + 1).clamp(min=0)
    mask = NF.gen_attention_decode_mask(
        given.positions.view(1, -1).float(),
        3,
        given.heads,
        1,
        CONTEXT,
        start_pos=start.view(1, -1).float(),
        block_len=BLOCK,
    )
    masked, *_ = NF.attention_decode(given.x, **given.arguments(attention_mask=mask))
    placed, *_ = NF.attention_decode(
        given.x,
        **given.arguments(
            attention_mask=None, pos_ids=given.positions.float(), swa_start_pos_ids=start.float()
        ),
    )
    q, k, v = split(given, given.x.double().numpy() @ given.w_qkv.double().numpy())
    want = loop(given, q, k, v, window).transpose(0, 2, 3, 1)
    close(masked, want)
    close(placed, want)


def test_cache_write_in_place(draw: Any) -> None:
    given = case(draw)
    arguments = given.arguments(update_cache=True)
    slots = torch.tensor([[6 * BLOCK + 8], [-1], [16 * BLOCK]])
    NF.attention_decode(given.x, **arguments, kv_cache_update_idx=slots)
    _, k_new, v_new = NF.attention_decode(given.x, **given.arguments())
    for cache, before, new in (
        (arguments["K_cache"], given.k_cache, k_new.permute(1, 2, 0)),
        (arguments["V_cache"], given.v_cache, v_new[:, 0]),
    ):
        want = before.clone()
        want[6, 0, 8], want[16, 0, 0] = new[0, 0], new[2, 0]
        want[-1, 0, -1] = new[1, 0]  # where a slot of -1 goes: the very last place
        assert torch.equal(cache, want)


def test_mask_layout_by_hand() -> None:
    """256 positions in blocks of 32, one request, one core each: 2 tiles, resized to blocks of 1."""
    mask = NF.gen_attention_decode_mask(torch.tensor([[130.0]]), 1, 1, 1, 256, block_len=32)
    want = torch.zeros(256)
    want[:130] = 1  # with blocks of 1 the order is that of the cache
    want[255] = 1  # the new token stands last
    assert torch.equal(mask[:, 0, 0, 0], want)


def test_mask_layout_is_shuffled_for_two_requests() -> None:
    """Two requests share the cores: 2 tiles in blocks of 2, so row i is position 2 * (i % 128) + i // 128."""
    mask = NF.gen_attention_decode_mask(torch.tensor([[5.0, 9.0]]), 2, 1, 1, 256, block_len=32)
    rows = [[i for i in range(256) if mask[i, b, 0, 0]] for b in range(2)]
    places = [sorted(2 * (i % 128) + i // 128 for i in r) for r in rows]
    assert places == [[*range(5), 255], [*range(9), 255]]


def test_errors(draw: Any) -> None:
    given = case(draw)
    with pytest.raises(ValueError, match="no multiple of 128"):
        NF.gen_attention_decode_mask(torch.zeros(1, 1), 1, 1, 1, 200, block_len=8)
    with pytest.raises(ValueError, match="have no mask layout"):
        NF.gen_attention_decode_mask(torch.zeros(1, 1), 1, 1, 1, 384, block_len=16)
    with pytest.raises(ValueError, match="must be int32"):
        table = torch.tensor(TABLES)
        NF.attention_decode(given.x, **given.arguments(active_blocks_table=table))
    with pytest.raises(NotImplementedError, match="transposed_out"):
        NF.attention_decode(given.x, **given.arguments(transposed_out=True))
    with pytest.raises(ValueError, match="attention_mask is required"):
        NF.attention_decode(given.x, **given.arguments(attention_mask=None))
