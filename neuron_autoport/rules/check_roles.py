"""Roles between the rules of a library: each that a rule asks for exists, passes what is asked of it, in no circle."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from ruamel.yaml import YAML

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.builtin import is_builtin
from neuron_autoport.rules.check import near
from neuron_autoport.rules.passed import signature_of
from neuron_autoport.rules.places import Places
from neuron_autoport.rules.rule import KINDS, Rule


def check_roles(rules: Iterable[Rule]) -> None:
    """Check the roles that rules ask for.

    Raises:
        RuleError: a role that no rule gives, or rules whose roles ask for each other; with the place.
    """
    rules = tuple(rules)
    given = {rule.role for rule in rules if not rule.refuse}
    asks: dict[str, dict[str, tuple[Rule, str]]] = {}
    for rule in rules:
        for name, role in rule.roles.items():
            if role not in given:
                hint = near(role, [*given, *KINDS])
                what = f"`{name}` has unknown kind `{role}`: no rule has this role{hint}"
                raise RuleError(what, _place(rule, name), "autoport rules list")
            asks.setdefault(rule.role, {})[role] = (rule, name)
    _check_passed(rules)
    try:
        TopologicalSorter(asks).prepare()
    except CycleError as error:
        circle = error.args[1][::-1]  # each asks for the next
        path = " → ".join(circle)
        what = f"roles ask for each other: {path}"
        raise RuleError(what, _place(*asks[circle[0]][circle[1]]), "autoport rules list") from None


def _check_passed(rules: Iterable[Rule]) -> None:
    """Every `norm.name` of a replacement is a parameter of what each rule with that role calls.

    Of a built-in rule beside a user's of that role it need not be: then their modules are not for it (AP207).
    """
    for rule in rules:
        for name, attribute in _named(rule):
            for other in (r for r in rules if r.role == rule.roles[name] and not r.refuse):
                if is_builtin(rule) and not is_builtin(other):
                    continue
                signature = signature_of(other)
                known = set(signature.parameters) if signature is not None else set[str]()
                if attribute not in known:
                    what = (
                        f"`{name}.{attribute}`: {other.call} of {other.name} takes no such argument"
                    )
                    hint = near(attribute, known)
                    raise RuleError(what + hint, _place(rule, name), "autoport rules list")


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


def _place(rule: Rule, name: str) -> str:
    """Where the rule file says what `name` is."""
    data = YAML(typ="rt").load(rule.text)
    box = data["where"]
    key = next(k for k in box if name in [n.strip() for n in str(k).split(",")])
    return Places(rule.path, rule.text).of_value(box, key)
