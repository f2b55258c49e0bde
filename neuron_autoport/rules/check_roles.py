"""Roles between the rules of a library: every role that a rule asks for exists, and none in a circle."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from ruamel.yaml import YAML

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.check import near
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
    try:
        TopologicalSorter(asks).prepare()
    except CycleError as error:
        circle = error.args[1][::-1]  # each asks for the next
        path = " → ".join(circle)
        what = f"roles ask for each other: {path}"
        raise RuleError(what, _place(*asks[circle[0]][circle[1]]), "autoport rules list") from None


def _place(rule: Rule, name: str) -> str:
    """Where the rule file says what `name` is."""
    data = YAML(typ="rt").load(rule.text)
    box = data["where"]
    key = next(k for k in box if name in [n.strip() for n in str(k).split(",")])
    return Places(rule.path, rule.text).of_value(box, key)
