"""RoPE of heads held in SBUF: tokens on the partitions, heads and their width on the free axes.

Queries in HBM are [B, N, T, D] or [B, T, N, D]; both are read token by token through an access pattern, so
neither is ever transposed.
"""

import nki.isa as nisa
import nki.language as nl

# Elements of heads per partition handled at a time: 16 KiB in float32.
HEAD_ELEMENTS = 4096


def heads_view(x, heads_first, batch, token, count, head, heads):
    """`count` tokens by `heads` heads of an HBM tensor [B, N, T, D] or [B, T, N, D], as [p, n, D]."""
    if heads_first:
        _, all_heads, tokens, width = x.shape
        offset = ((batch * all_heads + head) * tokens + token) * width
        return x.ap(pattern=[[width, count], [tokens * width, heads], [1, width]], offset=offset)
    _, tokens, all_heads, width = x.shape
    offset = ((batch * tokens + token) * all_heads + head) * width
    return x.ap(pattern=[[all_heads * width, count], [width, heads], [1, width]], offset=offset)


def sizes(x, heads_first):
    """(heads, tokens) of an HBM tensor [B, N, T, D] or [B, T, N, D]."""
    if heads_first:
        return x.shape[1], x.shape[2]
    return x.shape[2], x.shape[1]


def load_table(table, batch, token, count):
    """`count` rows of an HBM table [B or 1, T, R] on as many partitions: [p, R]."""
    at = batch if table.shape[0] > 1 else 0
    tile = nl.ndarray((count, table.shape[2]), dtype=table.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=table[at, token : token + count, :])
    return tile


def _pair(tile, second, width, style):
    """Of the first `width` columns of tile [p, n, D]: the first or the second of every pair.

    A deinterleaved result has its pairs in halves; what it is made of is read interleaved.
    """
    half = width // 2
    if style == "interleaved":
        return tile[:, :, second:width:2]
    return tile[:, :, second * half : (second + 1) * half]


def rotate_heads(out, x, cos, sin, style, in_fp32):
    """out = x * cos + rotate(x) * sin, SBUF tiles [p, n, D], tables [p, R] in the order of the result.

    The products are rounded to the dtype of x, or kept in float32 if in_fp32; the sum to that of out.
    """
    count, heads, width = x.shape
    rotary = cos.shape[1]
    work = nl.float32 if in_fp32 else x.dtype
    straight = nl.ndarray((count, heads, rotary), dtype=work, buffer=nl.sbuf)
    crossed = nl.ndarray((count, heads, rotary), dtype=work, buffer=nl.sbuf)
    cosines = cos.expand_dim(1).broadcast(1, heads)
    sines = sin.expand_dim(1).broadcast(1, heads)
    read = "interleaved" if style == "deinterleave" else style
    if read == style:
        nisa.tensor_tensor(dst=straight, data1=x[:, :, 0:rotary], data2=cosines, op=nl.multiply)
    for second in range(2):
        if read != style:
            nisa.tensor_tensor(
                dst=_pair(straight, second, rotary, style),
                data1=_pair(x, second, rotary, read),
                data2=_pair(cosines, second, rotary, style),
                op=nl.multiply,
            )
        nisa.tensor_tensor(
            dst=_pair(crossed, second, rotary, style),
            data1=_pair(x, 1 - second, rotary, read),
            data2=_pair(sines, second, rotary, style),
            op=nl.multiply,
        )
        nisa.tensor_tensor(
            dst=_pair(out, second, rotary, style),
            data1=_pair(straight, second, rotary, style),
            data2=_pair(crossed, second, rotary, style),
            op=nl.add if second == 1 else nl.subtract,
        )
    if rotary < width:
        nisa.tensor_copy(dst=out[:, :, rotary:width], src=x[:, :, rotary:width])
