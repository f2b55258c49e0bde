"""The NKI kernel of NK.act_and_mul: 128 rows by 2048 columns at a time, all of it elementwise.

Every line of the reference's formula is one instruction that writes the dtype of the gate, so it rounds
where torch rounds. Verified in simulation against torch and float64.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from neuron_autoport.kernels.act_and_mul import ALPHA
from neuron_autoport.kernels.device.tiling import CHUNK, PARTITIONS, core_share


def _activate(out, gate, kind, alpha):
    """out = act(gate), tiles of one dtype; `out` is another tile than `gate`."""
    if kind == "silu":
        nisa.activation(dst=out, op=nl.silu, data=gate)
    elif kind == "gelu":
        nisa.activation(dst=out, op=nl.gelu, data=gate)
    elif kind == "gelu_tanh":
        nisa.activation(dst=out, op=nl.gelu_apprx_tanh, data=gate)
    elif kind == "relu2":
        nisa.tensor_scalar(dst=out, data=gate, op0=nl.maximum, operand0=0.0)
        nisa.tensor_tensor(dst=out, data1=out, data2=out, op=nl.multiply)
    else:
        nisa.tensor_scalar(dst=out, data=gate, op0=nl.multiply, operand0=alpha)
        nisa.activation(dst=out, op=nl.sigmoid, data=out)
        nisa.tensor_tensor(dst=out, data1=gate, data2=out, op=nl.multiply)


def _tile(out, gate_rows, up_rows, kind, limit, alpha):
    """HBM blocks [p, c] to an HBM block [p, c]."""
    gate = nl.ndarray(gate_rows.shape, dtype=gate_rows.dtype, buffer=nl.sbuf)
    up = nl.ndarray(gate_rows.shape, dtype=up_rows.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=gate, src=gate_rows)
    nisa.dma_copy(dst=up, src=up_rows)
    if limit >= 0.0:
        nisa.tensor_scalar(dst=gate, data=gate, op0=nl.minimum, operand0=limit)
        nisa.tensor_scalar(
            dst=up, data=up, op0=nl.maximum, operand0=-limit, op1=nl.minimum, operand1=limit
        )
    result = nl.ndarray(gate_rows.shape, dtype=gate_rows.dtype, buffer=nl.sbuf)
    _activate(result, gate, kind, alpha)
    if kind == "clamped_swiglu":
        nisa.tensor_scalar(dst=up, data=up, op0=nl.add, operand0=1.0)
    nisa.tensor_tensor(dst=result, data1=result, data2=up, op=nl.multiply)
    nisa.dma_copy(dst=out, src=result)


@nki.jit
def act_and_mul_kernel(gate, up, kind, limit, alpha):
    """gate and up [N, I] to [N, I]. limit: -1.0 for none."""
    rows, width = gate.shape
    out = nl.ndarray((rows, width), dtype=gate.dtype, buffer=nl.shared_hbm)
    first, share = core_share(rows)
    for start in range(first, first + share, PARTITIONS):
        end = min(start + PARTITIONS, first + share)
        for left in range(0, width, CHUNK):
            right = min(left + CHUNK, width)
            _tile(
                out[start:end, left:right],
                gate[start:end, left:right],
                up[start:end, left:right],
                kind,
                limit,
                alpha,
            )
    return out


KERNEL = act_and_mul_kernel


def launch(kernel, gate, up, kind="silu", *, limit=None, alpha=None):
    """NK.act_and_mul on the device: gate and up [..., I] as rows, and back."""
    out = kernel(
        gate=gate.reshape(-1, gate.shape[-1]),
        up=up.reshape(-1, gate.shape[-1]),
        kind=kind,
        limit=-1.0 if limit is None else float(limit),
        alpha=ALPHA if alpha is None else float(alpha),
    )
    return out.reshape(gate.shape)
