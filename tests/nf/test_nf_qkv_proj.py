"""NF.qkv_proj's torch reference against float64 formulas; RoPE against transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from neuron_autoport import nf as NF

RMS = NF.NormType.RMS_NORM
# B, S, H, nq, nkv, d: multi-head, grouped, multi-query, odd sizes
SHAPES = [(1, 5, 32, 4, 4, 8), (2, 7, 48, 6, 2, 16), (3, 1, 24, 5, 1, 6), (1, 17, 64, 8, 2, 32)]


def f64(value: Tensor) -> np.ndarray:
    return value.detach().double().numpy()


def rms64(x: np.ndarray, divisor: int, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).sum(-1, keepdims=True) / divisor + eps)


def tables(b: int, s: int, d: int) -> tuple[Tensor, Tensor]:
    """cos and sin [B, S, d] with the halves equal; every row of the batch at other positions."""
    positions = torch.arange(b * s, dtype=torch.float64).reshape(b, s, 1)
    angles = positions * 10000.0 ** (-torch.arange(d // 2, dtype=torch.float64) * 2 / d)
    both = torch.cat((angles, angles), -1)
    return both.cos().float(), both.sin().float()


def rotate64(heads: np.ndarray, cos: Tensor, sin: Tensor) -> np.ndarray:
    """Complex multiplication of the pairs (i, i + d/2) of heads [B, S, N, d]."""
    half = heads.shape[-1] // 2
    pairs = heads[..., :half] + 1j * heads[..., half:]
    pairs = pairs * (f64(cos)[..., None, :half] + 1j * f64(sin)[..., None, :half])
    return np.concatenate((pairs.real, pairs.imag), -1)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_plain(draw: Any, close: Any, shape: Any, with_bias: bool) -> None:
    b, s, h, nq, nkv, d = shape
    f = (nq + 2 * nkv) * d
    hidden, weight = draw(b, s, h, outliers=True), draw(h, f)
    bias = draw(1, f) if with_bias else None
    want = np.einsum("bsh,hf->bsf", f64(hidden), f64(weight))
    close(NF.qkv_proj(hidden, weight, bias=bias), want if bias is None else want + f64(bias))


@pytest.mark.parametrize("shape", SHAPES)
def test_residuals_and_rms_norm_of_padded_hidden(draw: Any, close: Any, shape: Any) -> None:
    b, s, h, nq, nkv, d = shape
    hidden, mlp_prev, attn_prev = (draw(b, s, h, outliers=True) for _ in range(3))
    for each in (hidden, mlp_prev, attn_prev):
        each[..., h - 4 :] = 0.0
    gamma, weight = 1 + draw(1, h, scale=0.5), draw(h, (nq + 2 * nkv) * d)
    total = f64(hidden) + f64(mlp_prev) + f64(attn_prev)
    want = (rms64(total, h - 4, 1e-3) * f64(gamma)) @ f64(weight)
    got = NF.qkv_proj(
        hidden, weight, gamma, mlp_prev, attn_prev, eps=1e-3, norm_type=RMS, hidden_actual=h - 4
    )
    close(got, want)


def test_other_norms(draw: Any, close: Any) -> None:
    hidden, weight = draw(2, 5, 32, outliers=True) + 3.0, draw(32, 48)
    gamma, beta = 1 + draw(1, 32, scale=0.5), draw(1, 32)
    x, w = f64(hidden), f64(weight)
    got = NF.qkv_proj(hidden, weight, norm_type=NF.NormType.RMS_NORM_SKIP_GAMMA)
    close(got, rms64(x, 32, 1e-6) @ w)
    centred = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    got = NF.qkv_proj(
        hidden, weight, gamma, eps=1e-5, norm_type=NF.NormType.LAYER_NORM, norm_b=beta
    )
    close(got, (centred * f64(gamma) + f64(beta)) @ w)


@pytest.mark.parametrize("shape", SHAPES)
def test_rope_equals_transformers_bit_for_bit(draw: Any, shape: Any) -> None:
    b, s, h, nq, nkv, d = shape
    hidden, weight = draw(b, s, h, outliers=True), draw(h, (nq + 2 * nkv) * d)
    cos, sin = tables(b, s, d)
    sin_read = sin.clone()
    sin_read[..., d // 2 :] = torch.nan  # the contract: the second half is not read
    got = NF.qkv_proj(
        hidden, weight, cos_cache=cos, sin_cache=sin_read, num_q_heads=nq, num_kv_heads=nkv
    )
    assert isinstance(got, Tensor)
    y = torch.matmul(hidden, weight).view(b, s, nq + 2 * nkv, d)
    q, k = apply_rotary_pos_emb(y[:, :, :nq], y[:, :, nq : nq + nkv], cos, sin, unsqueeze_dim=2)
    want = torch.cat((q, k, y[:, :, nq + nkv :]), dim=2).reshape(b, s, -1)
    assert torch.equal(got, want)


@pytest.mark.parametrize("stage", ["pre", "post"])
@pytest.mark.parametrize("weights", ["gamma", "gamma beta", "q only", "none"])
@pytest.mark.parametrize("shape", SHAPES)
def test_qk_norm(draw: Any, close: Any, shape: Any, stage: str, weights: str) -> None:
    b, s, h, nq, nkv, d = shape
    hidden, weight = draw(b, s, h, outliers=True), draw(h, (nq + 2 * nkv) * d)
    cos, sin = tables(b, s, d)
    one, zero = torch.ones(1, d), torch.zeros(1, d)
    q_gamma, k_gamma = 1 + draw(1, d, scale=0.5), 1 + draw(1, d, scale=0.5)
    q_beta, k_beta = draw(1, d), draw(1, d)
    given: dict[str, Tensor] = {}
    if weights != "none":
        given["q_gamma"] = q_gamma
    if weights.startswith("gamma"):
        given["k_gamma"] = k_gamma
    if weights == "gamma beta":
        given["q_beta"], given["k_beta"] = q_beta, k_beta
    settings: dict[str, Any] = {"q_norm": RMS, "k_norm": RMS, "eps": 1e-2, **given}
    named: dict[str, Any] = {f"qk_norm_{stage}_rope_{k}": v for k, v in settings.items()}
    got = NF.qkv_proj(
        hidden,
        weight,
        d_head=d,
        cos_cache=cos,
        sin_cache=sin,
        num_q_heads=nq,
        num_kv_heads=nkv,
        **named,
    )
    y = (f64(hidden) @ f64(weight)).reshape(b, s, -1, d)
    q, k, v = y[:, :, :nq], y[:, :, nq : nq + nkv], y[:, :, nq + nkv :]

    def norm(x: np.ndarray, side: str) -> np.ndarray:
        gamma, beta = given.get(f"{side}_gamma", one), given.get(f"{side}_beta", zero)
        return rms64(x, d, 1e-2) * f64(gamma) + f64(beta)

    if stage == "pre":
        q, k = rotate64(norm(q, "q"), cos, sin), rotate64(norm(k, "k"), cos, sin)
    else:
        q, k = norm(rotate64(q, cos, sin), "q"), norm(rotate64(k, cos, sin), "k")
    assert isinstance(got, Tensor)
    split = got.view(b, s, -1, d)
    close(split[:, :, :nq], q)
    close(split[:, :, nq : nq + nkv], k)
    close(split[:, :, nq + nkv :], v)


def test_qk_norm_without_rope(draw: Any, close: Any) -> None:
    hidden, weight = draw(1, 3, 16), draw(16, 32)
    got = NF.qkv_proj(
        hidden,
        weight,
        num_q_heads=2,
        num_kv_heads=1,
        qk_norm_post_rope_q_norm=RMS,
        qk_norm_post_rope_k_norm=RMS,
    )
    y = (f64(hidden) @ f64(weight)).reshape(1, 3, 4, 8)
    y[:, :, :3] = rms64(y[:, :, :3], 8, 1e-6)
    close(got, y.reshape(1, 3, 32))


def test_qk_norm_is_float32_inside_a_bfloat16_call(draw: Any) -> None:
    """Identity weight: the norm's input is known to the bit, so one rounding at the end shows."""
    d, nq, nkv = 64, 3, 1
    width = (nq + 2 * nkv) * d
    hidden = draw(1, 40, width, outliers=True).bfloat16()
    gamma = (1 + draw(1, d, scale=0.5)).bfloat16()
    got = NF.qkv_proj(
        hidden,
        torch.eye(width).bfloat16(),
        num_q_heads=nq,
        num_kv_heads=nkv,
        qk_norm_pre_rope_q_norm=RMS,
        qk_norm_pre_rope_k_norm=RMS,
        qk_norm_pre_rope_q_gamma=gamma,
        qk_norm_pre_rope_k_gamma=gamma,
    )
    assert isinstance(got, Tensor) and got.dtype == torch.bfloat16
    heads = f64(hidden).reshape(1, 40, nq + 2 * nkv, d)
    want = torch.from_numpy(rms64(heads[:, :, : nq + nkv], d, 1e-6) * f64(gamma)).bfloat16()
    mine = got.view(1, 40, -1, d)
    same = (mine[:, :, : nq + nkv] == want).double().mean().item()
    assert same > 0.999  # bfloat16 arithmetic would agree on about half
    assert torch.equal(mine[:, :, nq + nkv :], hidden.view(1, 40, -1, d)[:, :, nq + nkv :])


