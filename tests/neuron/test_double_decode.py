"""attention_decode and its mask: against torch's attention, a hand-written layout, and each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tests.neuron.double import State
from tests.neuron.double.decode_mask import is_permutation, row_positions
from tests.neuron.test_double_attention import NF, rms, rope, with_sink

Draw = Callable[..., Tensor]
BLOCK, DIM, WIDTH, BLOCKS = 32, 8, 32, 48


@dataclass
class Case:
    """A decode step of `batch` requests of `active` tokens over 256 slots of context."""

    batch: int
    kv_heads: int
    draw: Draw
    active: int = 1
    q_heads: int = 4

    def __post_init__(self) -> None:
        draw, dim = self.draw, DIM
        self.x = draw(self.batch, self.active, WIDTH)
        self.w = draw(WIDTH, (self.q_heads + 2 * self.kv_heads) * dim) / 4
        self.wo = draw(self.q_heads * dim, WIDTH)
        self.k_cache = draw(BLOCKS, self.kv_heads, BLOCK, dim)
        self.v_cache = draw(BLOCKS, self.kv_heads, BLOCK, dim)
        order = torch.randperm(BLOCKS - 1, generator=torch.Generator().manual_seed(1)) + 1
        self.table = order[: self.batch * 8].view(self.batch, 8).int()
        self.cached = torch.tensor([3, 100, 0, 250, 31][: self.batch])
        rows = [rope(self.active, dim, first=int(n)) for n in self.cached]
        self.cos, self.sin = (torch.stack(t) for t in zip(*rows, strict=True))

    def slots(self) -> Tensor:
        """The slots of the active tokens, [B, S]."""
        at = self.cached[:, None] + torch.arange(self.active)
        blocks = self.table.long().gather(1, at // BLOCK)
        return blocks * BLOCK + at % BLOCK

    def run(self, **given: Any) -> Any:
        """The call, with the frequency axis of cos and sin in front and half as wide."""
        half = DIM // 2
        common: dict[str, Any] = {
            "W_qkv": self.w,
            "cos": self.cos[..., :half].permute(2, 0, 1),
            "sin": self.sin[..., :half].permute(2, 0, 1),
            "active_blocks_table": self.table,
            "K_cache": self.k_cache,
            "V_cache": self.v_cache,
            "W_out": self.wo,
        }
        return NF().attention_decode(self.x, **common | given)

    def mask(self, window: int | None = None, block: int = BLOCK) -> Tensor:
        """The generated mask."""
        lines = (self.cached[:, None] + torch.arange(self.active)).reshape(1, -1).float()
        start = None if window is None else (lines - window + 1).clamp(min=0)
        mask: Tensor = NF().gen_attention_decode_mask(
            lines, self.batch, self.q_heads, self.active, 256, start_pos=start, block_len=block
        )
        return mask

    def want(self, window: int | None = None, sink: Tensor | None = None) -> Tensor:
        """The output, request by request, with torch's attention over its own tokens only."""
        heads = (self.x @ self.w).view(self.batch, self.active, -1, DIM).transpose(1, 2)
        q, k, v = heads.split([self.q_heads, self.kv_heads, self.kv_heads], 1)
        q, k = apply_rotary_pos_emb(q, k, self.cos, self.sin)
        group = self.q_heads // self.kv_heads
        rows = []
        for i, cached in enumerate(self.cached.tolist()):
            past = [
                cache[self.table[i].long()].transpose(0, 1).flatten(1, 2)[:, :cached]
                for cache in (self.k_cache, self.v_cache)
            ]
            keys = torch.cat([past[0], k[i]], 1).repeat_interleave(group, 0)
            values = torch.cat([past[1], v[i]], 1).repeat_interleave(group, 0)
            at_q = torch.arange(cached, cached + self.active)[:, None]
            at_k = torch.arange(cached + self.active)[None]
            mask = at_k <= at_q
            if window is not None:
                mask = mask & (at_k > at_q - window)
            out = with_sink(q[i], keys, values, mask, sink)
            rows.append(out.transpose(0, 1).reshape(self.active, -1) @ self.wo)
        return torch.cat(rows)


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_both_masks_are_torch_attention(
    double: State, draw: Draw, batch: int, kv_heads: int
) -> None:
    """The generated mask, un-shuffled, and the fused one from positions."""
    case = Case(batch, kv_heads, draw)
    close(case.run(attention_mask=case.mask())[0], case.want())
    close(case.run(pos_ids=case.cached[:, None].float())[0], case.want())


def test_several_active_tokens_are_causal(double: State, draw: Draw) -> None:
    case = Case(3, 1, draw, active=3)
    case.cached = torch.tensor([3, 100, 0])
    close(case.run(attention_mask=case.mask())[0], case.want())


