"""Rotary position embedding: half-split or interleaved pairs, whole or partial heads, any head axis.

x * cos + rotate(x) * sin in the dtype of x, with the three roundings that eager torch makes, or in float32
with one (Cohere).
"""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_autoport.kernels.dispatch import nk_function
from neuron_autoport.kernels.limits import Limit
from neuron_autoport.kernels.norms import FLOATS

STYLES = ("half", "interleaved")
HEAD_MOST = 4096

ROPE_LIMITS = (
    Limit("style", "there are two pairings", one_of=STYLES),
    Limit("sin.dtype", "both tables are read in one dtype", same_as="cos.dtype"),
    Limit("cos.shape[-1]", "a head and its tables are held in SBUF at once", most=HEAD_MOST),
)


@nk_function(
    summary="rotary embedding, half-split or interleaved, whole or partial, heads at any axis",
    equation="x * cos + rotate(x) * sin",
    phases=("prefill", "decode"),
    limits=(
        Limit("x.dtype", "the engines have no other floating dtype", one_of=FLOATS),
        Limit("x.shape[-1]", "a head and its tables are held in SBUF at once", most=HEAD_MOST),
        Limit(
            "cos.dtype",
            "products and sums are rounded to one dtype",
            same_as="x.dtype",
            unless="in_fp32",
        ),
        *ROPE_LIMITS,
    ),
    module="neuron_autoport.kernels.device.rope",
)
def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    style: str = "half",
    rotary_dim: int | None = None,
    *,
    unsqueeze_dim: int = 1,
    in_fp32: bool = False,
) -> Tensor:
    """x * cos + rotate(x) * sin on the first R of the last axis; the rest passes through.

    | style | pairs | rotate(x) |
    |---|---|---|
    | half | (i, i + R/2) | cat(-x[R/2:], x[:R/2]) |
    | interleaved | (2i, 2i + 1) | -x1, x0, -x3, x2, ... |

    Layouts, by the place of the heads: x [B, N, T, D] with cos [B, T, R], or x [T, N, D] with
    cos [T, R]: unsqueeze_dim=1. x [B, T, N, D] with cos [B, T, R]: unsqueeze_dim=2. x [..., T, N, D] in
    general: -2.

    Args:
        x: queries or keys, D the head's width.
        cos, sin: full width R (each value twice, in the style's order), or half width R/2 (one value
            per pair) if rotary_dim says so. A leading axis of 1 is broadcast.
        rotary_dim: R; None: the width of cos.
        unsqueeze_dim: where cos and sin get the axis of the heads.
        in_fp32: compute in float32, with tables of any dtype, and round once, to the dtype of x.

    Returns:
        as x; in the promoted dtype of x and cos unless in_fp32.

    Raises:
        ValueError: unknown style, R odd or wider than D, tables of another width.
    """
    width = check_rope("rope", x, cos, sin, style, rotary_dim)
    cos, sin = full_tables(cos, sin, style, width)
    return rotated(x, cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim), style, in_fp32)


def check_rope(
    function: str, x: Tensor, cos: Tensor, sin: Tensor, style: str, rotary_dim: int | None
) -> int:
    """The rotated width R.

    Raises:
        ValueError: as `rope`.
    """
    width = cos.shape[-1] if rotary_dim is None else rotary_dim
    if style not in STYLES:
        raise ValueError(f"NK.{function}: style {style!r} is none of {', '.join(STYLES)}")
    if width % 2 or width > x.shape[-1]:
        raise ValueError(
            f"NK.{function}: rotary width {width} must be even and at most the head's {x.shape[-1]}"
        )
    if cos.shape != sin.shape or cos.shape[-1] not in (width, width // 2):
        raise ValueError(
            f"NK.{function}: cos {tuple(cos.shape)} and sin {tuple(sin.shape)} must have the same "
            f"shape, {width} or {width // 2} wide"
        )
    return width


def full_tables(cos: Tensor, sin: Tensor, style: str, width: int) -> tuple[Tensor, Tensor]:
    """cos and sin with `width` columns: half-width tables get each value twice, in the style's order."""
    if cos.shape[-1] == width:
        return cos, sin
    if style == "half":
        return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    return (
        torch.stack((cos, cos), dim=-1).flatten(-2),
        torch.stack((sin, sin), dim=-1).flatten(-2),
    )


def rotated(x: Tensor, cos: Tensor, sin: Tensor, style: str, in_fp32: bool) -> Tensor:
    """The formula of `rope`, with tables that broadcast against x and say the rotated width."""
    width = cos.shape[-1]
    part, rest = x[..., :width], x[..., width:]
    y = part.float() if in_fp32 else part
    y = y * cos + _rotate(y, style) * sin
    if in_fp32:
        y = y.to(x.dtype)
    return y if width == x.shape[-1] else torch.cat((y, rest), dim=-1)


def _rotate(x: Tensor, style: str) -> Tensor:
    if style == "half":
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
