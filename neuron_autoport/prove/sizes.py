"""The same call at other sizes: a proof at the sizes of a trace alone would not show what they have decided.

`eps = 1e-2 * x.shape[1]` is a constant to a trace. With another number of tokens, or of sequences, it is another.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils import _pytree as pytree

from neuron_autoport.prove.modules import RUN_ERRORS, Call, run

# Added to a size: it is no multiple of the usual ones then.
_MORE = 3


def at_other_sizes(module: nn.Module, call: Call) -> list[Call]:
    """Calls with other numbers of tokens and sequences that the module runs with; none if it runs with no other.

    All of them at once, if it can; else one by one.

    Args:
        module: the original. call: on the CPU, in float32.
    """
    sizes = sorted(_leading(call))
    for wide in (True, False):
        every = _resized(call, frozenset(sizes), wide)
        if every is not None and _runs(module, every):
            return [every]
    return [again for again in _one_by_one(call, sizes) if _runs(module, again)]


def _one_by_one(call: Call, sizes: list[int]) -> Iterator[Call]:
    for size in sizes:
        for wide in (True, False):
            again = _resized(call, frozenset({size}), wide)
            if again is not None:
                yield again


def _leading(call: Call) -> set[int]:
    """Sizes of the dimensions before the last of float tensors, and of all of others; one stays one."""
    tensors = [t for t in pytree.tree_leaves(call) if isinstance(t, torch.Tensor)]
    return {n for t in tensors for n in t.shape[: -1 if t.is_floating_point() else None] if n > 1}


def _resized(call: Call, sizes: frozenset[int], wide: bool) -> Call | None:
    """The call with these sizes larger; None if nothing changes.

    Args:
        wide: also where one is the last of a float tensor, as in a mask.
    """
    leaves, structure = pytree.tree_flatten(call)
    changed = [_larger(v, sizes, wide) if isinstance(v, torch.Tensor) else v for v in leaves]
    if all(new is old for new, old in zip(changed, leaves, strict=True)):
        return None
    again: Call = pytree.tree_unflatten(changed, structure)
    return again


def _larger(tensor: torch.Tensor, sizes: frozenset[int], wide: bool) -> torch.Tensor:
    last = tensor.dim() - 1
    for axis, size in enumerate(tensor.shape):
        if size in sizes and (wide or axis < last or not tensor.is_floating_point()):
            # What comes on top is like the first of it: ids and positions stay in their range.
            more = tensor.narrow(axis, 0, 1).repeat_interleave(_MORE, axis)
            tensor = torch.cat([tensor, more], axis)
    return tensor


def _runs(module: nn.Module, call: Call) -> bool:
    try:
        run(copy.deepcopy(module), call)
    except RUN_ERRORS:
        return False
    return True
