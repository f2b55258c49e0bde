"""Drive a hosted model step by step as the runner does, for the self-test: one prefill per request, then
decode of all of them, with padding, scattered blocks and trimmed windows.
"""

from __future__ import annotations

from typing import Any

import torch

BLOCK = 16
SPREAD = 5  # a request's blocks lie this far apart


class Stepper:
    """Requests on one hosted model with its own small cache.

    Args:
        model: loaded. lengths: prompt lengths. steps: tokens decoded after each.
        context: cached positions a table covers. rank: of this model in its group.
    """

    def __init__(
        self, model: Any, lengths: tuple[int, ...], steps: int, context: int = 256, rank: int = 0
    ) -> None:
        self.model, self.rank = model, torch.tensor(rank, dtype=torch.int32)
        self.width = context // BLOCK
        self.specs = list(model.get_kv_spec().layers)
        needed = [-(-(n + steps) // BLOCK) for n in lengths]
        total = sum(needed)
        order = [(SPREAD * i) % (total * SPREAD + 1) + 1 for i in range(total)]
        self.tables = [[order.pop(0) for _ in range(n)] for n in needed]
        blocks = max(max(t) for t in self.tables) + 2
        model.bind_kv_cache({spec.name: _pair(spec, blocks, model.dtype) for spec in self.specs})

    def prefill(self, request: int, ids: list[int], bucket: int) -> torch.Tensor:
        """Logits [V] after a prompt, padded to `bucket` tokens."""
        count, table = len(ids), self.tables[request]
        tokens, places = torch.zeros(bucket, dtype=torch.int32), torch.full((bucket,), count - 1)
        slots = torch.zeros(bucket, dtype=torch.long)
        tokens[:count], places[:count] = torch.tensor(ids, dtype=torch.int32), torch.arange(count)
        slots[:count] = torch.tensor([_slot(table, p) for p in range(count)])
        entry = self.entry(self.table([table]), slots, bucket, 0)
        return self.run(
            tokens, places, dict.fromkeys(self.names, entry), torch.tensor([count - 1])
        )[0]

    def decode(self, ids: list[int], places: list[int], rows: int) -> torch.Tensor:
        """Logits [requests, V] after one token of each request; the batch is padded to `rows`."""
        count = len(ids)
        tokens, at = torch.zeros(rows, dtype=torch.int32), torch.zeros(rows, dtype=torch.long)
        slots = torch.zeros(rows, dtype=torch.long)
        tokens[:count], at[:count] = torch.tensor(ids, dtype=torch.int32), torch.tensor(places)
        slots[:count] = torch.tensor(
            [_slot(t, p) for t, p in zip(self.tables, places, strict=True)]
        )
        full = self.table([*self.tables, *[[]] * (rows - count)])
        metadata = {}
        for spec in self.specs:
            entry = self.entry(full, slots, 1, max(places))
            if spec.sliding_window_size:
                self.trim(entry, spec.sliding_window_size, at)
            metadata[spec.name] = entry
        wanted = torch.arange(rows).clamp(max=count - 1)
        return self.run(tokens, at, metadata, wanted)[:count]

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.specs]

    def table(self, tables: list[list[int]]) -> torch.Tensor:
        made = torch.full((len(tables), self.width), -1, dtype=torch.int32)
        for row, blocks in zip(made, tables, strict=True):
            row[: len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        return made

    def entry(
        self, table: torch.Tensor, slots: torch.Tensor, longest: int, cached: int
    ) -> dict[str, Any]:
        return {
            "block_table_tensor": table,
            "full_block_table_tensor": table.clone(),
            "slot_mapping": slots,
            "max_query_len": longest,
            "decode_token_threshold": 1,
            "block_size": BLOCK,
            "max_blocks_per_seq": self.width,
            "cached_seq_len": torch.tensor([[cached]], dtype=torch.int32),
            "kv_segment_size": 0,
        }

    def trim(self, entry: dict[str, Any], window: int, places: torch.Tensor) -> None:
        """A window layer's table: the last blocks of each request, and where they begin."""
        step = max(128 // BLOCK, 1)
        kept = min(-(-(window // BLOCK + 1) // step) * step, self.width)
        first = (places // BLOCK - kept + 1).clamp(min=0)
        columns = first[:, None] + torch.arange(kept)
        entry["block_table_tensor"] = entry["full_block_table_tensor"].gather(1, columns)
        entry["swa_kv_pos_offset"] = (first * BLOCK).int()

    def run(
        self, ids: torch.Tensor, places: torch.Tensor, metadata: Any, wanted: torch.Tensor
    ) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self.model(
                input_ids=ids,
                positions=places,
                attn_metadata=metadata,
                sampling_positions=wanted,
                sampling_params=None,
                spec_decode_metadata=None,
                rank=self.rank,
                logit_mask=None,
            )
        return logits


def hosted_logits(
    model: Any, prompts: list[list[int]], continued: list[list[int]], rank: int = 0
) -> torch.Tensor:
    """Logits [requests, 1 + steps, V] of a hosted model fed with prompts and given next tokens."""
    steps = len(continued[0])
    stepper = Stepper(model, tuple(len(p) for p in prompts), steps, rank=rank)
    found = [[stepper.prefill(i, p, 16)] for i, p in enumerate(prompts)]
    for step in range(steps):
        rows = stepper.decode(
            [c[step] for c in continued], [len(p) + step for p in prompts], len(prompts) + 1
        )
        for request, row in zip(found, rows, strict=True):
            request.append(row)
    return torch.stack([torch.stack(request) for request in found])


def _slot(table: list[int], position: int) -> int:
    return table[position // BLOCK] * BLOCK + position % BLOCK


def _pair(spec: Any, blocks: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Key and value cache, filled with what no model may read."""
    shape = (blocks, spec.num_kv_heads, BLOCK, spec.head_size)
    return [torch.full(shape, 7.0, dtype=dtype) for _ in range(2)]
