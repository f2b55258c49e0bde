"""Which classes the tensor-parallel ranks share, and the modules that put the ranks' parts together.

A class is shared when its products are column- (or head-) parallel up to one row-parallel product whose
result is all it returns; that result is then summed over the ranks. Every other class is kept whole on
each rank. Whether a shared class still computes the same is tried on the small model (`selftest`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neuron_autoport.fused import FusedWeight
from neuron_autoport.hosts.neuron.call import Call
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.mixin import Before, put_before
from neuron_autoport.hosts.neuron.sequence import gathered, summed

if TYPE_CHECKING:
    from neuron_autoport.rewrite.plan import ClassPlan


def why_whole(plan: ClassPlan, ranks: int) -> str | None:
    """Why the ranks cannot share a class; None if they can."""
    weights = [w for site in plan.sites for w in site.weights]
    rows = [w for w in weights if w.shard == "row"]
    inner = [w for w in weights if w.shard in ("heads", "column")]
    if len(rows) != 1 or not inner or len(rows) + len(inner) != len(weights):
        return "its products are not column-parallel up to one row-parallel product"
    if len(plan.graph.outputs) != 1 or not _is_result(plan, rows[0].parts[0].module):
        return "something stands after the row-parallel product"
    for weight in (*inner, rows[0]):
        if reason := why_not_shared(weight, ranks):
            return reason
    return None


def why_not_shared(weight: FusedWeight, ranks: int) -> str | None:
    """Why this many ranks cannot share a fused weight; None if they can."""
    if weight.shard == "column" and any(s % ranks for s in weight.sizes):
        return f"{weight.name}: {weight.sizes} columns do not divide by {ranks} ranks"
    if weight.shard == "heads":
        return _heads(weight.sizes, weight.head_dim, ranks)
    if weight.shard == "row" and weight.in_features % ranks:
        return f"{weight.name}: {weight.in_features} rows do not divide by {ranks} ranks"
    return None


def _heads(sizes: tuple[int, ...], head: int | None, ranks: int) -> str | None:
    if not head or any(s % head for s in sizes) or sizes[1] != sizes[2]:
        return f"{sizes} are no whole heads"
    heads, kv_heads = sizes[0] // head, sizes[1] // head
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        return f"{heads} query and {kv_heads} key/value heads cannot be shared by {ranks} ranks"
    return None


def _is_result(plan: ClassPlan, path: str) -> bool:
    op = plan.graph.outputs[0]
    while op.name in ("view", "cast"):
        op = op.inputs[0]
    return op.name == "module" and op.target == path


def rank_heads(heads: int, kv_heads: int, ranks: int) -> tuple[int, int]:
    """Query and key/value heads of one rank."""
    return heads // ranks, max(kv_heads // ranks, 1)


def sum_results(module: nn.Module, call: Call, ranks: Ranks) -> None:
    """Sum what a shared module returns over the ranks."""
    object.__setattr__(module, "neuron_shared", (call, ranks))
    put_before(module, _Summed)


class _Summed(Before):
    """Comes before a shared class: its one tensor is a part of the sum."""

    neuron_shared: tuple[Call, Ranks]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call, ranks = self.neuron_shared
        if call.own_tokens:
            args, kwargs = gathered((args, kwargs), call, ranks)
        return summed(super().forward(*args, **kwargs), call, ranks)


def share_vocabulary(embedding: nn.Embedding, call: Call, ranks: Ranks) -> int:
    """Keep this rank's rows of an embedding on the meta device; returns how many.

    The class's own forward runs on the rank's ids; rows of other ranks are zero and the ranks' results
    are summed. So a forward that scales what it looks up stays right.
    """
    rows = -(-embedding.num_embeddings // ranks.size)
    width = embedding.weight.shape[1]
    embedding.weight = nn.Parameter(
        torch.empty(rows, width, dtype=embedding.weight.dtype, device="meta"), requires_grad=False
    )
    object.__setattr__(embedding, "neuron_share", (call, ranks, rows))
    embedding.padding_idx = None  # of the whole vocabulary; it has no part in a forward
    put_before(embedding, _Looked)
    return rows


class _Looked(Before):
    """Comes before an embedding class of which each rank has some rows."""

    neuron_share: tuple[Call, Ranks, int]

    def forward(self, ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        call, ranks, rows = self.neuron_share
        assert call.rank is not None
        local = ids - call.rank * rows
        own = (local >= 0) & (local < rows)
        safe = torch.where(own, local, torch.zeros_like(local))
        found = super().forward(safe, *args, **kwargs)
        looked: Tensor = summed(
            torch.where(own[..., None], found, torch.zeros_like(found)), call, ranks
        )
        return looked
