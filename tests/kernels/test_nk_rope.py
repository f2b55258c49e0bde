"""NK.rope and NK.qk_norm_rope against the rotary functions of Hugging Face models, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.cohere import modeling_cohere as cohere
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.ernie4_5 import modeling_ernie4_5 as ernie
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.glm import modeling_glm as glm
from transformers.models.gpt_neox import modeling_gpt_neox as gpt_neox
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama import modeling_llama as llama
from transformers.models.llama4 import modeling_llama4 as llama4
from transformers.models.nanochat import modeling_nanochat as nanochat
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from neuron_autoport import kernels as NK
from tests.kernels import bounds
from tests.kernels.data import DTYPES, rows, tables, weight

by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def heads(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """q [B, N, T, D] and k [B, Nkv, T, D]."""
    return rows(2, 4, 7, 16, kind="outliers", dtype=dtype), rows(2, 2, 7, 16, dtype=dtype)


def twice(table: Tensor, style: str) -> Tensor:
    return torch.cat((table, table), -1) if style == "half" else table.repeat_interleave(2, -1)


@by_dtype
@pytest.mark.parametrize("axis", [1, 2])
def test_half_split(dtype: torch.dtype, axis: int) -> None:
    q, k = (x if axis == 1 else x.transpose(1, 2) for x in heads(dtype))
    cos, sin = tables(2, 7, 16, dtype=dtype)
    want = llama.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=axis)
    got = [NK.rope(x, cos, sin, unsqueeze_dim=axis) for x in (q, k)]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@by_dtype
def test_partial(dtype: torch.dtype) -> None:
    q, k = heads(dtype)
    cos, sin = tables(2, 7, 6, dtype=dtype)
    want = gpt_neox.apply_rotary_pos_emb(q, k, cos, sin)
    assert torch.equal(NK.rope(q, cos, sin), want[0])
    assert torch.equal(NK.rope(k, cos, sin, rotary_dim=6), want[1])


@by_dtype
def test_half_width_tables(dtype: torch.dtype) -> None:
    q, k = heads(dtype)
    cos, sin = tables(2, 7, 8, dtype=dtype)
    want = gpt_oss.apply_rotary_pos_emb(q, k, cos, sin)
    assert torch.equal(NK.rope(q, cos, sin, rotary_dim=16), want[0])
    assert torch.equal(NK.rope(k, cos, sin, rotary_dim=16), want[1])


@by_dtype
def test_deinterleaved(dtype: torch.dtype) -> None:
    """DeepSeek turns neighbours and puts them into halves; the first half of its tables is read."""
    q, k = heads(dtype)
    cos, sin = tables(2, 7, 16, dtype=dtype)
    want = deepseek.apply_rotary_pos_emb_interleave(q, k, cos, sin)
    got = [NK.rope(x, cos[..., :8], sin[..., :8], "deinterleave", 16) for x in (q, k)]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    full = [twice(t[..., :8], "half") for t in (cos, sin)]
    assert torch.equal(NK.rope(q, *full, "deinterleave"), want[0])
    assert not torch.equal(NK.rope(q, *full), want[0])


@by_dtype
def test_backward(dtype: torch.dtype) -> None:
    q, k = heads(dtype)
    cos, sin = tables(2, 7, 16, dtype=dtype)
    want = nanochat.apply_rotary_pos_emb(q, k, cos, sin)
    got = [NK.rope(x, cos, -sin) for x in (q, k)]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@by_dtype
@pytest.mark.parametrize("shift", [0, 1])
def test_complex_products(dtype: torch.dtype, shift: int) -> None:
    """Llama 4's, which may round a sum of two products once less; of heads that begin at an odd place, too."""
    angles = rows(2, 7, 8, kind="normal", dtype=torch.float32)
    turns = torch.polar(torch.ones_like(angles), angles)
    wide = rows(2, 7, 4, 17, dtype=dtype)
    x = wide[..., shift : shift + 16]
    want, _ = llama4.apply_rotary_emb(x.clone(), x.clone(), turns)
    options = {"rotary_dim": 16, "unsqueeze_dim": 2, "in_fp32": True}
    got = NK.rope(x, turns.real, turns.imag, "interleaved", **options)
    assert got.dtype == dtype
    torch.testing.assert_close(got, want, rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=1e-6)


