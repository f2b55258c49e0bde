"""The source of every exported class, in an order in which it is known what the called ones keep."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from neuron_autoport.export.class_facts import ClassFacts, is_modeling
from neuron_autoport.export.expressions import Callee
from neuron_autoport.export.forward_text import ForwardText
from neuron_autoport.export.globals import Names
from neuron_autoport.export.init_text import InitText
from neuron_autoport.export.subject import ExportError, Subject, remaining
from neuron_autoport.export.syntax import own_names, tight
from neuron_autoport.export.tidy import clean_header

_SPACE = cst.EmptyLine(indent=False)


@dataclass
class Written:
    """One exported class. order: where its original stands."""

    name: str
    text: str
    order: tuple[str, int]


@dataclass
class Classes:
    """Writes classes, the ones they call first, so that it is known which arguments those keep."""

    subject: Subject
    names: Names
    types: frozenset[str]
    written: dict[type, Written] = field(default_factory=dict)
    callees: dict[type, Callee] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.modules = remaining(self.subject)
        self.bases = {b for cls in self.modules for b in cls.__mro__[1:]}  # what others derive from

        # A rewritten class of torch, such as LayerNorm, by the name upstream has for it.
        self.of_torch = {
            f"nn.{cls.__name__}": cls
            for cls in self.modules
            if cls.__module__.startswith("torch.nn") and self.subject.plans(cls)
        }

    def write_all(self) -> None:
        """All classes of the base model's modules, and those their source names."""
        for cls in self.of_torch.values():
            self.write(cls)
        for cls in self.modules:
            if is_modeling(cls):
                self.write(cls)
        while self.names.wanted:
            self.write(self.names.wanted.pop())

    def write(self, cls: type[nn.Module]) -> None:
        """One class, after the ones its modules are of."""
        if cls in self.written:
            return
        for module in self.modules.get(cls, []):
            for child in module.modules():
                if type(child) is not cls and is_modeling(type(child)) and child is not module:
                    self.write(type(child))
        self.written[cls] = _Writer(self, cls).write()


class _Writer:
    """Writes one class."""

    def __init__(self, classes: Classes, cls: type[nn.Module]) -> None:
        self.classes = classes
        self.facts = ClassFacts(classes.subject, cls, classes.modules.get(cls, []))

    def write(self) -> Written:
        facts = self.facts
        methods = self._methods()
        body: list[Any] = [*self._docstring(), *methods]
        if not methods:
            body.append(cst.SimpleStatementLine([cst.Pass()]))
        bases = self._bases()
        made = facts.source.with_changes(
            decorators=[],
            leading_lines=[],
            bases=[cst.Arg(cst.parse_expression(b)) for b in bases],
            keywords=[],
            body=facts.source.body.with_changes(body=body),
        )
        text = cst.Module([made]).code
        self.classes.names.need(text, facts.names(), facts.name)
        return Written(facts.name, text, facts.order)

    def _docstring(self) -> list[Any]:
        if self.facts.cls.__module__.startswith("torch."):
            return [cst.parse_statement(f'"""torch\'s `{self.facts.name}`, rewritten."""\n')]
        first = self.facts.source.body.body[0]
        small = first.body[0] if isinstance(first, cst.SimpleStatementLine) else None
        text = isinstance(small, cst.Expr) and isinstance(
            small.value, cst.SimpleString | cst.ConcatenatedString
        )
        return [first] if text else []

    def _bases(self) -> list[str]:
        cls, found = self.facts.cls, list[str]()
        own = cls.__module__.startswith("torch.")
        for base in (cls,) if own else cls.__bases__:
            if issubclass(base, PreTrainedModel):
                found.append("Backbone")
                self.classes.names.from_runtime.add("Backbone")
            elif base in (nn.Module, GradientCheckpointingLayer):
                found.append("nn.Module")
            elif base.__module__.startswith("torch.nn"):
                found.append(f"nn.{base.__name__}")
            elif is_modeling(base):
                self.classes.write(base)
                found.append(base.__name__)
        if "nn.Module" in found or any(f.startswith("nn.") for f in found):
            self.classes.names.imports.add("from torch import nn")
        if not found:
            raise ExportError(f"{self.facts.name} is no module of a known kind", self.facts.name)
        return found

    def _methods(self) -> list[cst.FunctionDef]:
        facts, made = self.facts, dict[str, cst.FunctionDef]()
        if facts.modules:
            forward = ForwardText(facts, self.classes.types, self.classes.callees)
            made["forward"] = forward.write()
            assert forward.callee is not None
            self.classes.callees[facts.cls] = forward.callee
            self.classes.names.from_runtime |= forward.used
        elif "forward" in facts.methods:
            made["forward"] = clean_header(facts.methods["forward"], self.classes.types)
        if facts.is_experts and (gate := self._method("_apply_gate")) is not None:
            made["_apply_gate"] = gate
        self._add_called(made)
        if not facts.cls.__module__.startswith("torch."):
            renamed = {name: cls.__name__ for name, cls in self.classes.of_torch.items()}
            is_base = facts.cls in self.classes.bases
            init = InitText(facts, self.classes.types, renamed, is_base)
            if (method := init.write(made.values())) is not None:
                made["__init__"] = method
            self.classes.names.from_runtime |= init.used
            self._add_called(made)
        places = {name: i for i, name in enumerate(facts.methods)}
        ordered = sorted(made, key=lambda n: (n != "__init__", places.get(n, len(places)), n))
        first = [_SPACE] if self._docstring() else []
        return [
            tight(made[n]).with_changes(leading_lines=[_SPACE] if i else first)
            for i, n in enumerate(ordered)
        ]

    def _add_called(self, made: dict[str, cst.FunctionDef]) -> None:
        """Add the methods that these call, and the ones those call."""
        while True:
            called = {n for m in made.values() for n in own_names(m)}
            more = {n: f for n in sorted(called - set(made)) if (f := self._method(n))}
            if not more:
                return
            made |= more

    def _method(self, name: str) -> cst.FunctionDef | None:
        """A method that the others call; the default gate of experts is transformers' own."""
        if name in self.facts.methods:
            return clean_header(self.facts.methods[name], self.classes.types)
        found = inspect.getattr_static(self.facts.cls, name, None)
        if not inspect.isfunction(found) or not self.facts.is_experts:
            return None
        tree = cst.parse_module(textwrap.dedent(inspect.getsource(found)))
        made = tree.body[0]
        assert isinstance(made, cst.FunctionDef)
        docless = made.with_changes(
            name=cst.Name(name),
            body=made.body.with_changes(body=made.body.body[1:])
            if made.get_docstring()
            else made.body,
        )
        return clean_header(docless, self.classes.types)
