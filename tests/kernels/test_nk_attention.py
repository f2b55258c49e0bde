"""NK.softcap_attention against eager attention of Hugging Face, and float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss

from neuron_autoport import kernels as NK
from tests.kernels import bounds
from tests.kernels.data import DTYPES, generator

SCALE = 0.2
CASES: list[dict[str, Any]] = [
    {},
    {"softcap": 5.0},
    {"window": 4, "softcap": 50.0},
    {"window": 1},
    {"sink": torch.tensor([3.0, -2.0, 0.0, 9.0])},
    {"window": 30, "sink": torch.tensor([3.0, -2.0, 0.0, 9.0])},
]


def inputs(tokens: int, keys: int, dtype: torch.dtype) -> list[Tensor]:
    source = generator("eager", tokens, keys)
    q = 3 * torch.randn(2, 4, tokens, 16, generator=source)
    k, v = (torch.randn(2, 2, keys, 16, generator=source) for _ in range(2))
    return [x.to(dtype) for x in (q, k, v)]


def eager(q: Tensor, k: Tensor, v: Tensor, case: dict[str, Any]) -> Tensor:
    """Hugging Face's own, with its additive mask built by hand."""
    tokens, keys = q.shape[2], k.shape[2]
    mask = torch.full((tokens, keys), torch.finfo(q.dtype).min, dtype=q.dtype)
    for i in range(tokens):
        last = keys - tokens + i
        mask[i, max(0, last - case.get("window", keys) + 1) : last + 1] = 0
    module: Any = SimpleNamespace(num_key_value_groups=2, training=False, head_dim=16)
    if "sink" in case:
        module.sinks = nn.Parameter(case["sink"].to(q.dtype))
        out, _ = gpt_oss.eager_attention_forward(module, q, k, v, mask, scaling=SCALE)
    else:
        out, _ = gemma2.eager_attention_forward(
            module, q, k, v, mask, scaling=SCALE, softcap=case.get("softcap")
        )
    return out.transpose(1, 2)


def ours(q: Tensor, k: Tensor, v: Tensor, case: dict[str, Any]) -> Tensor:
    given = {n: x.to(q.dtype) if n == "sink" else x for n, x in case.items()}
    return NK.softcap_attention(q, k, v, SCALE, **given)


@pytest.mark.parametrize("sizes", [(9, 9), (1, 12), (5, 21)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_float32_as_hugging_face(case: dict[str, Any], sizes: tuple[int, int]) -> None:
    q, k, v = inputs(*sizes, torch.float32)
    torch.testing.assert_close(ours(q, k, v, case), eager(q, k, v, case), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_within_rounding_of_float64(dtype: torch.dtype, case: dict[str, Any]) -> None:
    q, k, v = inputs(5, 21, dtype)
    given = {n: x.to(dtype) if n == "sink" else x for n, x in case.items()}
    bounds.check(ours(q, k, v, case), bounds.attention(q, k, v, SCALE, **given))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bfloat16_is_no_further_off_than_eager(case: dict[str, Any]) -> None:
    q, k, v = inputs(24, 24, torch.bfloat16)
    exact = eager(q.double(), k.double(), v.double(), case)
    error = [(f(q, k, v, case).double() - exact).square().mean() for f in (ours, eager)]
    assert error[0] <= error[1] * 1.05


def test_scale_is_that_of_the_head_width() -> None:
    q, k, v = inputs(6, 6, torch.float32)
    assert torch.equal(NK.softcap_attention(q, k, v), NK.softcap_attention(q, k, v, 0.25))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.ones(2, 4, 16)}, "B, N, T, D"),
        ({"v": torch.ones(2, 2, 8, 16)}, "do not fit"),
        ({"k": torch.ones(2, 2, 9, 8), "v": torch.ones(2, 2, 9, 8)}, "do not fit"),
        ({"q": torch.ones(2, 3, 9, 16)}, "heads must divide"),
        ({"q": torch.ones(2, 4, 10, 16)}, "before the first key"),
        ({"softcap": 0.0}, "softcap=0.0"),
        ({"window": 0}, "window=0"),
        ({"sink": torch.ones(2)}, "one per head"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    q, k, v = inputs(9, 9, torch.float32)
    with pytest.raises(ValueError, match=message):
        NK.softcap_attention(**({"q": q, "k": k, "v": v} | change))