@pytest.mark.parametrize("shape", SHAPES)
def test_layouts(draw: Any, close: Any, shape: Any) -> None:
    b, s, h, nq, nkv, d = shape
    hidden, weight = draw(b, s, h), draw(h, (nq + 2 * nkv) * d)
    w = f64(weight).reshape(h, nq + 2 * nkv, d)
    got = NF.qkv_proj(hidden, weight, d_head=d, output_layout=NF.QKVOutputLayout.NBSd)
    close(got, np.einsum("bsh,hnd->nbsd", f64(hidden), w))
    assert isinstance(got, Tensor) and got.is_contiguous()
    got = NF.qkv_proj(hidden, weight, d_head=d, output_layout=NF.QKVOutputLayout.NBdS)
    close(got, np.einsum("bsh,hnd->nbds", f64(hidden), w))
    assert isinstance(got, Tensor) and got.is_contiguous()


def test_kernel_memory_arguments_change_nothing(draw: Any) -> None:
    hidden, weight = draw(1, 3, 16), draw(16, 24)
    got = NF.qkv_proj(
        hidden,
        weight,
        use_dma_transpose=False,
        sbm_lower_bound=0,
        sbm_upper_bound=1024,
        sbm_use_auto_alloc=True,
        sbm_default_stack_alloc=False,
        use_auto_allocation=True,
    )
    assert isinstance(got, Tensor) and torch.equal(got, torch.matmul(hidden, weight))


