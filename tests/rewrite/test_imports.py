"""An import statement where one can name the module; its name as a string where none can."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from transformers.models.llama import modeling_llama

from neuron_autoport.hosts.vllm.written_out.classes import make_class
from neuron_autoport.hosts.vllm.written_out.region import Rewritten
from neuron_autoport.rewrite.imports import by_name, ordinary
from tests.helpers import zoo_class

NO_STATEMENT = (
    "transformers_modules.own.1781622f1862f4e6.modeling_my",
    "transformers_modules.own.f1862f4e61781622.modeling_my",
    "package_that_is_not_there.module",
    "some-file",
    "class",
)


@pytest.mark.parametrize("name", NO_STATEMENT)
def test_no_statement_names_these(name: str) -> None:
    assert not ordinary(name)


def test_ordinary_modules_are_imported() -> None:
    assert ordinary(modeling_llama.__name__) and ordinary("torch")


@pytest.mark.parametrize("name", NO_STATEMENT)
def test_a_module_is_found_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(name)
    module.__dict__.update(a=1, b=2)
    monkeypatch.setitem(sys.modules, name, module)
    space: dict[str, object] = {}
    exec("from importlib import import_module\n" + "\n".join(by_name(name, "up", "ba")), space)
    assert (space["up"], space["a"], space["b"]) == (module, 1, 2)


def test_a_class_beside_an_original_of_such_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's workers get at the original of an attention written out in the same way."""
    name = NO_STATEMENT[0]
    original = zoo_class("class Twice(nn.Module):\n    def forward(self, x):\n        return x\n")
    monkeypatch.setattr(original, "__module__", name)
    module = ModuleType(name)
    module.__dict__.update(Twice=original, half=0.5)
    monkeypatch.setitem(sys.modules, name, module)
    text = "class Twice:\n    def forward(self, x):\n        return x * half\n"
    made = make_class(original, Rewritten("forward", text, vars(module)))
    assert issubclass(made, original) and made.forward(None, 4) == 2.0