def test_window_and_sink(double: State, draw: Draw) -> None:
    case = Case(4, 1, draw)
    sink = draw(4, 1)
    start = (case.cached[:, None].float() - 20 + 1).clamp(min=0)
    full = case.run(attention_mask=case.mask(window=20), sink=sink)[0]
    fused = case.run(pos_ids=case.cached[:, None].float(), swa_start_pos_ids=start, sink=sink)[0]
    close(full, case.want(20, sink))
    close(fused, case.want(20, sink))


def test_norms_and_biases(double: State, draw: Draw) -> None:
    """The norm of X, QK-norm before RoPE, both biases; without W_out heads come first."""
    case = Case(2, 1, draw)
    gamma, gq, gk, bias = draw(1, WIDTH), draw(1, DIM), draw(1, DIM), draw(1, 48)
    names = {"rmsnorm_QK_pre_rope_W_Q": gq, "rmsnorm_QK_pre_rope_W_K": gk, "bias_qkv": bias}
    got = case.run(
        rmsnorm_X_enabled=True,
        rmsnorm_X_eps=1e-5,
        rmsnorm_X_gamma=gamma,
        rmsnorm_QK_pre_rope_enabled=True,
        rmsnorm_QK_pre_rope_eps=1e-3,
        pos_ids=torch.zeros(2, 1),
        W_out=None,
        **names,
    )
    heads = (rms(case.x, gamma[0], 1e-5) @ case.w + bias).view(2, 1, 6, DIM).transpose(1, 2)
    k = rms(heads[:, 4:5], gk[0], 1e-3)
    _, k = apply_rotary_pos_emb(k, k, case.cos, case.sin)
    close(got[0], heads[:, 5:].transpose(2, 3).expand(-1, 4, -1, -1))
    close(got[1], k[:, 0].permute(2, 0, 1))
    close(got[2], heads[:, 5:])


def test_who_writes_the_cache(double: State, draw: Draw) -> None:
    """update_cache: the function writes at the slots and returns the output alone."""
    case = Case(3, 2, draw)
    output, k_new, v_new = case.run(attention_mask=case.mask())
    before = case.k_cache.clone()
    slots = case.slots()
    written = case.run(
        attention_mask=case.mask(), update_cache=True, kv_cache_update_idx=slots.to(torch.uint32)
    )
    assert torch.equal(written, output)
    changed = (case.k_cache != before).any(-1).any(1).nonzero()
    wanted = sorted([slot // BLOCK, slot % BLOCK] for slot in slots.flatten().tolist())
    assert sorted(changed.tolist()) == wanted
    for i, slot in enumerate(slots.flatten().tolist()):
        block, offset = slot // BLOCK, slot % BLOCK
        close(case.k_cache[block, :, offset], k_new[:, i * 2 : i * 2 + 2, 0].T)
        close(case.v_cache[block, :, offset], v_new[i, :, 0])


def test_caches_of_one_head_without_the_axis(double: State, draw: Draw) -> None:
    case = Case(2, 1, draw)
    three = {"K_cache": case.k_cache[:, 0], "V_cache": case.v_cache[:, 0]}
    close(case.run(attention_mask=case.mask(), **three)[0], case.want())


def test_the_layout_by_hand() -> None:
    """256 slots, one request, blocks of 32: two shards of 128 rows, block length gcd(32, 1) = 1."""
    assert row_positions(256, 1, 4, 1, 32) == list(range(256))
    # batch 2 is sharded over the batch: block length gcd(32, 2) = 2, so row p of tile t is 2p + t
    assert row_positions(256, 2, 4, 1, 32)[:3] == [0, 2, 4]
    assert row_positions(256, 2, 4, 1, 32)[128:131] == [1, 3, 5]
    # 1024 slots over two shards: gcd(32, 4) = 4
    assert row_positions(1024, 1, 4, 1, 32)[:2] == [0, 4]
    assert row_positions(1024, 1, 4, 1, 32)[512:514] == [512, 516]


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_contexts_that_are_no_permutation(batch: int) -> None:
    """128 and multiples of 256 are safe; 384 and 640 are not when the batch is not sharded."""
    for context in (128, 256, 512, 768, 2048):
        assert is_permutation(context, batch, 4, 1, 32)
    sharded = batch % 2 == 0 and batch * 4 >= 128
    assert is_permutation(384, batch, 4, 1, 32) is sharded
    assert is_permutation(640, 64, 4, 1, 32)


def test_a_mask_for_another_block_size_is_silently_wrong(double: State, draw: Draw) -> None:
    """The documented trap: no error, other numbers."""
    case = Case(2, 1, draw)
    wrong = case.run(attention_mask=case.mask(block=1))[0]
    assert (wrong - case.want()).abs().max() > 0.1
