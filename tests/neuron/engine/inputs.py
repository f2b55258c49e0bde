"""The keyword arguments of `forward` for one step, padded to its bucket as the contract says.

Prefill: one request; pads have id 0, slot 0 and the last real position. Decode: a padded batch; pad
rows have id 0, position 0, slot 0 and sample the last real row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.neuron.engine.caches import Group
from tests.neuron.engine.options import Options, smallest
from tests.neuron.engine.tables import Request, Tables, trimmed

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Maker:
    """Makes the inputs of a rank's steps. `vocab`: the full vocabulary size."""

    options: Options
    tables: Tables
    vocab: int
    rank: Tensor

    def prefill(self, request: Request, count: int) -> Inputs:
        """The next `count` prompt tokens of one request, padded to a bucket."""
        options = self.options
        length = smallest(options.prefill_buckets, count, "prefill bucket")
        start = request.computed
        ids = request.prompt[start : start + count]
        faults = options.faults
        entries = {}
        for index, group in enumerate(self.tables.caches.groups):
            slots = self.tables.slots(request, index, count)
            table = self.tables.one(request, index)
            entry = self._entry(table, table.clone(), slots + [faults.pad_slot] * (length - count))
            entry["max_query_len"] = length
            entry["cached_seq_len"] = torch.tensor([[start]], dtype=torch.int32)
            entries.update(dict.fromkeys(group.layers, entry))
        positions = [*range(start, start + count), *[start + count - 1] * (length - count)]
        return self._step(
            ids + [faults.pad_id] * (length - count), positions, entries, [count - 1], [request]
        )

    def decode(self, requests: list[Request]) -> Inputs:
        """One token of each request, padded to a batch bucket."""
        options = self.options
        real = len(requests)
        rows = smallest(options.decode_batches, real, "decode batch")
        pads = rows - real
        self.tables.place(requests)
        faults = options.faults
        contexts = [r.computed for r in requests] + [0] * pads
        entries = {}
        for index, group in enumerate(self.tables.caches.groups):
            slots = [self.tables.slots(r, index, 1)[0] for r in requests] + [faults.pad_slot] * pads
            full = self.tables.batch(index, real, rows)
            entry = self._entry(*self._decode_table(full, contexts, group), slots)
            entry["max_query_len"] = 1
            entry["cached_seq_len"] = torch.tensor([[max(contexts)]], dtype=torch.int32)
            entry |= self._offsets(full, contexts, group)
            entries.update(dict.fromkeys(group.layers, entry))
        ids = [(r.prompt + r.output)[r.computed] for r in requests] + [faults.pad_id] * pads
        positions = [r.computed for r in requests] + [faults.pad_position] * pads
        sampled = [*range(real), *[real - 1] * pads]
        return self._step(ids, positions, entries, sampled, requests)

    def _decode_table(
        self, full: Tensor, contexts: list[int], group: Group
    ) -> tuple[Tensor, Tensor]:
        if group.window is not None:
            return trimmed(full, contexts, group, self.options)[0], full
        needed = -(-(max(contexts) + 1) // self.options.block_size)
        width = smallest(self.options.context_widths, needed, "context bucket")
        return full[:, :width].clone(), full

    def _offsets(self, full: Tensor, contexts: list[int], group: Group) -> Inputs:
        if group.window is not None:
            return {"swa_kv_pos_offset": trimmed(full, contexts, group, self.options)[1]}
        if self.options.context_buckets:
            return {"swa_kv_pos_offset": torch.zeros(len(contexts), dtype=torch.int32)}
        return {}

    def _entry(self, table: Tensor, full: Tensor, slots: list[int]) -> Inputs:
        return {
            "block_table_tensor": table,
            "full_block_table_tensor": full,
            "slot_mapping": torch.tensor(slots, dtype=torch.int64),
            "decode_token_threshold": 1,
            "block_size": self.options.block_size,
            "max_blocks_per_seq": table.shape[1],
            "kv_segment_size": self.options.chunk or 0,
        }

    def _step(
        self,
        ids: list[int],
        positions: list[int],
        entries: Inputs,
        sampled: list[int],
        requests: list[Request],
    ) -> Inputs:
        params = torch.zeros(len(sampled), 3, dtype=torch.float32)
        for at, request in enumerate(requests):
            params[at] = torch.tensor(request.sampling)
        on = self.options.on_device_sampling
        return {
            "input_ids": torch.tensor(ids, dtype=torch.int32),
            "positions": torch.tensor(positions, dtype=torch.int64),
            "attn_metadata": entries,
            "sampling_positions": torch.tensor(sampled, dtype=torch.int64),
            "sampling_params": params if on else None,
            "spec_decode_metadata": None,
            "rank": self.rank,
            "logit_mask": self._mask(len(sampled), requests),
        }

    def _mask(self, rows: int, requests: list[Request]) -> Tensor | None:
        if not self.options.mask:
            return None
        mask = torch.ones(rows, self.vocab, dtype=torch.bool)
        for at, request in enumerate(requests):
            if request.allowed is not None:
                mask[at] = request.allowed
        if self.options.mask == "full":
            return mask
        return mask.chunk(self.options.tp, 1)[int(self.rank)].contiguous()
