"""What is known of one class that is exported: its source, its modules, its plan, how ranks share it."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import libcst as cst
from torch import nn
from transformers import PreTrainedModel

from neuron_autoport.export.record import PLAIN, VARYING
from neuron_autoport.export.subject import ExportError, Subject
from neuron_autoport.hosts.neuron.attention_form import AttentionForm, NotThis, read_attention_form
from neuron_autoport.hosts.neuron.share_experts import is_experts
from neuron_autoport.hosts.neuron.sharing import why_whole
from neuron_autoport.rewrite.plan import ClassPlan


def is_modeling(cls: type) -> bool:
    """Is a class of the model's own source: neither torch's nor a general one of transformers?"""
    module = cls.__module__
    general = module.startswith("transformers.") and not module.startswith("transformers.models.")
    return issubclass(cls, nn.Module) and not general and not module.startswith("torch.")


class ClassFacts:
    """One class of a subject.

    modules: instances that stay in the exported model. calls: how it is called. plan: whose rewritten
    source it gets. methods: its own, as upstream has them. order: where upstream has the class.
    """

    def __init__(self, subject: Subject, cls: type[nn.Module], modules: list[Any]) -> None:
        self.subject, self.cls, self.modules = subject, cls, modules
        self.name = cls.__name__
        self.calls = subject.recorded.calls.get(cls)
        self.plan = subject.plan(cls)
        self.space = vars(inspect.getmodule(cls))
        try:
            lines, first = inspect.getsourcelines(cls)
        except (OSError, TypeError) as error:
            raise ExportError(f"there is no source of {cls.__name__}", cls.__name__) from error
        tree = cst.parse_module(textwrap.dedent("".join(lines)))
        found = tree.body[0]
        if not isinstance(found, cst.ClassDef):
            raise ExportError(f"the source of {cls.__name__} is no class", cls.__name__)
        self.source, self.order = found, (cls.__module__, first)
        if cls.__module__.startswith("torch."):
            self.order = ("", 0)  # before all that is made with it
        self.methods = {s.name.value: s for s in found.body.body if isinstance(s, cst.FunctionDef)}
        self.is_experts = bool(self.modules) and is_experts(self.modules[0])
        self.shared = self.name not in self.subject.without.sharing and (
            self.is_experts or (self.plan is not None and why_whole(self.plan, 1) is None)
        )

    def names(self) -> dict[str, Any]:
        """What names mean in the class: its module's globals, and the rewritten forward's."""
        more = self.plan.trace.forward.__globals__ if self.plan is not None else {}
        return {**more, **self.space}

    def logs(self) -> set[str]:
        """Loggers, and what every model of transformers has to warn with."""
        loggers = {n for n, v in self.space.items() if type(v).__module__ == "logging"}
        return loggers | {f"self.{n}" for n in vars(PreTrainedModel) if n.startswith("warn")}

    def fused_forms(self) -> dict[str, AttentionForm]:
        """How the class goes to fused calls, by the condition of the layers it is for.

        The condition is empty where all layers go the same way.
        """
        if self.plan is None or self.cls.__name__ in self.subject.without.attention:
            return {}
        layers = {f"{self.subject.prefix}.{f.path}" for f in self.subject.layers}
        found: dict[ClassPlan, AttentionForm] = {}
        where = self.subject.ported.port.where
        plans = self.subject.plans(self.cls)
        for plan in plans:
            paths = [p for p, used in where.items() if used is plan and p in layers]
            if not paths:
                continue
            try:
                found[plan] = read_attention_form(plan, _children(where, paths[0]))
            except NotThis:
                continue
        forms = list(found.values())
        if len(found) == len(plans) and all(form == forms[0] for form in forms):
            return {"": forms[0]} if forms else {}
        return {_condition(plan, plans, self.cls.__name__): form for plan, form in found.items()}


def _children(where: dict[str, ClassPlan], path: str) -> Callable[[str], ClassPlan | None]:
    """Plans of the children of a module, by their names."""
    return lambda child: where.get(f"{path}.{child}")


def _condition(plan: ClassPlan, plans: list[ClassPlan], name: str) -> str:
    """A condition on attributes of self that holds for one plan's modules only.

    Raises:
        ExportError: no attribute that the forward reads tells them apart.
    """
    others = [p for p in plans if p is not plan]
    for attribute, value in sorted(plan.trace.reads.items()):
        if "." in attribute:  # of a child, which may be another in the exported class
            continue
        values = [p.trace.reads.get(attribute, VARYING) for p in others]
        if not isinstance(value, PLAIN) or any(not isinstance(v, PLAIN) for v in values):
            continue
        if all((v is None) != (value is None) for v in values):
            return f"self.{attribute} is {'' if value is None else 'not '}None"
        if all(bool(v) != bool(value) for v in values):
            return f"self.{attribute}" if value else f"not self.{attribute}"
    raise ExportError(
        f"layers of {name} are fused in different ways, and nothing tells them apart", name
    )
