"""Where the rules that come with this package are, and which ones these are."""

from __future__ import annotations

from pathlib import Path

from neuron_autoport.rules.rule import Rule


def builtin_folder() -> Path:
    """`patterns/` inside the installed package, or beside it in a source checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "patterns"
    return inside if inside.is_dir() else package.parent / "patterns"


def is_builtin(rule: Rule) -> bool:
    """Does the rule come with this package?"""
    return rule.path.resolve().is_relative_to(builtin_folder().resolve())
