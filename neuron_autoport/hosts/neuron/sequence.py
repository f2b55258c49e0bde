"""Sequence-parallel prefill: between the parts that the ranks share, each rank has its own tokens only.

A shared part gets all tokens (all-gather), and what it gives is summed and cut to the rank's tokens in one
collective (reduce-scatter). Norms and residual sums then run on T / ranks tokens. `Call.own_tokens` says whether
the running step is of this kind. Tokens are the second axis of [1, T, ...] and the first of [T, ...].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from neuron_autoport.hosts.neuron.call import Call
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.mixin import Before, put_before


def _axis(x: Tensor, tokens: int) -> int | None:
    """The axis of the tokens if there are so many."""
    if x.dim() > 2 and x.shape[0] == 1:
        return 1 if x.shape[1] == tokens else None
    return 0 if x.dim() and x.shape[0] == tokens else None


def gathered(values: Any, call: Call, ranks: Ranks) -> Any:
    """Values with all tokens in the place of this rank's; what has no tokens, or all of them, as it is."""

    def gather(x: Tensor) -> Tensor:
        axis = _axis(x, call.own_tokens)
        return x if axis is None else ranks.all_gather(x.contiguous(), axis)

    return pytree.tree_map_only(torch.Tensor, gather, values)


def summed(values: Any, call: Call, ranks: Ranks) -> Any:
    """The sum over the ranks; of this rank's tokens only in a sequence-parallel step."""
    if not call.own_tokens:
        return pytree.tree_map_only(torch.Tensor, ranks.all_reduce, values)
    total = call.own_tokens * ranks.size

    def scatter(x: Tensor) -> Tensor:
        axis = _axis(x, total)
        return ranks.all_reduce(x) if axis is None else ranks.reduce_scatter(x, axis)

    return pytree.tree_map_only(torch.Tensor, scatter, values)


def own(values: Any, call: Call, ranks: Ranks) -> Any:
    """This rank's tokens of what every rank has whole."""
    total, rank = call.own_tokens * ranks.size, call.rank
    assert rank is not None
    places = torch.arange(call.own_tokens, device=rank.device) + rank * call.own_tokens

    def cut(x: Tensor) -> Tensor:
        axis = _axis(x, total)
        return x if axis is None else x.index_select(axis, places)

    return pytree.tree_map_only(torch.Tensor, cut, values)


def keep_whole(module: nn.Module, call: Call, ranks: Ranks) -> None:
    """Let a module that every rank has whole, and that mixes tokens, see all tokens."""
    object.__setattr__(module, "neuron_whole", (call, ranks))
    put_before(module, _Whole)


class _Whole(Before):
    """Comes before a class of which each rank has all."""

    neuron_whole: tuple[Call, Ranks]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call, ranks = self.neuron_whole
        if not call.own_tokens:
            return super().forward(*args, **kwargs)
        args, kwargs = gathered((args, kwargs), call, ranks)
        return own(super().forward(*args, **kwargs), call, ranks)