@by_dtype
def test_interleaved_from_half_width_in_float32(dtype: torch.dtype) -> None:
    q, k = heads(dtype)
    cos, sin = tables(2, 7, 16, dtype=dtype)
    want = ernie.apply_rotary_pos_emb(q, k, cos, sin)
    half = cos[..., :8], sin[..., :8]
    got = [NK.rope(x, *half, "interleaved", 16, in_fp32=True) for x in (q, k)]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=1e-6)


@by_dtype
def test_interleaved_in_float32(dtype: torch.dtype) -> None:
    q, k = heads(dtype)
    cos, sin = (twice(t, "interleaved") for t in tables(2, 7, 8, dtype=dtype))
    want = cohere.apply_rotary_pos_emb(q, k, cos, sin)
    got = [NK.rope(x, cos, sin, "interleaved", in_fp32=True) for x in (q, k)]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    if dtype == torch.bfloat16:
        assert not torch.equal(NK.rope(q, cos, sin, "interleaved"), want[0])


@by_dtype
def test_interleaved_from_half_width(dtype: torch.dtype) -> None:
    """GLM keeps the first half of full-width tables and repeats each value; GPT-J has half width."""
    q, k = heads(dtype)
    half, other = tables(2, 7, 4, dtype=dtype)
    cos, sin = twice(half, "half"), twice(other, "half")
    want = glm.apply_rotary_pos_emb(q, k, cos, sin)
    got = [NK.rope(x, cos[..., :4], sin[..., :4], "interleaved", 8) for x in (q, k)]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    x = q.transpose(1, 2)  # GPT-J rotates [B, T, N, R]
    cos, sin = tables(2, 7, 8, dtype=dtype)
    want_j = gptj.apply_rotary_pos_emb(x, sin, cos)
    assert torch.equal(NK.rope(x, cos, sin, "interleaved", 16, unsqueeze_dim=2), want_j)


@by_dtype
@pytest.mark.parametrize(
    ("module", "norm"),
    [(Qwen3RMSNorm, {}), (Gemma3RMSNorm, {"offset": 1.0, "weight_in_fp32": True})],
)
def test_qk_norm_rope(
    module: Callable[..., nn.Module], norm: dict[str, Any], dtype: torch.dtype
) -> None:
    q, k = heads(dtype)
    cos, sin = tables(2, 7, 16, dtype=dtype)
    q_weight, k_weight = weight(16, dtype, "q"), weight(16, dtype, "k")
    normed = []
    for x, w in ((q, q_weight), (k, k_weight)):
        layer = module(16, eps=1e-5)
        layer.weight = nn.Parameter(w)
        normed.append(layer(x))
    want = llama.apply_rotary_pos_emb(*normed, cos, sin)
    got = NK.qk_norm_rope(q, k, q_weight, k_weight, cos, sin, 1e-5, **norm)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@by_dtype
@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_within_rounding_of_float64(style: str, dtype: torch.dtype) -> None:
    q, _ = heads(dtype)
    cos, sin = tables(2, 7, 6, dtype=dtype)
    zero = torch.zeros(q.shape, dtype=torch.float64)
    for fp32 in (False, True):
        exact = bounds.rope(
            (q.double(), zero), cos.unsqueeze(1), sin.unsqueeze(1), style, dtype, fp32
        )
        bounds.check(NK.rope(q, cos, sin, style, in_fp32=fp32), exact)


def test_refused() -> None:
    x, table = torch.ones(2, 3, 5, 16), torch.ones(2, 5, 16)
    for call, message in (
        (lambda: NK.rope(x, table, table, "neox"), "style 'neox'"),
        (lambda: NK.rope(x, table[..., :5], table[..., :5]), "rotary width 5"),
        (lambda: NK.rope(x, torch.ones(2, 5, 18), torch.ones(2, 5, 18)), "at most the head's 16"),
        (lambda: NK.rope(x, table, table[..., :8]), "must have the same shape"),
        (lambda: NK.rope(x, table, table, rotary_dim=8), "8 or 4 wide"),
        (lambda: NK.qk_norm_rope(x, x[..., :8], None, None, table, table), "differ in width"),
        (lambda: NK.qk_norm_rope(x, x, None, None, table, table, offset=1.0), "offset=1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