def test_gradcheck_and_untouched_inputs(draw: Any) -> None:
    b, s, h, nq, nkv, d = 2, 2, 6, 2, 1, 4
    cos, sin = (each.double() for each in tables(b, s, d))
    shapes = ((b, s, h), (h, 16), (1, h), (1, 16), (1, d), (b, s, h))
    leaves = [draw(*shape).double().requires_grad_() for shape in shapes]
    before = [leaf.detach().clone() for leaf in leaves]

    def run(x: Tensor, w: Tensor, gamma: Tensor, bias: Tensor, qk: Tensor, res: Tensor) -> Tensor:
        y = NF.qkv_proj(
            x,
            w,
            gamma,
            mlp_prev=res,
            attn_prev=res,
            bias=bias,
            norm_type=RMS,
            cos_cache=cos,
            sin_cache=sin,
            num_q_heads=nq,
            num_kv_heads=nkv,
            qk_norm_post_rope_q_norm=RMS,
            qk_norm_post_rope_k_norm=RMS,
            qk_norm_post_rope_k_gamma=qk,
        )
        assert isinstance(y, Tensor)
        return y

    # QK-norm computes in float32, so the finite differences are taken wide and compared loosely.
    assert torch.autograd.gradcheck(run, leaves, eps=1e-2, atol=5e-2, rtol=5e-2)
    assert all(torch.equal(a, b) for a, b in zip(leaves, before, strict=True))
