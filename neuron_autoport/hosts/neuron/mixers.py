"""Does anything but attention carry information from one token to another?

The runner keeps keys and values, nothing else. A convolution, a recurrence, or attention that does not go
through the interface would lose its state between steps. To find out, a small model of the same kind runs
with an attention that mixes nothing; if changing the first token still changes a later one, the module
that does it is named.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from neuron_autoport.hosts.neuron.probe import base_model, use_experts
from neuron_autoport.models.build import real_model
from neuron_autoport.models.source import ModelSource

NO_MIXING = "neuron_autoport_no_mixing"
_TOKENS = 12
_SAME = 1e-5


def foreign_mixers(small: ModelSource) -> list[str]:
    """`path (Class)` of the innermost modules that mix tokens without the attention interface.

    Args:
        small: a small model, see `models.tiny`.
    """
    model = real_model(small, dtype=torch.float32, attn_implementation=NO_MIXING)
    use_experts(model)
    base = base_model(model)
    vocabulary = int(small.text_config.vocab_size)
    ids = torch.tensor([[(3 + 7 * i) % (vocabulary - 3) + 1 for i in range(_TOKENS)]])
    other = ids.clone()
    other[0, 0] = (ids[0, 0] + 5) % (vocabulary - 3) + 1
    first, second = _run(base, ids), _run(base, other)
    found = []
    for path, module in base.named_modules():
        before, after = first.get(path), second.get(path)
        if before is None or after is None:
            continue
        if _same(before[0], after[0]) and not _same(before[1], after[1]):
            found.append((path, type(module).__name__))
    # The base model itself always differs in its input, so it is found by its output alone.
    innermost = [(p, n) for p, n in found if not any(q.startswith(f"{p}.") for q, _ in found if p)]
    return [f"{path} ({name})" for path, name in innermost if path]


def _run(base: nn.Module, ids: torch.Tensor) -> dict[str, tuple[list[Any], list[Any]]]:
    """Inputs and outputs of every module's first call, by path."""
    seen: dict[str, tuple[list[Any], list[Any]]] = {}
    handles = []
    for path, module in base.named_modules():

        def note(_: Any, args: Any, kwargs: Any, out: Any, path: str = path) -> None:
            if path not in seen:
                seen[path] = (_later((args, kwargs)), _later(out))

        handles.append(module.register_forward_hook(note, with_kwargs=True))
    try:
        with torch.no_grad():
            base(input_ids=ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _later(values: Any) -> list[torch.Tensor]:
    """All tensors that have a token axis, from the second token on."""
    found = []
    for value in pytree.tree_leaves(values):
        if isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[1] == _TOKENS:
            found.append(value[:, 1:].detach().clone())
        elif isinstance(value, torch.Tensor) and value.shape[:1] == (_TOKENS,):
            found.append(value[1:].detach().clone())
    return found


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        bool(
            torch.allclose(a.float(), b.float(), rtol=_SAME, atol=_SAME * float(a.abs().max() + 1))
        )
        for a, b in zip(one, other, strict=True)
    )


def _no_mixing(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, None]:
    """Each token's own value, for every query head of its group."""
    groups = query.shape[1] // value.shape[1]
    return value.repeat_interleave(groups, 1).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(NO_MIXING, _no_mixing)
