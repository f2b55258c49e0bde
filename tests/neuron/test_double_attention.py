"""The double's attention functions against torch's own, Hugging Face's Llama, and small loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as TF
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tests.neuron.double import State

Draw = Callable[..., Tensor]


def NF() -> Any:
    """The functions of the installed double."""
    import vllm_neuron.functional

    return vllm_neuron.functional


def enum(name: str) -> Any:
    """One of the plugin's enums."""
    import nkilib.core.utils.common_types as types

    return getattr(types, name)


def rope(tokens: int, dim: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """cos and sin [T, d], both halves equal."""
    angles = torch.arange(first, first + tokens)[:, None] / 10.0 ** torch.linspace(0, 3, dim // 2)
    return torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)


def rms(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """torch's own RMS norm."""
    return TF.rms_norm(x, (x.shape[-1],), gamma, eps)


@pytest.mark.parametrize("side", ["pre_rope", "post_rope"])
def test_qkv_with_everything(double: State, draw: Draw, side: str) -> None:
    """Residuals, norm, bias, QK-norm on either side of RoPE; the NBSd layout."""
    x, mlp_prev, attn_prev = draw(1, 6, 64), draw(1, 6, 64), draw(1, 6, 64)
    w, bias, gamma = draw(64, 4 * 16), draw(1, 64), draw(1, 64)
    gq, gk = draw(1, 16), draw(1, 16)
    cos, sin = rope(6, 16, first=3)
    kind = enum("NormType").RMS_NORM
    norm = {f"qk_norm_{side}_{k}_norm": kind for k in "qk"}
    norm |= {f"qk_norm_{side}_q_gamma": gq, f"qk_norm_{side}_k_gamma": gk}
    got = NF().qkv_proj(
        x,
        w,
        gamma,
        mlp_prev,
        attn_prev,
        16,
        enum("QKVOutputLayout").NBSd,
        1e-5,
        kind,
        bias=bias,
        cos_cache=cos[None],
        sin_cache=sin[None],
        num_q_heads=2,
        num_kv_heads=1,
        **{f"qk_norm_{side}_eps": 1e-3},
        **norm,
    )
    y = rms(x + mlp_prev + attn_prev, gamma[0], 1e-5) @ w + bias
    q, k, v = y.view(1, 6, 4, 16).transpose(1, 2).split([2, 1, 1], 1)
    if side == "pre_rope":
        q, k = rms(q, gq[0], 1e-3), rms(k, gk[0], 1e-3)
    q, k = apply_rotary_pos_emb(q, k, cos[None], sin[None])
    if side == "post_rope":
        q, k = rms(q, gq[0], 1e-3), rms(k, gk[0], 1e-3)
    want = torch.cat([q, k, v], 1).transpose(0, 1)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_qkv_layouts_and_layer_norm(double: State, draw: Draw) -> None:
    x, w, gamma, beta = draw(2, 5, 32), draw(32, 24), draw(1, 32), draw(1, 32)
    norm = {"norm_type": enum("NormType").LAYER_NORM, "norm_b": beta, "eps": 1e-5}
    want = TF.layer_norm(x, (32,), gamma[0], beta[0], 1e-5) @ w
    layout = enum("QKVOutputLayout")
    flat = NF().qkv_proj(x, w, gamma, **norm)
    torch.testing.assert_close(flat, want, rtol=1e-5, atol=1e-5)
    turned = NF().qkv_proj(x, w, gamma, d_head=8, output_layout=layout.NBdS, **norm)
    torch.testing.assert_close(
        turned, want.view(2, 5, 3, 8).permute(2, 0, 3, 1), rtol=1e-5, atol=1e-5
    )


def test_qkv_writes_the_cache(double: State, draw: Draw) -> None:
    """K after RoPE and plain V at their slots; the rest of the cache untouched."""
    x, w = draw(1, 3, 32), draw(32, 4 * 8)
    cos, sin = rope(3, 8)
    k_cache, v_cache = draw(4, 1, 2, 8), draw(4, 1, 2, 8)
    before = k_cache.clone()
    q, k, v = NF().qkv_proj(
        x,
        w,
        d_head=8,
        cos_cache=cos[None],
        sin_cache=sin[None],
        num_q_heads=2,
        num_kv_heads=1,
        k_cache=k_cache,
        v_cache=v_cache,
        use_block_kv=True,
        block_size=2,
        slot_mapping=torch.tensor([[5, 2, 7]]),
    )
    heads = (x @ w).view(1, 3, 4, 8).transpose(1, 2).split([2, 1, 1], 1)
    want_q, want_k = apply_rotary_pos_emb(heads[0], heads[1], cos[None], sin[None])
    assert k is k_cache and v is v_cache
    torch.testing.assert_close(q, want_q.transpose(1, 2).flatten(2), rtol=1e-5, atol=1e-5)
    for row, (block, offset) in enumerate([(2, 1), (1, 0), (3, 1)]):
        torch.testing.assert_close(k_cache[block, 0, offset], want_k[0, 0, row])
        torch.testing.assert_close(v_cache[block, 0, offset], heads[2][0, 0, row])
    assert torch.equal(k_cache[0], before[0]) and torch.equal(k_cache[1, 0, 1], before[1, 0, 1])


def window_mask(queries: int, keys: int, window: int | None, prior: int = 0) -> Tensor:
    """Bool [Sq, Sk] by its definition: k in (q - W, q]."""
    mask = torch.zeros(queries, keys, dtype=torch.bool)
    for q in range(queries):
        for k in range(keys):
            at = q + prior
            mask[q, k] = k <= at and (window is None or k > at - window)
    return mask


def with_sink(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sink: Tensor | None) -> Tensor:
    """torch's attention [N, S, D]; a sink is one more key with a value of zero."""
    if sink is None:
        return TF.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores = (q @ k.transpose(1, 2)) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~mask, -torch.inf)
    scores = torch.cat([scores, sink[:, None].expand(-1, q.shape[1], 1)], -1)
    return scores.softmax(-1)[..., :-1] @ v


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("sink", [False, True])
def test_flash(double: State, draw: Draw, transposed: bool, window: Any, sink: bool) -> None:
    """Both families of layouts, grouped KV heads, window, sink."""
    q, k, v = draw(4, 7, 8), draw(2, 7, 8), draw(2, 7, 8)
    logits = draw(4, 1) if sink else None
    layout = {"tp_q": False, "tp_out": True} if transposed else {"tp_k": True}
    given_q = q.transpose(1, 2) if transposed else q
    given_k = k.transpose(1, 2) if transposed else k
    got = NF().flash_attention(given_q, given_k, v, sliding_window=window, sink=logits, **layout)
    keys, values = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
    want = with_sink(q, keys, values, window_mask(7, 7, window), logits)
    got = got.transpose(1, 2) if transposed else got
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 64])
def test_segmented(double: State, draw: Draw, window: Any) -> None:
    """A second chunk of 512 tokens over a shuffled block table with fillers of -1 and 0."""
    tokens, block, prior = 512, 32, 64
    q, k, v = draw(2, tokens, 8), draw(1, prior + tokens, 8), draw(1, prior + tokens, 8)
    blocks = torch.randperm(30)[: (prior + tokens) // block] + 1
    k_cache, v_cache = draw(40, 1, block, 8), draw(40, 1, block, 8)
    for i, at in enumerate(blocks):
        k_cache[at], v_cache[at] = (t[:, i * block : (i + 1) * block] for t in (k, v))
    table = torch.cat([blocks, torch.tensor([-1, 0])]).int()[None]
    got = NF().segmented_attention(
        q, k_cache, v_cache, table, torch.full((2, 1), prior), block, 512, sliding_window=window
    )
    mask = window_mask(tokens, prior + tokens, window, prior)
    want = with_sink(q, k.expand(2, -1, -1), v.expand(2, -1, -1), mask, None)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("four", [False, True])
def test_o_proj(double: State, draw: Draw, four: bool) -> None:
    active, w, bias = draw(2, 3, 8, 5), draw(24, 10), draw(1, 10)
    merged = active.permute(0, 3, 1, 2).reshape(2, 5, 24)
    got = NF().o_proj(active if four else merged, w, bias)
    torch.testing.assert_close(got, merged @ w + bias, rtol=1e-5, atol=1e-5)


def test_window_attention_fused(double: State, draw: Draw) -> None:
    """swa_fused_attention: QKV, RoPE, write, window with sink, O-projection over a chunk."""
    tokens, block, prior, dim = 128, 32, 32, 8
    x, w, wo = draw(1, tokens, 16), draw(16, 4 * dim), draw(2 * dim, 16)
    bias, bias_o, sink = draw(1, 4 * dim), draw(1, 16), draw(1, 2)
    cos, sin = rope(tokens, dim, first=prior)
    k_cache, v_cache = draw(8, 1, block, dim), draw(8, 1, block, dim)
    table = torch.tensor([[6, 1, 4, 2, 5]], dtype=torch.int32)
    old = [c[6].clone() for c in (k_cache, v_cache)]
    got, _, _ = NF().swa_fused_attention(
        x,
        w,
        wo,
        k_cache,
        v_cache,
        table,
        cos[None],
        sin[None],
        sink,
        torch.tensor([[prior]], dtype=torch.int32),
        bias,
        bias_o,
        dim**-0.5,
        20,
        block,
        2,
        1,
        dim,
    )
    heads = (x @ w + bias).view(1, tokens, 4, dim).transpose(1, 2).split([2, 1, 1], 1)
    q, k = apply_rotary_pos_emb(heads[0], heads[1], cos[None], sin[None])
    keys = torch.cat([old[0], k[0]], 1).expand(2, -1, -1)
    values = torch.cat([old[1], heads[2][0]], 1).expand(2, -1, -1)
    mask = window_mask(tokens, prior + tokens, 20, prior)
    out = with_sink(q[0], keys, values, mask, sink.T)
    want = out.transpose(0, 1).reshape(1, tokens, -1) @ wo + bias_o
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert "breaks tracing" in next(iter(double.log.traps))
