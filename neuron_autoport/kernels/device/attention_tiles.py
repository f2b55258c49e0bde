"""Tiles of softcap_attention: queries and keys turned for the tensor engine, and one step of its softmax.

The state of the online softmax is a tuple of SBUF tiles over all query tiles i of a pass:
(maximum [128, i], total [128, i], output [128, i, Dv]), all float32.
"""

import nki.isa as nisa
import nki.language as nl

from neuron_autoport.kernels.device.tiling import PARTITIONS

KEY_BLOCK = 512
# What a hidden key scores: finite, so that no inf - inf appears, and far below any score there is.
HIDDEN = -3.0e38


def _turn(dst, rows):
    """dst [c, p] = rows [p, c] transposed, SBUF tiles of one dtype, through PSUM."""
    turned = nl.ndarray(dst.shape, dtype=rows.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=rows)
    nisa.tensor_copy(dst=dst, src=turned)


def _turn_rows(dst, at, rows_in_hbm):
    """Bring rows [p, D] in and lay them into dst [128, D / 128, n] transposed, from column `at` on."""
    count, width = rows_in_hbm.shape
    rows = nl.ndarray((count, width), dtype=rows_in_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=rows_in_hbm)
    for part in range(dst.shape[1]):
        left = part * PARTITIONS
        size = min(PARTITIONS, width - left)
        _turn(dst[0:size, part, at : at + count], rows[:, left : left + size])


def load_queries(q, batch, tiles):
    """The query tiles transposed: [128, D / 128, tiles * 128], D on the partitions."""
    width = q.shape[3]
    parts = (width + PARTITIONS - 1) // PARTITIONS
    turned = nl.ndarray((PARTITIONS, parts, len(tiles) * PARTITIONS), dtype=q.dtype, buffer=nl.sbuf)
    for index in range(len(tiles)):
        head, query, count = tiles[index]
        _turn_rows(turned, index * PARTITIONS, q[batch, head, query : query + count, :])
    return turned


def load_keys(k, batch, group, start, count):
    """(keys `start` on transposed: [128, D / 128, count], the width D)."""
    width = k.shape[3]
    parts = (width + PARTITIONS - 1) // PARTITIONS
    turned = nl.ndarray((PARTITIONS, parts, count), dtype=k.dtype, buffer=nl.sbuf)
    for row in range(0, count, PARTITIONS):
        end = min(row + PARTITIONS, count)
        _turn_rows(turned, row, k[batch, group, start + row : start + end, :])
    return turned, width


def load_values(v, batch, group, start, count):
    """Values `start` on: [128, count / 128, Dv], 128 keys on the partitions."""
    blocks = (count + PARTITIONS - 1) // PARTITIONS
    values = nl.ndarray((PARTITIONS, blocks, v.shape[3]), dtype=v.dtype, buffer=nl.sbuf)
    for block in range(blocks):
        row = block * PARTITIONS
        end = min(row + PARTITIONS, count)
        nisa.dma_copy(
            dst=values[0 : end - row, block, :], src=v[batch, group, start + row : start + end, :]
        )
    return values


