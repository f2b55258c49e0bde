"""Which tensors a call writes: told by torch's count of writes, whatever the call is named."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


def tensors_in(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """All tensors among the arguments, nested ones too, in a fixed order."""
    return [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]


def versions_of(args: Any, kwargs: Any) -> list[tuple[torch.Tensor, int]]:
    """Every tensor among the arguments with the count of writes to its data so far."""
    with torch._C.DisableTorchFunction():
        return [(t, t._version) for t in tensors_in(args, kwargs)]


def changed_since(versions: list[tuple[torch.Tensor, int]]) -> list[torch.Tensor]:
    """The tensors written since, each once."""
    with torch._C.DisableTorchFunction():
        changed = {id(t): t for t, version in versions if t._version != version}
    return list(changed.values())
