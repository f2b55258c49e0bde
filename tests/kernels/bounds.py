"""Float64 formulas of the NK functions, each with a bound on what rounding may do to the result.

Every formula returns (exact, bound) in float64. The bounds follow from the standard model fl(a op b) =
(a op b)(1 + d), |d| <= u, with u = 2^-24 for what is kept in float32 and e = eps / 2 of the dtype for
every value that is written in it. A sum of n terms in float32, in whatever order the engine takes them,
gets sqrt(n) u with a factor of 5: rounding errors have random signs, and five standard deviations of
such a walk are not seen in a test. TINY covers results below the dtype's normal range.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

U = 2.0**-24
WALK = 5.0

Exact = tuple[Tensor, Tensor]


def unit(dtype: torch.dtype) -> float:
    """e: half the distance from 1 to the next number of the dtype."""
    return torch.finfo(dtype).eps / 2


def tiny(dtype: torch.dtype) -> float:
    """The smallest step of the dtype, below its normal range."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def check(got: Tensor, exact: Exact, what: str = "") -> None:
    """Every element lies within its bound of the exact value."""
    want, bound = exact
    assert got.shape == want.shape, what
    assert torch.isfinite(got).all(), f"{what}: not finite"
    excess = (got.double() - want).abs() / (bound + tiny(got.dtype))
    assert excess.max() <= 1.0, f"{what}: {excess.max():.3g} times the bound"


def rms(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    *,
    offset: float = 0.0,
    weight_in_fp32: bool = False,
) -> Exact:
    """RMSNorm. Half a sum's error reaches the inverse root, then: mean, eps, root, product (4 u).

    Roundings to the dtype: one at the end; a second before the weight in the form that has it.
    """
    wide = x.double()
    n = x.shape[-1]
    exact = wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()
    relative = (WALK * math.sqrt(n) / 2 + 4) * U + unit(x.dtype)
    if weight is not None:
        scale = weight.double() + offset
        exact = exact * scale
        relative += 2 * U if weight_in_fp32 else unit(x.dtype)
        # a normed value below the normal range loses tiny, and the weight carries that on
        lost = torch.zeros_like(exact) if weight_in_fp32 else scale.abs() * tiny(x.dtype)
        return exact, exact.abs() * relative * 1.01 + lost
    return exact, exact.abs() * relative * 1.01


def layer(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float = 0.0
) -> Exact:
    """LayerNorm. The mean, kept in float32, is off by up to 2 u |mean| + 5 u spread; that shifts the row.

    The shift also enters the variance, in first order only through rounding: 2 u |mean| / spread.
    """
    wide = x.double()
    n = x.shape[-1]
    mean = wide.mean(-1, keepdim=True)
    centred = wide - mean
    spread = centred.square().mean(-1, keepdim=True)
    inverse = 1 / (spread + eps).sqrt()
    scale = torch.ones(n, dtype=torch.float64) if weight is None else weight.double() + offset
    shift = torch.zeros(n, dtype=torch.float64) if bias is None else bias.double()
    product = centred * inverse * scale
    moved = U * (2 * mean.abs() + WALK * spread.sqrt() + centred.abs())
    statistics = (WALK * math.sqrt(n) / 2 + 4) * U + 2 * U * mean.abs() * inverse
    exact = product + shift
    bound = (
        scale.abs() * inverse * moved
        + product.abs() * (statistics + 3 * U)
        + U * (shift.abs() + product.abs())
        + unit(x.dtype) * exact.abs()
    )
    return exact, bound * 1.01