def start_state(sink, tiles, width, has_sink):
    """The state before any key: as if the sink alone had been seen, or nothing."""
    number = len(tiles)
    maximum = nl.ndarray((PARTITIONS, number), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((PARTITIONS, number), dtype=nl.float32, buffer=nl.sbuf)
    output = nl.ndarray((PARTITIONS, number, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=output, value=0.0)
    nisa.memset(dst=total, value=1.0 if has_sink else 0.0)
    if not has_sink:
        nisa.memset(dst=maximum, value=HIDDEN)
        return maximum, total, output
    for index in range(number):
        nisa.dma_copy(
            dst=maximum[:, index : index + 1],
            src=sink.ap(pattern=[[0, PARTITIONS], [1, 1]], offset=tiles[index][0]),
        )
    return maximum, total, output


def _scores(queries, keys, width, count, scale, softcap):
    """[p, count] float32: scaled and capped scores, before the mask."""
    size = queries.shape[2]
    raw = nl.ndarray((size, count), dtype=nl.float32, buffer=nl.psum)
    for part in range(keys.shape[1]):
        rows = min(PARTITIONS, width - part * PARTITIONS)
        nisa.nc_matmul(
            dst=raw,
            stationary=queries[0:rows, part, :],
            moving=keys[0:rows, part, :],
            accumulate=part > 0,
        )
    scores = nl.ndarray((size, count), dtype=nl.float32, buffer=nl.sbuf)
    if softcap == 0.0:
        nisa.activation(dst=scores, op=nl.copy, data=raw, scale=scale)
        return scores
    nisa.activation(dst=scores, op=nl.tanh, data=raw, scale=scale / softcap)
    nisa.tensor_scalar(dst=scores, data=scores, op0=nl.multiply, operand0=softcap)
    return scores


def _mask(scores, position, window):
    """Hide what query p at `position` + p (counted from the block's first key) does not see."""
    size, count = scores.shape
    if count - 1 > position:  # some key lies behind the first query
        nisa.affine_select(
            dst=scores,
            pattern=[[-1, count]],
            channel_multiplier=1,
            on_true_tile=scores,
            on_false_value=HIDDEN,
            cmp_op=nl.greater_equal,
            offset=position,
        )
    if window > 0 and position + size - 1 - window >= 0:  # some key lies before the last window
        nisa.affine_select(
            dst=scores,
            pattern=[[1, count]],
            channel_multiplier=-1,
            on_true_tile=scores,
            on_false_value=HIDDEN,
            cmp_op=nl.greater_equal,
            offset=window - 1 - position,
        )


def _weighted(probabilities, values):
    """[p, Dv] float32 in PSUM: probabilities [p, keys] times values."""
    size, count = probabilities.shape
    product = nl.ndarray((size, values.shape[2]), dtype=nl.float32, buffer=nl.psum)
    for block in range(values.shape[1]):
        row = block * PARTITIONS
        keys = min(PARTITIONS, count - row)
        turned = nl.ndarray((keys, size), dtype=probabilities.dtype, buffer=nl.sbuf)
        _turn(turned, probabilities[:, row : row + keys])
        nisa.nc_matmul(
            dst=product,
            stationary=turned,
            moving=values[0:keys, block, :],
            accumulate=block > 0,
        )
    return product


def attend(state, index, size, queries, keys, values, position, scale, softcap, window):
    """Let query tile `index` (`size` queries, the first at `position` from the block) see one block."""
    maximum, total, output = (
        state[0][0:size, index : index + 1],
        state[1][0:size, index : index + 1],
        state[2][0:size, index, :],
    )
    turned_keys, width = keys
    left = index * PARTITIONS
    scores = _scores(
        queries[:, :, left : left + size], turned_keys, width, turned_keys.shape[2], scale, softcap
    )
    _mask(scores, position, window)

    minus = nl.ndarray((size, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=minus, op=nl.maximum, data=scores, axis=1)
    nisa.tensor_tensor(dst=minus, data1=minus, data2=maximum, op=nl.maximum)
    nisa.tensor_scalar(dst=minus, data=minus, op0=nl.multiply, operand0=-1.0)
    shrink = nl.ndarray((size, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=shrink, op=nl.exp, data=maximum, bias=minus)
    nisa.tensor_scalar(dst=maximum, data=minus, op0=nl.multiply, operand0=-1.0)

    probabilities = nl.ndarray(scores.shape, dtype=values.dtype, buffer=nl.sbuf)
    block_total = nl.ndarray((size, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=probabilities,
        op=nl.exp,
        data=scores,
        bias=minus,
        reduce_op=nl.add,
        reduce_res=block_total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    nisa.scalar_tensor_tensor(
        dst=total, data=total, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=block_total
    )
    nisa.scalar_tensor_tensor(
        dst=output,
        data=output,
        op0=nl.multiply,
        operand0=shrink,
        op1=nl.add,
        operand1=_weighted(probabilities, values),
    )


def store_result(dst, state, index, size):
    """Write output / total of query tile `index` to the HBM rows `dst` [size, Dv]."""
    inverse = nl.ndarray((size, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=state[1][0:size, index : index + 1])
    result = nl.ndarray(dst.shape, dtype=dst.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=result, data=state[2][0:size, index, :], op0=nl.multiply, operand0=inverse
    )
    nisa.dma_copy(dst=dst, src=result)
