"""The NKI kernel of NK.rope: 128 tokens at a time on the partitions, their heads on the free axis.

Five Vector instructions per tile; each rounds to the dtype of the heads where eager torch does. Token tiles
are dealt to the cores. Verified in simulation against torch and float64.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from neuron_autoport.kernels.device.rope_heads import (
    HEAD_ELEMENTS,
    heads_view,
    load_table,
    rotate_heads,
    sizes,
)
from neuron_autoport.kernels.device.tiling import PARTITIONS, core_share
from neuron_autoport.kernels.rope import full_tables


def _tokens(out, x, cos, sin, heads_first, batch, token, count, style, in_fp32):
    """All heads of `count` <= 128 tokens."""
    all_heads, _ = sizes(x, heads_first)
    width = x.shape[3]
    cosines = load_table(cos, batch, token, count)
    sines = load_table(sin, batch, token, count)
    step = max(1, HEAD_ELEMENTS // width)
    for head in range(0, all_heads, step):
        heads = min(step, all_heads - head)
        tile = nl.ndarray((count, heads, width), dtype=x.dtype, buffer=nl.sbuf)
        result = nl.ndarray((count, heads, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=heads_view(x, heads_first, batch, token, count, head, heads))
        rotate_heads(result, tile, cosines, sines, style, in_fp32)
        nisa.dma_copy(
            dst=heads_view(out, heads_first, batch, token, count, head, heads), src=result
        )


@nki.jit
def rope_kernel(x, cos, sin, heads_first, style, in_fp32):
    """x [B, N, T, D] (heads_first) or [B, T, N, D]; cos, sin [B or 1, T, R]; to the shape of x."""
    _, tokens = sizes(x, heads_first)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = (tokens + PARTITIONS - 1) // PARTITIONS
    first, share = core_share(x.shape[0] * tiles)
    for item in range(first, first + share):
        batch = item // tiles
        token = (item % tiles) * PARTITIONS
        count = min(PARTITIONS, tokens - token)
        _tokens(out, x, cos, sin, heads_first, batch, token, count, style, in_fp32)
    return out


KERNEL = rope_kernel


def as_batches(x, cos, unsqueeze_dim):
    """(x as [B, N, T, D] or [B, T, N, D], whether it is the former)."""
    axis = unsqueeze_dim if unsqueeze_dim >= 0 else unsqueeze_dim + cos.dim() + 1
    heads_first = cos.dim() + 1 - axis == 3
    return x.reshape(-1, *x.shape[-3:]), heads_first


def tables(cos, sin, style, rotary_dim, batches):
    """cos and sin as full-width tables [B or 1, T, R]."""
    width = cos.shape[-1] if rotary_dim is None else rotary_dim
    cos, sin = full_tables(cos, sin, style, width)
    cos, sin = cos.reshape(-1, *cos.shape[-2:]), sin.reshape(-1, *sin.shape[-2:])
    if cos.shape[0] not in (1, batches):  # leading axes of x that the tables leave out
        cos = cos.expand(batches, -1, -1).contiguous()
        sin = sin.expand(batches, -1, -1).contiguous()
    return cos, sin


def launch(kernel, x, cos, sin, style="half", rotary_dim=None, *, unsqueeze_dim=1, in_fp32=False):
    """NK.rope on the device: x in either layout of its heads."""
    batched, heads_first = as_batches(x, cos, unsqueeze_dim)
    cos, sin = tables(cos, sin, style, rotary_dim, batched.shape[0])
    out = kernel(x=batched, cos=cos, sin=sin, heads_first=heads_first, style=style, in_fp32=in_fp32)
    return out.reshape(x.shape)
