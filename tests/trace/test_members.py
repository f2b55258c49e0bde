"""What is below a module is found in one pass, by the names that torch gives it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from neuron_autoport.trace.members import Names, module_at, modules_in


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
    names = Names(module)
    assert names.paths == {id(m): name for name, m in module.named_modules()}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        assert names.state_of(tensor) == name
    assert names.state_of(module.head.weight) == "first.0.weight"
    assert names.state_of(torch.ones(1)) is None and names.path_of(nn.ReLU()) is None
    assert not names.tree


class Tied(nn.Module):
    """A weight of the head that the base has, too."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.head = nn.Linear(2, 2)
        self.head.weight = self.base[0].weight


@pytest.mark.parametrize("path", ["base", "base.0", "head"])
def test_names_below_a_module_are_those_of_a_look_at_it_alone(path: str) -> None:
    module = Tied()
    names, inner = Names(module), module.get_submodule(path)
    alone = Names(inner)
    assert names.tree
    states = [*module.parameters(), *module.buffers()]
    assert [names.state_of(t, f"{path}.") for t in states] == [alone.state_of(t) for t in states]
    for other in module.modules():
        if other is not inner:
            assert names.path_of(other, f"{path}.") == alone.path_of(other)


def test_names_are_old_once_one_of_the_modules_registers_something() -> None:
    module = Tied()
    for change in (
        lambda: module.base[0].register_buffer("scale", torch.ones(1)),
        lambda: setattr(module.head, "weight", nn.Parameter(torch.ones(2, 2))),
        lambda: module.base.append(nn.ReLU()),
    ):
        names = Names(module)
        with names.watched():
            module.base[:1].append(nn.ReLU())  # a list of its own
            assert names.current
            change()
        assert not names.current
    names = Names(module)
    module.head.register_buffer("late", torch.ones(1))  # nobody watches any more
    assert names.current


def test_a_module_by_its_path() -> None:
    module = Shared()
    assert module_at(module, "first.0") is module.get_submodule("first.0")
    assert module_at(module, "head") is module.head
    assert module_at(module, "first.2") is None and module_at(module, "head.first") is None
