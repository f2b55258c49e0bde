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

STYLES = ("half", "interleaved", "deinterleave")
HEAD_MOST = 4096

ROPE_LIMITS = (
    Limit("style", "there are three pairings", one_of=STYLES),
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
    | deinterleave | (2i, 2i + 1), to (i, i + R/2) | half's, of x0, x2, ..., x1, x3, ... (DeepSeek) |

    Layouts, by the place of the heads: x [B, N, T, D] with cos [B, T, R], or x [T, N, D] with
    cos [T, R]: unsqueeze_dim=1. x [B, T, N, D] with cos [B, T, R]: unsqueeze_dim=2. x [..., T, N, D] in
    general: -2.

    Args:
        x: queries or keys, D the head's width.
        cos, sin: full width R (each value twice, in the order of the result), or half width R/2 (one
            value per pair) if rotary_dim says so. A leading axis of 1 is broadcast.
        rotary_dim: R; None: the width of cos.
        unsqueeze_dim: where cos and sin get the axis of the heads.
        in_fp32: compute in float32, with tables of any dtype, and round once, to the dtype of x.

    Returns:
        as x; in the promoted dtype of x and cos unless in_fp32.

    Raises:
        ValueError: unknown style, R odd or wider than D, tables of another width.
    """
    width = check_rope("rope", x, cos, sin, style, rotary_dim)
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return rotated(x, cos, sin, style, width, in_fp32)


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
    if style != "interleaved":
        return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    return (
        torch.stack((cos, cos), dim=-1).flatten(-2),
        torch.stack((sin, sin), dim=-1).flatten(-2),
    )


def rotated(x: Tensor, cos: Tensor, sin: Tensor, style: str, width: int, in_fp32: bool) -> Tensor:
    """The formula of `rope` on the first `width` columns, with tables that broadcast against x."""
    whole = width == x.shape[-1]
    part = x if whole else x[..., :width]
    y = part.float() if in_fp32 else part
    half_wide = cos.shape[-1] != width
    compiling = (
        torch.compiler.is_compiling()
    )  # then a tensor rotate(x) would cost more than the sums
    if style == "deinterleave" or (style == "half" and (half_wide or compiling)):
        y = _by_pairs(y, cos, sin, style)
    elif half_wide and in_fp32 and _has_complex(y):
        y = _as_complex(y, cos, sin)
    else:
        cos, sin = full_tables(cos, sin, style, width)
        y = y * cos + _rotate(y, style) * sin
    if in_fp32:
        y = y.to(x.dtype)
    return y if whole else torch.cat((y, x[..., width:]), dim=-1)


def _rotate(x: Tensor, style: str) -> Tensor:
    if style == "half":
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def _by_pairs(x: Tensor, cos: Tensor, sin: Tensor, style: str) -> Tensor:
    """The same products and sums for each half of the result: no table is made wider than it is given."""
    one, two = x.chunk(2, dim=-1) if style == "half" else (x[..., ::2], x[..., 1::2])
    wide = cos.shape[-1] == x.shape[-1]
    cos_one, cos_two = cos.chunk(2, dim=-1) if wide else (cos, cos)
    sin_one, sin_two = sin.chunk(2, dim=-1) if wide else (sin, sin)
    return torch.cat((one * cos_one - two * sin_one, two * cos_two + one * sin_two), dim=-1)


def _has_complex(x: Tensor) -> bool:
    """Devices and compilers have no complex products; on the CPU they take a tenth of the time."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _as_complex(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbours as complex numbers, times cos + i sin: of two products and their sum one may not be rounded."""
    if x.stride(-1) != 1 or x.storage_offset() % 2 or any(s % 2 for s in x.stride()[:-1]):
        x = x.contiguous()
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.complex(
        cos.float(), sin.float()
    )
    return torch.view_as_real(turned).flatten(-2)
