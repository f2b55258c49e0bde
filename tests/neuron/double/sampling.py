"""NF.sample: top-k, temperature, top-p, one draw per row; ids over the whole vocabulary.

Two documented traps are part of the formula: never more than `max_top_k` candidates, and the token
that crosses top_p is dropped (the first one always stays).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double.args import Args
from tests.neuron.double.log import KERNEL
from tests.neuron.double.op import Function, Made, build

MASKED = -3000.0


def check(a: Args) -> str:
    """Shapes; tp_rank with a group of several ranks; no sampling data parallelism."""
    a.shape("logits", -1, -1)
    rows = a.logits.shape[0]
    for name in ("temperature", "top_k", "top_p"):
        if isinstance(a.values[name], Tensor):
            a.shape(name, rows)
    a.need(not a.given(["all2all_group", "gather_group"]), "sampling DP is not in the double")
    several = a.tp_group is not None and dist.get_world_size(a.tp_group) > 1
    if several and not a.all_greedy:
        a.need(isinstance(a.tp_rank, Tensor), "ValueError: tp_rank (a tensor) is required")
    return KERNEL


def _whole(a: Args) -> Tensor:
    """All ranks' logits side by side, [B, V]."""
    if a.tp_group is None:
        return F.up(a.logits)
    size = dist.get_world_size(a.tp_group)
    parts = [torch.empty_like(a.logits.contiguous()) for _ in range(size)]
    dist.all_gather(parts, a.logits.contiguous(), group=a.tp_group)
    if a.tp_rank is not None:
        a.need(int(a.tp_rank) == dist.get_rank(a.tp_group), "tp_rank is not this rank")
    return F.up(torch.cat(parts, 1))


def _rows(value: Any, rows: int) -> list[float]:
    return [float(v) for v in value] if isinstance(value, Tensor) else [float(value)] * rows


def compute(a: Args) -> list[Tensor]:
    """int32 [B]."""
    logits = _whole(a)
    rows = logits.shape[0]
    greedy = logits.argmax(1)
    if a.all_greedy:
        return [greedy.int()]
    settings = (_rows(a.values[name], rows) for name in ("temperature", "top_k", "top_p"))
    uniform = torch.rand(rows, generator=torch.Generator().manual_seed(7), dtype=logits.dtype)
    drawn = []
    for row, (heat, top_k, top_p) in enumerate(zip(*settings, strict=True)):
        if heat < 1e-5:
            drawn.append(int(greedy[row]))
            continue
        u = 0.5 if a.deterministic else float(uniform[row])
        drawn.append(_draw(logits[row], heat, int(top_k), top_p, u, a.max_top_k))
    return [torch.tensor(drawn, dtype=torch.int32)]


def _draw(row: Tensor, heat: float, top_k: int, top_p: float, u: float, most: int) -> int:
    values, ids = row.topk(min(most, row.shape[0]))
    if 0 < top_k < values.shape[0]:
        values = torch.where(values < values[top_k - 1], MASKED, values)
    weights = F.softmax(values / heat)
    keep = weights.cumsum(0) <= top_p
    keep[0] = True
    kept = weights * keep
    at = int(torch.searchsorted(kept.cumsum(0), u * kept.sum()))
    return int(ids[min(at, ids.shape[0] - 1)])


def shapes(a: Args) -> Made:
    """int32 [B]."""
    return [((a.logits.shape[0],), torch.int32)]


sample = build(Function("sample", check, shapes, compute))
