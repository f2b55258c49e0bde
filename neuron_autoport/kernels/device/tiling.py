"""What the kernels share: how rows are dealt to the cores, and rows put on all partitions."""

import nki.isa as nisa
import nki.language as nl

PARTITIONS = 128
# Columns handled at a time where a scratch tile is needed: 8 KiB per partition in float32.
CHUNK = 2048


def core_share(count):
    """(start, size) of this core's part of `count` items: contiguous, perhaps empty, never shared."""
    cores = nl.num_programs()
    each = (count + cores - 1) // cores
    start = min(nl.program_id(0) * each, count)
    return start, min(each, count - start)


def broadcast_row(row, width, dtype):
    """An SBUF tile [128, width] with the HBM vector `row` on every partition, cast to `dtype`."""
    tile = nl.ndarray((PARTITIONS, width), dtype=dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=row.ap(pattern=[[0, PARTITIONS], [1, width]]))
    return tile


def constant_column(value):
    """An SBUF tile [128, 1] of one float32 value: the bias of an activation is a vector on every core."""
    tile = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=value)
    return tile
