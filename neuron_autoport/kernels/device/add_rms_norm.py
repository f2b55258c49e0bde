"""The NKI kernel of NK.add_rms_norm: as rms_norm.py, with the residual added to the rows in SBUF first.

The sum is written in the rows' dtype, so it is rounded as torch rounds `residual + x`, and the norm reads
the rounded sum. Verified in simulation against torch and float64.
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
from neuron_autoport.kernels.device.tiling import (
    CHUNK,
    PARTITIONS,
    constant_column,
    core_share,
)


def _add_residual(row, residual):
    """row += residual, an SBUF tile [p, H] and HBM rows [p, H], a chunk of columns at a time."""
    count, width = row.shape
    for start in range(0, width, CHUNK):
        size = min(CHUNK, width - start)
        other = nl.ndarray((count, size), dtype=residual.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=other, src=residual[:, start : start + size])
        part = row[:, start : start + size]
        nisa.tensor_tensor(dst=part, data1=other, data2=part, op=nl.add)


def _norm_tile(out, summed, x, residual, weight, eps_column, form):
    """Rows [p, H] in HBM to both results in HBM; p <= 128."""
    row = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=x)
    _add_residual(row, residual)
    nisa.dma_copy(dst=summed, src=row)
    store_normed(out, row, inverse_rms(row, eps_column), weight, form)


@nki.jit
def add_rms_norm_kernel(x, residual, weight, eps, form, offset):
    """x and residual [N, H], weight [H] (None in form "plain") to (normed, summed), both [N, H]."""
    rows, width = x.shape
    out = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.shared_hbm)
    summed = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.shared_hbm)
    weight_tile = load_weight(weight, form, offset, width)
    eps_column = constant_column(eps)
    first, share = core_share(rows)
    for start in range(first, first + share, PARTITIONS):
        end = min(start + PARTITIONS, first + share)
        _norm_tile(
            out[start:end, :],
            summed[start:end, :],
            x[start:end, :],
            residual[start:end, :],
            weight_tile,
            eps_column,
            form,
        )
    return out, summed


KERNEL = add_rms_norm_kernel


def launch(kernel, x, residual, weight=None, eps=1e-6, *, offset=0.0, weight_in_fp32=False):
    """NK.add_rms_norm on the device: x and residual [..., H] as rows, and back."""
    out, summed = kernel(
        x=x.reshape(-1, x.shape[-1]),
        residual=residual.reshape(-1, x.shape[-1]),
        weight=weight,
        eps=eps,
        form=norm_form(weight is not None, weight_in_fp32),
        offset=offset,
    )
    return out.reshape(x.shape), summed.reshape(x.shape)
