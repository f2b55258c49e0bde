"""The NKI kernel of NK.rms_norm: 128 rows at a time, each row whole in SBUF.

Sum of squares in float32 on the Scalar engine, rsqrt, then one or two Vector instructions per chunk of
columns. Rows are dealt to the cores in two contiguous parts. Mean squares (with eps) must lie in the range
of the Scalar engine's rsqrt, 2^-87 to 2^97. Verified in simulation against torch and float64.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from neuron_autoport.kernels.device.rms_rows import (
    inverse_rms,
    load_weight,
    norm_form,
    store_normed,
)
from neuron_autoport.kernels.device.tiling import PARTITIONS, constant_column, core_share


def _norm_tile(out, x, weight, eps_column, form):
    """Rows [p, H] in HBM to rows [p, H] in HBM; p <= 128."""
    row = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=x)
    store_normed(out, row, inverse_rms(row, eps_column), weight, form)


@nki.jit
def rms_norm_kernel(x, weight, eps, form, offset):
    """x [N, H] and weight [H] (None in form "plain") to [N, H]; forms as in rms_rows.py."""
    rows, width = x.shape
    out = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.shared_hbm)
    weight_tile = load_weight(weight, form, offset, width)
    eps_column = constant_column(eps)
    first, share = core_share(rows)
    for start in range(first, first + share, PARTITIONS):
        end = min(start + PARTITIONS, first + share)
        _norm_tile(out[start:end, :], x[start:end, :], weight_tile, eps_column, form)
    return out


KERNEL = rms_norm_kernel


def launch(kernel, x, weight=None, eps=1e-6, *, offset=0.0, weight_in_fp32=False):
    """NK.rms_norm on the device: x [..., H] as rows, and back."""
    rows = x.reshape(-1, x.shape[-1])
    form = norm_form(weight is not None, weight_in_fp32)
    out = kernel(x=rows, weight=weight, eps=eps, form=form, offset=offset)
    return out.reshape(x.shape)
