"""The NK calls of a planned site: the kernel each goes to on Neuron, and the limits it would break there."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuron_autoport import kernels
from neuron_autoport.kernels.limits import KERNELS, Broken, Kernel
from neuron_autoport.rewrite.site import Site
from neuron_autoport.rules.conditions import facts_of
from neuron_autoport.rules.match import Match, RoleRef
from neuron_autoport.rules.rule import Rule


@dataclass(frozen=True)
class KernelCall:
    """One NK call of a site. broken: its limits that do not hold for the traced values."""

    kernel: Kernel
    broken: tuple[Broken, ...]

    @property
    def runs(self) -> str:
        """What a plan says of it: `kernel: neuron_autoport.rms_norm`, or `torch: ` and why."""
        if self.broken:
            return f"torch: {self.broken[0]}"
        return f"kernel: {self.kernel.title}"


def kernel_calls(site: Site, phase: str = "prefill") -> tuple[KernelCall, ...]:
    """The NK calls of a site's replacement, equal ones once.

    Args:
        phase: prefill or decode: a rule may have a replacement for decode alone.
    """
    decode = site.rule.decode if phase == "decode" else None
    text = site.rule.replace.value if decode is None else decode
    found = [
        KernelCall(KERNELS[name], KERNELS[name].broken(_arguments(node, name, site.match)))
        for node in ast.walk(text)
        if (name := _nk_name(node))
    ]
    return tuple(dict.fromkeys(found))


def arguments(site: Site, name: str) -> dict[str, Any]:
    """Arguments of the site's call of NK.`name`, by parameter name, as `Kernel.broken` takes them.

    Facts of captured values and plain constants; what is computed in the call is left out. Of several
    calls the last one counts.
    """
    found: dict[str, Any] = {}
    for node in ast.walk(site.rule.replace.value):
        if _nk_name(node) == name:
            found |= _arguments(node, name, site.match)
    return found


def _nk_name(node: ast.AST) -> str:
    """The function's name if the node calls NK, else nothing."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    space = node.func.value
    return node.func.attr if isinstance(space, ast.Name) and space.id == "NK" else ""


def _arguments(call: ast.AST, name: str, match: Match) -> dict[str, Any]:
    assert isinstance(call, ast.Call)
    parameters = list(inspect.signature(getattr(kernels, name)).parameters)
    pairs = [*zip(parameters, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
    facts = facts_of(match)
    found: dict[str, Any] = {}
    for parameter, given in pairs:
        if parameter is None:  # **norm: what the norm's own rule passes, but for its input
            role = match.values.get(given.id) if isinstance(given, ast.Name) else None
            found = (_of_role(role.rule, role.match) if isinstance(role, RoleRef) else {}) | found
        elif (value := _value(given, facts)) is not None:
            found[parameter] = value
    return found


def _of_role(rule: Rule, match: Match) -> dict[str, Any]:
    call = rule.replace.value
    name = _nk_name(call)
    return _arguments(call, name, match) if name else {}


def _value(given: ast.expr, facts: Mapping[str, Any]) -> Any:
    if isinstance(given, ast.Constant):
        return given.value
    name, attribute = (given.value, given.attr) if isinstance(given, ast.Attribute) else (given, "")
    fact = facts.get(name.id) if isinstance(name, ast.Name) else None
    fact = getattr(fact, attribute, None) if attribute else fact  # norm.weight
    return None if getattr(fact, "dtype", "") == "None" else fact  # a value that was not traced
