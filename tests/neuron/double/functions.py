"""All functions of the double by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.neuron.double import (
    decode,
    decode_mask,
    flash,
    grouped,
    mlp,
    moe_blockwise,
    moe_route,
    moe_tkg,
    o_proj,
    qkv,
    quant,
    sampling,
    segmented,
    segmented_cp,
    small,
    swa,
)

SOURCES = (
    decode,
    decode_mask,
    flash,
    grouped,
    mlp,
    moe_blockwise,
    moe_route,
    moe_tkg,
    o_proj,
    quant,
    qkv,
    sampling,
    segmented,
    segmented_cp,
    small,
    swa,
)


def unread(name: str) -> Callable[..., Any]:
    """An exported function whose contract was not read: it refuses to be called."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"NF.{name} is not in the written contract")

    refuse.__name__ = name
    return refuse


def named(name: str) -> Callable[..., Any]:
    """The function of this name, with the contract's argument list.

    Raises:
        LookupError: the double lacks it.
    """
    for source in SOURCES:
        if name in vars(source):
            found: Callable[..., Any] = vars(source)[name]
            return found

    raise LookupError(f"the double has no NF.{name}")
