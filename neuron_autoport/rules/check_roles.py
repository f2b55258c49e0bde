"""Roles between the rules of a library: each that a rule asks for exists, passes what is asked of it, in no circle."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

from ruamel.yaml import YAML

from neuron_autoport.errors import RuleError
from neuron_autoport.nearest import near
from neuron_autoport.rules.builtin import is_builtin
from neuron_autoport.rules.passed import signature_of
from neuron_autoport.rules.places import Places
from neuron_autoport.rules.rule import KINDS, Rule

Fault = tuple[str, str]  # place and message


def lacking(rules: Iterable[Rule]) -> set[str]:
    """Roles that these rules ask for, and none of them gives."""
    rules = tuple(rules)
    asked = {role for rule in rules for role in rule.roles.values()}
    return asked - {rule.role for rule in rules if not rule.refuse}


def check_roles(rules: Iterable[Rule], elsewhere: str | None = None) -> None:
    """Check the roles that rules ask for.

    Args:
        elsewhere: what to do next for a role that no rule gives, where rules may lie that are not looked at.

    Raises:
        RuleError: roles that no rule gives, rules whose roles ask for each other, arguments that the rule of a
            role does not pass; all of them, with their places.
    """
    rules = tuple(rules)
    circles, circular = _circles(rules)
    missing = list(_not_given(rules, circular))
    faults = [*missing, *circles, *_not_passed(rules)]
    if not faults:
        return
    faults.sort(key=_in_order)
    step = elsewhere if missing and elsewhere else "autoport rules list"
    if len(faults) == 1:
        raise RuleError(faults[0][1], faults[0][0], step)
    told = "\n".join(f"{place}: {what}" for place, what in faults)
    raise RuleError(f"rule files have {len(faults)} faults:\n{told}", None, step)


def _not_given(rules: tuple[Rule, ...], circular: set[str]) -> Iterator[Fault]:
    """Roles that no rule gives; those in a circle are told as that."""
    given = {rule.role for rule in rules if not rule.refuse}
    refused = {rule.role: rule.name for rule in rules if rule.refuse}
    for rule in rules:
        for name, role in rule.roles.items():
            if role in given or role in circular:
                continue
            what = f"`{name}` has unknown kind `{role}`: no rule has this role"
            if role in refused:
                what = f"`{name}` can never be a `{role}`: `{refused[role]}`, which has this role, refuses"
            hint = "" if role in refused else near(role, [*given, *KINDS])
            yield _place(rule, name), what + hint


def _circles(rules: tuple[Rule, ...]) -> tuple[list[Fault], set[str]]:
    """Every circle of roles, each told once; and the roles in them."""
    asks: dict[str, dict[str, tuple[Rule, str]]] = {}
    for rule in rules:
        for name, role in rule.roles.items():
            asks.setdefault(rule.role, {})[role] = (rule, name)
    faults: list[Fault] = []
    circular: set[str] = set()
    while True:
        try:
            TopologicalSorter(asks).prepare()
        except CycleError as error:
            circle = error.args[1][::-1]  # each asks for the next
            rule, name = asks[circle[0]].pop(circle[1])  # what is left may have another
            faults.append((_place(rule, name), f"roles ask for each other: {' → '.join(circle)}"))
            circular |= set(circle)
        else:
            return faults, circular


def _not_passed(rules: tuple[Rule, ...]) -> Iterator[Fault]:
    """Every `norm.name` of a replacement is a parameter of what each rule with that role calls.

    Of a built-in rule beside a user's of that role it need not be: then their modules are not for it (AP207).
    """
    for rule in rules:
        for name, attribute in sorted(_named(rule)):
            for other in (r for r in rules if r.role == rule.roles[name] and not r.refuse):
                if is_builtin(rule) and not is_builtin(other):
                    continue
                signature = signature_of(other)
                known = set(signature.parameters) if signature is not None else set[str]()
                if attribute not in known:
                    what = (
                        f"`{name}.{attribute}`: {other.call} of {other.name} takes no such argument"
                    )
                    yield _place(rule, name), what + near(attribute, known)
                    break  # the others of this role most often lack it, too


def _named(rule: Rule) -> set[tuple[str, str]]:
    """The arguments of captured modules with a role that the replacement names, as (module, argument)."""
    trees = [rule.replace.value, *([rule.decode] if rule.decode is not None else [])]
    return {
        (node.value.id, node.attr)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id in rule.roles
    }


def _in_order(fault: Fault) -> tuple[str, int, int]:
    """The file, line and column of a fault."""
    path, line, column = fault[0].rsplit(":", 2)
    return path, int(line), int(column)


def _place(rule: Rule, name: str) -> str:
    """Where the rule file says what `name` is."""
    data = YAML(typ="rt").load(rule.text)
    box = data["where"]
    key = next(k for k in box if name in [n.strip() for n in str(k).split(",")])
    return Places(rule.path, rule.text).of_value(box, key)
