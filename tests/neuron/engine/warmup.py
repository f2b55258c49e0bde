"""Synthetic inputs of every bucket: same keys, shapes, dtypes and None-ness as at run time.

Block tables and slots are aranges, ids count from 1, nothing is cached. One difference is the
plugin's own: sampling parameters are a tensor here even if sampling on the device is off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.neuron.engine.caches import Group
from tests.neuron.engine.inputs import Inputs, Maker
from tests.neuron.engine.tables import window_width


def warmup_steps(maker: Maker) -> Iterator[tuple[str, Inputs]]:
    """(name, inputs) for each prefill length, then each decode batch and context width."""
    options = maker.options
    for length in options.prefill_buckets:
        yield f"prefill {length}", _inputs(maker, length, 1, options.width, decode=False)
    for rows in options.decode_batches:
        for width in options.context_widths:
            yield f"decode {rows}x{width}", _inputs(maker, rows, rows, width, decode=True)


def _inputs(maker: Maker, tokens: int, rows: int, width: int, decode: bool) -> Inputs:
    entries: dict[str, Any] = {}
    for group in maker.tables.caches.groups:
        entry = _entry(maker, group, tokens, rows, width, decode)
        entries.update(dict.fromkeys(group.layers, entry))
    last = torch.arange(rows) if decode else torch.tensor([tokens - 1])
    positions = torch.zeros(rows, dtype=torch.int64) if decode else torch.arange(tokens)
    return {
        "input_ids": torch.arange(1, tokens + 1, dtype=torch.int32) % maker.vocab,
        "positions": positions,
        "attn_metadata": entries,
        "sampling_positions": last.to(torch.int64),
        "sampling_params": torch.tensor([[-1.0, 1.0, 0.0]] * rows),
        "spec_decode_metadata": None,
        "rank": maker.rank,
        "logit_mask": maker._mask(rows, []),
    }


def _entry(
    maker: Maker, group: Group, tokens: int, rows: int, width: int, decode: bool
) -> dict[str, Any]:
    options = maker.options
    windowed = decode and group.window is not None
    if windowed:
        assert group.window is not None
        width = window_width(group.window, options)
    blocks = maker.tables.caches.buffers[0].shape[1]
    table = _arange(rows, width, blocks)
    full = _arange(rows, options.width, blocks)
    slots = torch.arange(tokens, dtype=torch.int64) % (blocks * options.block_size)
    entry: dict[str, Any] = {
        "block_table_tensor": table,
        "full_block_table_tensor": full,
        "slot_mapping": slots,
        "decode_token_threshold": 1,
        "block_size": options.block_size,
        "max_blocks_per_seq": width,
        "kv_segment_size": options.chunk or 0,
        "max_query_len": 1 if decode else tokens,
        "cached_seq_len": torch.zeros(1, 1, dtype=torch.int32),
    }
    if windowed or (decode and options.context_buckets):
        entry["swa_kv_pos_offset"] = torch.zeros(rows, dtype=torch.int32)
    return entry


def _arange(rows: int, width: int, blocks: int) -> Tensor:
    return (torch.arange(rows * width, dtype=torch.int32) % blocks).view(rows, width)
