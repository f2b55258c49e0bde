"""Small models that keep what they know of earlier tokens in ways of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.utils import ModelOutput

TABLE = torch.arange(1.0, 41.0).view(20, 2) % 7
ASKED = [
    torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9]]),
    torch.tensor([[2, 7, 1, 8, 2, 8, 1, 8, 2]]),
]


@dataclass
class Out(ModelOutput):
    last_hidden_state: Any = None
    state: Any = None


class Sums(nn.Module):
    """Row t is the sum of the embeddings up to t; the state is the last row."""

    def forward(
        self, input_ids: Any, state: Any = None, use_cache: bool = False, return_dict: bool = True
    ) -> Any:
        rows = TABLE[input_ids].cumsum(1) + (0 if state is None else state)
        return Out(rows, rows[:, -1:] if use_cache else None)


class GoesOnByOne(Sums):
    """After its first piece it takes one token at a time, as many scans do."""

    def forward(self, input_ids: Any, state: Any = None, **kwargs: Any) -> Any:
        if state is None or input_ids.shape[1] == 1:
            return super().forward(input_ids, state, **kwargs)
        out = super().forward(input_ids, state, **kwargs)
        return Out(out.last_hidden_state, TABLE[input_ids[:, -1:]] + state)


class HoldsItself(Sums):
    """The state is the module's: of whichever request came last."""

    held: Any = None

    def forward(self, input_ids: Any, use_cache: bool = False, return_dict: bool = True) -> Any:
        fresh = not use_cache or input_ids.shape[1] > 3
        out = super().forward(input_ids, None if fresh else self.held, use_cache=True)
        self.held = out.state
        return Out(out.last_hidden_state)


class LooksAhead(nn.Module):
    """Every row is the sum of all tokens, so an earlier row changes when a token comes."""

    def forward(self, input_ids: Any, use_cache: bool = False, return_dict: bool = True) -> Any:
        rows = TABLE[input_ids]
        return Out(rows.sum(1, keepdim=True) + 0 * rows)


class ByChance(Sums):
    def forward(self, input_ids: Any, **kwargs: Any) -> Any:
        out = super().forward(input_ids, **kwargs)
        return Out(out.last_hidden_state * torch.rand(()), out.state)


class BySeed(Sums):
    """Random numbers, but the same at every run."""

    def forward(self, input_ids: Any, **kwargs: Any) -> Any:
        out = super().forward(input_ids, **kwargs)
        torch.manual_seed(5)
        return Out(out.last_hidden_state * torch.rand(()), out.state)


class RemembersTheFirst(Sums):
    """The length of the first request it is given is a factor of all."""

    factor: Any = None

    def forward(self, input_ids: Any, use_cache: bool = False, return_dict: bool = True) -> Any:
        self.factor = self.factor or input_ids.shape[1]
        return Out(super().forward(input_ids).last_hidden_state * self.factor)


class CountsRuns(Sums):
    runs = 0

    def forward(self, input_ids: Any, use_cache: bool = False, return_dict: bool = True) -> Any:
        self.runs += 1
        return Out(super().forward(input_ids).last_hidden_state * self.runs)


class Fails(nn.Module):
    def forward(self, input_ids: Any, use_cache: bool = False, return_dict: bool = True) -> Any:
        raise ValueError("no ids of this kind\nat all")


class Halves(Sums):
    """Its weight is one half of what was loaded, from the first run on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([4.0, 4.0]), requires_grad=False)
        self.buffer = torch.zeros(2)
        self.ready = False

    def halve(self) -> None:
        self.weight.div_(2)

    def forward(self, input_ids: Any, state: Any = None, **kwargs: Any) -> Any:
        if not self.ready:
            self.halve()
        self.ready = True
        out = super().forward(input_ids, state, **kwargs)
        return Out(out.last_hidden_state * self.weight[0] / 2, out.state)


class HalvesData(Halves):
    def halve(self) -> None:
        self.weight.data.mul_(0.5)


class HalvesARow(Halves):
    def halve(self) -> None:
        self.weight[:1] *= 0.5


class HalvesInto(Halves):
    def halve(self) -> None:
        torch.mul(self.weight, 0.5, out=self.weight)


class HalvesACopy(Halves):
    """Not the weight itself: nothing is changed that was loaded."""

    def halve(self) -> None:
        self.buffer.add_(1)
        self.weight.clone().div_(2)
        torch.div(self.weight, 2)
