"""What the rule of a captured module passes to its function: `norm.eps`, `norm.weight`, or all with `**norm`."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from neuron_autoport.rules.check import member
from neuron_autoport.rules.match import RoleRef
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.ops import Op


class NotPlain(Exception):
    """The rule's replacement is more than one call of plain captures."""


def given(ref: RoleRef) -> dict[str, Any]:
    """Arguments by parameter name, without the module's input: parameters as their `Op`, and constants.

    Raises:
        NotPlain: an argument is computed in the call.
    """
    call = ref.rule.replace.value
    signature = signature_of(ref.rule)
    if signature is None or not isinstance(call, ast.Call):
        raise NotPlain(f"`{ref.rule.name}` is not one call")
    named = {k.arg: k.value for k in call.keywords if k.arg is not None}
    found: dict[str, Any] = {}
    for name, code in signature.bind(*call.args, **named).arguments.items():
        value = ref.match.values.get(code.id) if isinstance(code, ast.Name) else None
        if isinstance(code, ast.Constant):
            value = code.value
        elif not isinstance(code, ast.Name) or not _is_plain(ref, code.id):
            raise NotPlain(f"`{name}` of `{ref.rule.name}` has no text here")
        if not isinstance(value, Op) or value.name == "param":
            found[name] = value
    return found


def passed(ref: RoleRef) -> dict[str, Any]:
    """As `given`, with the defaults of the function for all that the call leaves out.

    Raises:
        NotPlain: as `given`.
    """
    found = given(ref)
    signature = signature_of(ref.rule)
    assert signature is not None  # else there were no arguments
    parameters = signature.parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return {**defaults, **found}


def _is_plain(ref: RoleRef, name: str) -> bool:
    """Is a captured name a value, a number or nothing? A chosen operation stands for a text of its own."""
    return name in ref.match.values and name not in ref.rule.choices


def signature_of(rule: Rule) -> inspect.Signature | None:
    """Of the function that the replacement calls; None if it is not one call of NF or NK."""
    call = rule.replace.value
    target = call.func if isinstance(call, ast.Call) else None
    if not isinstance(target, ast.Attribute) or not isinstance(target.value, ast.Name):
        return None
    function = member(target.value.id, target.attr) if target.value.id in ("NF", "NK") else None
    return inspect.signature(function) if function is not None else None
