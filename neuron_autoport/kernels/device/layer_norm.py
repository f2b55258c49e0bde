"""The NKI kernel of NK.layer_norm: 128 rows at a time, each row whole in SBUF.

The mean is taken twice, the second time of what the first left over: so a row whose mean is far larger than
its spread keeps its accuracy, however the engine orders its sums. Variance of the centred row, weight and
bias in float32, one rounding. Verified in simulation against torch and float64.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from neuron_autoport.kernels.device.tiling import (
    CHUNK,
    PARTITIONS,
    broadcast_row,
    constant_column,
    core_share,
)


def _sum(row, op, bias):
    """[p, 1] float32: the row sums of op(row + bias)."""
    count, width = row.shape
    values = nl.ndarray((PARTITIONS, CHUNK), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    for start in range(0, width, CHUNK):
        size = min(CHUNK, width - start)
        command = nisa.reduce_cmd.reset_reduce if start == 0 else nisa.reduce_cmd.reduce
        nisa.activation(
            dst=values[0:count, 0:size],
            op=op,
            data=row[:, start : start + size],
            bias=bias[0:count, 0:1],
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=command,
        )
    return total


def _minus_mean(row, zero):
    """[p, 1] float32: the negative mean of the row."""
    count, width = row.shape
    rough = _sum(row, nl.copy, zero)
    nisa.tensor_scalar(dst=rough, data=rough, op0=nl.multiply, operand0=-1.0 / width)
    left = _sum(row, nl.copy, rough)
    fine = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=fine, data=left, op0=nl.multiply, operand0=-1.0 / width, op1=nl.add, operand1=rough
    )
    return fine


def _store(dst, row, minus_mean, inverse, weight, bias, has_weight, has_bias):
    """Write ((row - mean) * inverse) * weight + bias to the HBM rows `dst` [p, width]."""
    count, width = row.shape
    for start in range(0, width, CHUNK):
        size = min(CHUNK, width - start)
        normed = nl.ndarray((count, size), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=normed,
            data=row[:, start : start + size],
            op0=nl.add,
            operand0=minus_mean,
            op1=nl.multiply,
            operand1=inverse,
        )
        if has_weight:
            part = weight[0:count, start : start + size]
            nisa.tensor_tensor(dst=normed, data1=normed, data2=part, op=nl.multiply)
        if has_bias:
            part = bias[0:count, start : start + size]
            nisa.tensor_tensor(dst=normed, data1=normed, data2=part, op=nl.add)
        out = nl.ndarray((count, size), dtype=dst.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=normed)
        nisa.dma_copy(dst=dst[:, start : start + size], src=out)


def _norm_tile(out, x, weight, bias, zero, eps_column, has_weight, has_bias):
    """Rows [p, H] in HBM to rows [p, H] in HBM; p <= 128."""
    count, width = x.shape
    row = nl.ndarray((count, width), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=x)
    minus_mean = _minus_mean(row, zero)
    squares = _sum(row, nl.square, minus_mean)
    inverse = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=inverse, op=nl.rsqrt, data=squares, scale=1.0 / width, bias=eps_column[0:count, 0:1]
    )
    _store(out, row, minus_mean, inverse, weight, bias, has_weight, has_bias)


@nki.jit
def layer_norm_kernel(x, weight, bias, eps, has_weight, has_bias, offset):
    """x [N, H], weight and bias [H] or None to [N, H]. offset: added to the weight in float32."""
    rows, width = x.shape
    out = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.shared_hbm)
    weight_tile = None
    bias_tile = None
    if has_weight:
        dtype = weight.dtype if offset == 0.0 else nl.float32
        weight_tile = broadcast_row(weight, width, dtype)
        if offset != 0.0:
            nisa.tensor_scalar(dst=weight_tile, data=weight_tile, op0=nl.add, operand0=offset)
    if has_bias:
        bias_tile = broadcast_row(bias, width, bias.dtype)
    zero = constant_column(0.0)
    eps_column = constant_column(eps)
    first, share = core_share(rows)
    for start in range(first, first + share, PARTITIONS):
        end = min(start + PARTITIONS, first + share)
        _norm_tile(
            out[start:end, :],
            x[start:end, :],
            weight_tile,
            bias_tile,
            zero,
            eps_column,
            has_weight,
            has_bias,
        )
    return out


KERNEL = layer_norm_kernel


def launch(kernel, x, weight=None, bias=None, eps=1e-5, *, offset=0.0, weight_in_fp32=False):
    """NK.layer_norm on the device: x [..., H] as rows, and back. Both forms are one kernel."""
    out = kernel(
        x=x.reshape(-1, x.shape[-1]),
        weight=weight,
        bias=bias,
        eps=eps,
        has_weight=weight is not None,
        has_bias=bias is not None,
        offset=offset,
    )
    return out.reshape(x.shape)
