"""Which tensors a call writes: told by torch's count of writes, whatever the call is named."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

_PLAIN = (bool, int, float, str, type(None), torch.dtype)


def tensors_in(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """All tensors among the arguments, nested ones too, in a fixed order."""
    found: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif not isinstance(value, _PLAIN):
            found += [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
    return found


def versions_of(args: Any, kwargs: Any) -> list[tuple[torch.Tensor, int]]:
    """Every tensor among the arguments with the count of writes to its data so far."""
    with torch._C.DisableTorchFunction():
        return [(t, t._version) for t in tensors_in(args, kwargs)]


def changed_since(versions: list[tuple[torch.Tensor, int]]) -> list[torch.Tensor]:
    """The tensors written since, each once."""
    with torch._C.DisableTorchFunction():
        changed = {id(t): t for t, version in versions if t._version != version}
    return list(changed.values())


def has_tensor(value: Any) -> bool:
    """Is it a tensor, or a list or tuple with one?"""
    if isinstance(value, list | tuple):
        return any(has_tensor(v) for v in value)
    return isinstance(value, torch.Tensor)
