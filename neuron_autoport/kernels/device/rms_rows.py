"""RMSNorm of rows held in SBUF: the statistics and the three rounding orders of NK.rms_norm.

`form` says which: "plain" without a weight, "rounded" rounds to the row's dtype before the weight,
"fp32" multiplies by offset + weight in float32 and rounds once.
"""

import nki.isa as nisa
import nki.language as nl

from neuron_autoport.kernels.device.tiling import CHUNK, PARTITIONS, broadcast_row


def norm_form(has_weight, weight_in_fp32):
    """The form of a call of NK.rms_norm."""
    if not has_weight:
        return "plain"
    return "fp32" if weight_in_fp32 else "rounded"


def load_weight(weight, form, offset, width):
    """The weight on all partitions, [128, width]; in form "fp32" as float32 with the offset added."""
    if form == "plain":
        return None
    if form == "rounded":
        return broadcast_row(weight, width, weight.dtype)
    tile = broadcast_row(weight, width, nl.float32)
    if offset != 0.0:
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=offset)
    return tile


def inverse_rms(row, eps_column):
    """[p, 1] float32: rsqrt(mean(row^2) + eps) of an SBUF tile row [p, width]."""
    count, width = row.shape
    squares = nl.ndarray((PARTITIONS, CHUNK), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    for start in range(0, width, CHUNK):
        size = min(CHUNK, width - start)
        command = nisa.reduce_cmd.reset_reduce if start == 0 else nisa.reduce_cmd.reduce
        nisa.activation(
            dst=squares[0:count, 0:size],
            op=nl.square,
            data=row[:, start : start + size],
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=command,
        )
    inverse = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=inverse, op=nl.rsqrt, data=total, scale=1.0 / width, bias=eps_column[0:count, 0:1]
    )
    return inverse


def store_normed(dst, row, inverse, weight, form):
    """Write row * inverse, times the weight as `form` says, to the HBM rows `dst` [p, width]."""
    count, width = row.shape
    for start in range(0, width, CHUNK):
        size = min(CHUNK, width - start)
        out = nl.ndarray((count, size), dtype=dst.dtype, buffer=nl.sbuf)
        part = row[:, start : start + size]
        if form == "fp32":
            nisa.scalar_tensor_tensor(
                dst=out,
                data=part,
                op0=nl.multiply,
                operand0=inverse,
                op1=nl.multiply,
                operand1=weight[0:count, start : start + size],
            )
        else:
            nisa.tensor_scalar(dst=out, data=part, op0=nl.multiply, operand0=inverse)
        if form == "rounded":
            nisa.tensor_tensor(
                dst=out,
                data1=out,
                data2=weight[0:count, start : start + size],
                op=nl.multiply,
            )
        nisa.dma_copy(dst=dst[:, start : start + size], src=out)
