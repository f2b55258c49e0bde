"""What is below a module is found in one pass, by the names that torch gives it."""

from __future__ import annotations

import torch
from torch import nn

from neuron_autoport.trace.members import module_at, modules_in, names_below


class Shared(nn.Module):
    """One block in two places, a tied weight, a child that is not there, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.second = nn.ModuleDict({"again": self.first[0], "norm": nn.BatchNorm1d(2)})
        self.nothing = None
        self.head = nn.Linear(2, 2, bias=False)
        self.head.weight = self.first[0].weight
        self.register_buffer("scale", torch.ones(1))
        self.register_module("absent", None)


def test_modules_are_those_of_torch_in_its_order() -> None:
    module = Shared()
    assert modules_in(module) == list(module.named_modules())
    assert [path for path, _ in modules_in(module)].count("second.again") == 0


def test_names_are_the_first_that_torch_gives() -> None:
    module = Shared()
    paths, states = names_below(module)
    assert paths == {id(m): name for name, m in module.named_modules() if name}
    named = [*module.named_parameters(), *module.named_buffers()]
    assert states == {id(tensor): name for name, tensor in named}
    assert states[id(module.head.weight)] == "first.0.weight"


def test_a_module_by_its_path() -> None:
    module = Shared()
    assert module_at(module, "first.0") is module.get_submodule("first.0")
    assert module_at(module, "head") is module.head
