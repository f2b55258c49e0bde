"""The NKI kernel of NK.softcap_attention: online softmax over blocks of 512 keys, heads up to 512 wide.

Per key head, up to 16 tiles of 128 queries (of all query heads that read it) go together over the key blocks
that any of them sees: a block of keys is brought in and turned once for all of them. A head wider than 128
is contracted in tiles of 128 that accumulate in PSUM. Scores, their running maximum and sum, and the output's
accumulator are float32; probabilities have the dtype of v. A sink is the state the softmax starts from. Query
tiles are dealt to the cores alternately, since later ones see more keys. Verified in simulation against torch
and float64.
"""

import nki
import nki.language as nl

from neuron_autoport.kernels.device.attention_tiles import (
    KEY_BLOCK,
    attend,
    load_keys,
    load_queries,
    load_values,
    start_state,
    store_result,
)
from neuron_autoport.kernels.device.tiling import PARTITIONS

TILES_AT_ONCE = 16


def _query_tiles(tokens, group, heads):
    """(head, first query, count) of this core's tiles for one key head."""
    cores = nl.num_programs()
    tiles = []
    index = 0
    for head in range(group * heads, (group + 1) * heads):
        for query in range(0, tokens, PARTITIONS):
            if index % cores == nl.program_id(0):
                tiles.append((head, query, min(PARTITIONS, tokens - query)))
            index += 1
    return tiles


def _seen(tile, before, window):
    """(first, end) of the keys that any query of the tile sees; before: keys ahead of query 0."""
    first = 0 if window == 0 else max(0, before + tile[1] - window + 1)
    return first, before + tile[1] + tile[2]


def _together(out, q, k, v, sink, batch, group, tiles, softcap, scale, window, has_sink):
    """The query tiles `tiles` over all key blocks that one of them sees."""
    before = k.shape[2] - q.shape[2]
    turned = load_queries(q, batch, tiles)
    state = start_state(sink, tiles, v.shape[3], has_sink)
    low = before + q.shape[2]
    high = 0
    for tile in tiles:
        first, end = _seen(tile, before, window)
        low = min(low, first)
        high = max(high, end)
    for start in range(low // KEY_BLOCK * KEY_BLOCK, high, KEY_BLOCK):
        count = min(KEY_BLOCK, k.shape[2] - start)
        keys = load_keys(k, batch, group, start, count)
        values = load_values(v, batch, group, start, count)
        for index in range(len(tiles)):
            first, end = _seen(tiles[index], before, window)
            if first < start + count and end > start:
                position = before + tiles[index][1]
                attend(
                    state,
                    index,
                    tiles[index][2],
                    turned,
                    keys,
                    values,
                    position - start,
                    scale,
                    softcap,
                    window,
                )
    for index in range(len(tiles)):
        head, query, count = tiles[index]
        store_result(out[batch, head, query : query + count, :], state, index, count)


@nki.jit
def softcap_attention_kernel(q, k, v, sink, scale, softcap, window, has_sink):
    """q [B, N, T, D], k [B, Nkv, S, D], v [B, Nkv, S, Dv], sink [N] or None to [B, N, T, Dv].

    softcap, window: 0 for none.
    """
    batches, all_heads, tokens, _ = q.shape
    groups = k.shape[1]
    heads = all_heads // groups
    out = nl.ndarray((batches, all_heads, tokens, v.shape[3]), dtype=q.dtype, buffer=nl.shared_hbm)
    for batch in range(batches):
        for group in range(groups):
            tiles = _query_tiles(tokens, group, heads)
            for start in range(0, len(tiles), TILES_AT_ONCE):
                some = []
                for index in range(start, min(start + TILES_AT_ONCE, len(tiles))):
                    some.append(tiles[index])
                _together(out, q, k, v, sink, batch, group, some, softcap, scale, window, has_sink)
    return out


KERNEL = softcap_attention_kernel


def launch(kernel, q, k, v, scale=None, softcap=None, window=None, sink=None):
    """NK.softcap_attention on the device."""
    return kernel(
        q=q,
        k=k,
        v=v,
        sink=sink,
        scale=float(q.shape[-1] ** -0.5 if scale is None else scale),
        softcap=float(0.0 if softcap is None else softcap),
        window=0 if window is None else window,
        has_sink=sink is not None,
    )