def gate(
    gate: Tensor, up: Tensor, kind: str, limit: float | None = None, alpha: float = 1.702
) -> Exact:
    """act(gate) * up, each line rounded to the dtype (e); functions of the engine are good to 4 u.

    gelu's 1 + erf cancels far below zero, where erf is good to some u of 1: |gate * up| 8 u is added. A rounded
    z = gate * alpha changes sigmoid(z) by |z| (1 - sigmoid(z)) e of its value.
    """
    e = unit(gate.dtype)
    g, u = gate.double(), up.double()
    if limit is not None:
        g, u = g.clamp(max=limit), u.clamp(-limit, limit)
    lost = torch.zeros_like(g)
    if kind == "silu":
        act = g * torch.sigmoid(g)
        relative = torch.full_like(g, 2 * e + 4 * U)
    elif kind in ("gelu", "gelu_tanh"):
        act = torch.nn.functional.gelu(g, approximate="tanh" if kind == "gelu_tanh" else "none")
        relative = torch.full_like(g, 2 * e + 4 * U)
        lost = (g * u).abs() * 8 * U
    elif kind == "relu2":
        act = g.clamp(min=0).square()
        relative = torch.full_like(g, 2 * e)
    else:
        z = alpha * g
        sigmoid = torch.sigmoid(z)
        act, u = g * sigmoid, u + 1
        relative = (e + U) * z.abs() * (1 - sigmoid) + 4 * e + 4 * U  # U: alpha itself
    exact = act * u
    small = tiny(gate.dtype) * (1 + u.abs() + g.abs() * u.abs())  # of act, before it is multiplied
    return exact, exact.abs() * relative * 1.02 + lost + small


def rotate(x: Tensor, style: str) -> Tensor:
    """The pair's other element, with its sign, written element by element."""
    width = x.shape[-1]
    out = torch.empty_like(x)
    for i in range(width // 2):
        a, b = (i, i + width // 2) if style == "half" else (2 * i, 2 * i + 1)
        out[..., a], out[..., b] = -x[..., b], x[..., a]
    return out


def rope(x: Exact, cos: Tensor, sin: Tensor, style: str, dtype: torch.dtype, fp32: bool) -> Exact:
    """RoPE of a value that is itself off by a bound; cos and sin broadcast against it.

    Two products and their sum, each rounded: to the dtype, or all three to float32 and the end to the dtype.
    """
    value, off = x
    width = cos.shape[-1]
    part, part_off = value[..., :width], off[..., :width]
    if style == "deinterleave":
        part, part_off = (torch.cat((t[..., ::2], t[..., 1::2]), -1) for t in (part, part_off))
        style = "half"
    c, s = cos.double(), sin.double()
    exact = part * c + rotate(part, style) * s
    terms = (part * c).abs() + (rotate(part, style) * s).abs()
    carried = part_off * c.abs() + rotate(part_off, style).abs() * s.abs()
    e = U if fp32 else unit(dtype)
    bound = carried + terms * 2 * e + unit(dtype) * exact.abs()
    return (
        torch.cat((exact, value[..., width:]), -1),
        torch.cat((bound * 1.01 + 2 * tiny(dtype), off[..., width:]), -1),
    )


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    sink: Tensor | None = None,
) -> Exact:
    """Masked softmax, one query at a time.

    A score is off by delta: its dot product of D terms (5 sqrt(D) u of sum |q||k| scale) and six roundings
    of its size. A weight exp(s - m) / sum is then off by 2 delta, the sum of S terms, and e where it is
    rounded to the dtype of v; the weighted sum of values by 5 sqrt(S) u more.
    """
    batch, heads, tokens, width = q.shape
    keys = k.shape[2]
    each = heads // k.shape[1]
    exact = torch.zeros(batch, heads, tokens, v.shape[3], dtype=torch.float64)
    bound = torch.zeros_like(exact)
    for b in range(batch):
        for h in range(heads):
            kh, vh, qh = k[b, h // each].double(), v[b, h // each].double(), q[b, h].double()
            scores = qh @ kh.T * scale
            size = qh.abs() @ kh.abs().T * abs(scale)
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            for i in range(tokens):
                last = keys - tokens + i
                low = 0 if window is None else max(0, last - window + 1)
                s = scores[i, low : last + 1]
                if sink is not None:
                    s = torch.cat((s, sink[h : h + 1].double()))
                p = torch.softmax(s, 0)[: last + 1 - low]
                values = vh[low : last + 1]
                largest = s.abs().max().item()
                dot = WALK * math.sqrt(width) * size[i, low : last + 1].max().item()
                delta = U * (dot + 6 * largest)
                relative = 2 * delta + 2 * WALK * math.sqrt(keys) * U + 10 * U + unit(v.dtype)
                exact[b, h, i] = p @ values
                bound[b, h, i] = (p @ values.abs()) * relative
    return exact, bound * 1.02 + unit(q.dtype) * exact.abs()
