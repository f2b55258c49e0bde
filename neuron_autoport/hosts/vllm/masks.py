"""What the mask of an attention call shows: read from the rule it was made by, at positions far out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_NEAR = (0, 1, 2, 3, 4, 5, 6, 7, 11, 63, 64, 127, 128, 129, 511, 512, 1023, 1024, 4095, 4096, 4097)
_FAR = (8191, 8192, 16384, 32768, 40000, 131072, 262144)


@dataclass(frozen=True)
class Mask:
    """What one attention call of the small model may see.

    key: class and kind of the layer. window: visible positions of a query, itself included; None for all.
    given: the window handed to the attention call. problem: why the mask is neither, or None.
    chunk: a query sees its own of the pieces of so many tokens that a sequence is cut into; None for no pieces.
    """

    key: tuple[str, str | None]
    window: int | None
    given: int | None
    problem: str | None
    chunk: int | None = None


def layer_key(module: nn.Module, config: Any) -> tuple[str, str | None]:
    """Class of an attention module, and the kind that the configuration gives its layer."""
    kinds, index = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    kind = kinds[index] if kinds and isinstance(index, int) and index < len(kinds) else None
    return type(module).__name__, kind


def window_of(rule: Callable[..., Any]) -> tuple[int | None, str | None]:
    """(window, None) of the rule of a mask, (None, why not) if it is not causal with one window."""
    starts, problem = _starts(rule)
    if problem is not None:
        return None, problem
    window = next((query + 1 - start for query, start in starts.items() if start > 0), None)
    if any(start != max(0, query + 1 - (window or query + 1)) for query, start in starts.items()):
        return None, "a mask in chunks, or with a window that changes"
    return window, None


def chunk_of(rule: Callable[..., Any]) -> int | None:
    """The size of the chunks of a causal mask in chunks; None if it is no such mask."""
    starts, problem = _starts(rule)
    chunk = next((start for start in starts.values() if start > 0), None)
    if problem is not None or chunk is None:
        return None
    even = all(start == query // chunk * chunk for query, start in starts.items())
    return chunk if even else None


def _starts(rule: Callable[..., Any]) -> tuple[dict[int, int], str | None]:
    """The first key that each of some queries sees, all from there to itself; or why it is not so."""
    starts: dict[int, int] = {}
    zero = torch.zeros((), dtype=torch.long)
    for query in (*_NEAR, *_FAR):
        key = torch.arange(query + 2)
        try:
            shown = rule(zero, zero, torch.tensor(query), key)
        except (RuntimeError, TypeError, IndexError) as error:
            what = f"a mask that depends on the sequence ({str(error).splitlines()[0]})"
            return starts, what
        visible = torch.nonzero(torch.as_tensor(shown).expand(key.shape)).flatten()
        starts[query] = start = int(visible[0]) if len(visible) else query + 1
        if len(visible) != query + 1 - start or (len(visible) and int(visible[-1]) != query):
            return starts, "a mask that is not causal"
    return starts, None


def unlike(masks: Iterable[Mask]) -> dict[tuple[str, str | None], Mask]:
    """One mask per kind of layer; kinds whose layers differ get a problem."""
    found: dict[tuple[str, str | None], Mask] = {}
    for mask in masks:
        known = found.setdefault(mask.key, mask)
        if mask.problem is not None:
            found[mask.key] = mask
        elif known != mask and known.problem is None:
            problem = "masks that differ between layers of one kind"
            found[mask.key] = Mask(mask.key, None, None, problem)
    return found
