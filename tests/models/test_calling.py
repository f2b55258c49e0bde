"""Token ids go where forward takes them, and options only to those that know them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from neuron_autoport.models.calling import call_of

IDS = torch.zeros(2, 7, dtype=torch.long)


class ByName(nn.Module):
    def forward(self, input_ids: Any, flag: Any = None) -> Any: ...


class Usual(nn.Module):
    def forward(self, input_ids: Any = None, **kwargs: Any) -> Any: ...


class OtherName(nn.Module):
    def forward(self, idx: Any, targets: Any = None) -> Any: ...


class OtherNameAndMore(nn.Module):
    def forward(self, idx: Any, *, use_cache: bool = True) -> Any: ...


class Anything(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any: ...


@pytest.mark.parametrize(
    ("cls", "positional", "named"),
    [
        (ByName, 0, ["input_ids"]),
        (Usual, 0, ["input_ids", "use_cache"]),
        (OtherName, 1, []),
        (OtherNameAndMore, 1, ["use_cache"]),
        (Anything, 0, ["input_ids", "use_cache"]),
    ],
)
def test_call(cls: type[nn.Module], positional: int, named: list[str]) -> None:
    args, kwargs = call_of(cls(), {"input_ids": IDS, "use_cache": False})
    assert (len(args), sorted(kwargs)) == (positional, named)
    assert next(iter([*args, kwargs.get("input_ids")])) is IDS
