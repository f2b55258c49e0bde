"""The NKI kernel of NK.qk_norm_rope: as rope.py, with each head normalized in SBUF before it is rotated.

One program does the queries and then the keys. The norm's result is rounded to the dtype of the heads in
between, as torch does. Verified in simulation against torch and float64.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from neuron_autoport.kernels.device.rms_rows import load_weight, norm_form
from neuron_autoport.kernels.device.rope import as_batches, tables
from neuron_autoport.kernels.device.rope_heads import (
    HEAD_ELEMENTS,
    heads_view,
    load_table,
    rotate_heads,
    sizes,
)
from neuron_autoport.kernels.device.tiling import PARTITIONS, constant_column, core_share


def _norm_heads(tile, weight, form, eps_column):
    """Normalize every head of an SBUF tile [p, n, D] in place; forms as in rms_rows.py."""
    count, heads, width = tile.shape
    wide = nl.ndarray((count, heads, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=wide, op=nl.square, data=tile)
    inverse = nl.ndarray((count, heads, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=inverse, op=nl.add, data=wide, axis=2, keepdims=True)
    nisa.activation(
        dst=inverse, op=nl.rsqrt, data=inverse, scale=1.0 / width, bias=eps_column[0:count, 0:1]
    )
    factors = inverse.broadcast(2, width)
    if form == "plain":
        nisa.tensor_tensor(dst=tile, data1=tile, data2=factors, op=nl.multiply)
        return
    weights = weight[0:count, :].expand_dim(1).broadcast(1, heads)
    normed = wide if form == "fp32" else tile
    nisa.tensor_tensor(dst=normed, data1=tile, data2=factors, op=nl.multiply)
    nisa.tensor_tensor(dst=tile, data1=normed, data2=weights, op=nl.multiply)


def _tokens(out, x, weight, form, cosines, sines, eps_column, place, heads_first, style, in_fp32):
    """All heads of one tile of tokens; place: (batch, first token, count <= 128)."""
    batch, token, count = place
    all_heads, _ = sizes(x, heads_first)
    width = x.shape[3]
    step = max(1, HEAD_ELEMENTS // width)
    for head in range(0, all_heads, step):
        heads = min(step, all_heads - head)
        tile = nl.ndarray((count, heads, width), dtype=x.dtype, buffer=nl.sbuf)
        result = nl.ndarray((count, heads, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=heads_view(x, heads_first, batch, token, count, head, heads))
        _norm_heads(tile, weight, form, eps_column)
        rotate_heads(result, tile, cosines, sines, style, in_fp32)
        nisa.dma_copy(
            dst=heads_view(out, heads_first, batch, token, count, head, heads), src=result
        )


@nki.jit
def qk_norm_rope_kernel(
    q,
    k,
    q_weight,
    k_weight,
    cos,
    sin,
    eps,
    q_form,
    k_form,
    offset,
    heads_first,
    style,
    in_fp32,
):
    """q [B, Nq, T, D] (heads_first) or [B, T, Nq, D], k likewise; weights [D] or None; tables [B or 1, T, R]."""
    width = q.shape[3]
    q_out = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    k_out = nl.ndarray(k.shape, dtype=k.dtype, buffer=nl.shared_hbm)
    q_tile = load_weight(q_weight, q_form, offset, width)
    k_tile = load_weight(k_weight, k_form, offset, width)
    eps_column = constant_column(eps)
    _, tokens = sizes(q, heads_first)
    tiles = (tokens + PARTITIONS - 1) // PARTITIONS
    first, share = core_share(q.shape[0] * tiles)
    for item in range(first, first + share):
        batch = item // tiles
        token = (item % tiles) * PARTITIONS
        place = (batch, token, min(PARTITIONS, tokens - token))
        cosines = load_table(cos, batch, token, place[2])
        sines = load_table(sin, batch, token, place[2])
        _tokens(
            q_out, q, q_tile, q_form, cosines, sines, eps_column, place, heads_first, style, in_fp32
        )
        _tokens(
            k_out, k, k_tile, k_form, cosines, sines, eps_column, place, heads_first, style, in_fp32
        )
    return q_out, k_out


KERNEL = qk_norm_rope_kernel


def launch(
    kernel,
    q,
    k,
    q_weight,
    k_weight,
    cos,
    sin,
    eps=1e-6,
    *,
    offset=0.0,
    weight_in_fp32=False,
    style="half",
    rotary_dim=None,
    unsqueeze_dim=1,
    in_fp32=False,
):
    """NK.qk_norm_rope on the device: q and k in either layout of their heads."""
    queries, heads_first = as_batches(q, cos, unsqueeze_dim)
    keys, _ = as_batches(k, cos, unsqueeze_dim)
    cos, sin = tables(cos, sin, style, rotary_dim, queries.shape[0])
    q_out, k_out = kernel(
        q=queries,
        k=keys,
        q_weight=q_weight,
        k_weight=k_weight,
        cos=cos,
        sin=sin,
        eps=eps,
        q_form=norm_form(q_weight is not None, weight_in_fp32),
        k_form=norm_form(k_weight is not None, weight_in_fp32),
        offset=offset,
        heads_first=heads_first,
        style=style,
        in_fp32=in_fp32,
    )
    return q_out.reshape(q.shape), k_out.reshape(k.shape)
