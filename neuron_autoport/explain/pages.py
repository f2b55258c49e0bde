"""Find and make the page of a word: a reason code, a rule, a function of NF or NK, or a word.

What the code says already is taken from there: meanings of codes, rule files, docstrings, the vocabulary of
operations.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from neuron_autoport.errors import AutoportError
from neuron_autoport.explain.codes import CODE_HELP, CodeHelp
from neuron_autoport.explain.words import CAPTURES, FIELDS, PATTERN, WORDS
from neuron_autoport.nearest import nearest
from neuron_autoport.rewrite.reasons import CODES
from neuron_autoport.rules import sources
from neuron_autoport.rules.builtin import builtin_folder, is_builtin
from neuron_autoport.rules.pattern import OPERATIONS
from neuron_autoport.rules.rule import Rule


@dataclass(frozen=True)
class Part:
    """One part of a page: a heading (or none), and text, list items or code."""

    heading: str
    text: str = ""
    items: tuple[str, ...] = ()
    code: str = ""
    language: str = "python"


@dataclass(frozen=True)
class Page:
    """word: what was asked for. kind: code, rule, function or word. title: in one line."""

    word: str
    kind: str
    title: str
    parts: tuple[Part, ...]


class UnknownWord(AutoportError):
    """There is no page on this word."""


def find_pages(word: str, rules: Iterable[Rule]) -> list[Page]:
    """All pages on a word: a rule may be called as a word of the language is.

    Raises:
        UnknownWord: there is none; with the nearest words.
    """
    rules = tuple(rules)
    made = [page for name, page in _every(rules) if name.lower() == word.strip("` ").lower()]
    if not made:
        raise _unknown(word, [name for name, _ in _every(rules)])
    return [make() for make in made]


def _every(rules: tuple[Rule, ...]) -> Iterator[tuple[str, Callable[[], Page]]]:
    """Each word that has a page, and what makes the page."""
    for code in CODES:
        yield code, partial(code_page, code)
    for rule in rules:
        yield rule.name, partial(rule_page, rule)
    for name, function in functions():
        yield name, partial(function_page, name, function)
    for name in word_texts():
        yield name, partial(word_page, name)
    for role in sorted({r.role for r in rules} - {r.name for r in rules}):
        yield role, partial(role_page, role, rules)


def _unknown(word: str, known: list[str]) -> UnknownWord:
    close = nearest(word, known, 3)
    hint = f"; did you mean {' or '.join(f'`{c}`' for c in close)}?" if close else ""
    step = f"autoport explain {close[0]}" if close else "autoport explain lists all words"
    return UnknownWord(f"there is no page on `{word}`{hint}", None, step)


def all_words(rules: Iterable[Rule]) -> dict[str, list[tuple[str, str]]]:
    """What can be explained, by kind: each word with one line on it."""
    rules = tuple(rules)
    words = [(name, _first(text)) for name, text in word_texts().items()]
    return {
        "codes": list(CODES.items()),
        "rules": [(rule.name, rule.summary) for rule in rules],
        "functions": [(name, _first(_doc(function))) for name, function in functions()],
        "words": words,
    }


def code_page(code: str) -> Page:
    """A reason code: meaning, why, an example, what to do next.

    Raises:
        UnknownWord: nothing is written on this code yet.
    """
    known = CODE_HELP.get(code)
    if known is None:
        raise UnknownWord(f"nothing is written on {code} yet: {CODES[code]}")
    return Page(code, "code", CODES[code], tuple(_code_parts(known)))


def _code_parts(known: CodeHelp) -> Iterator[Part]:
    yield Part("", known.about)
    if known.words:
        yield Part("Example", known.words)
    if known.source:
        yield Part("Example", code=known.source)
    if known.rule:
        yield Part("with this rule", code=known.rule, language="yaml")
    yield Part("What to do", items=known.next)


def rule_page(rule: Rule) -> Page:
    """A rule, from its file: what it matches, calls and asks for, where it comes from, an example."""
    fields = rule.text.partition("\nexamples:")[0].strip()
    example = rule.examples[0].source if rule.examples else ""
    parts = [
        Part("", f"It comes from {shown_path(rule)} ({sources.origin_of(rule)}), has the role "
             f"{rule.role} and calls {rule.call}."),
        Part("The file, without its examples", code=fields, language="yaml"),
    ]  # fmt: skip
    if rule.neuron:
        limits = tuple(text for text, _ in rule.neuron)
        parts.append(Part("Limits of the target: beyond them torch runs (AP401)", items=limits))
    if example:
        parts.append(Part("It fuses, for example", code=example))
    if rule.rejects:
        because = tuple(str(e.because) for e in rule.rejects)
        parts.append(Part("It leaves alone what looks like it", items=because))
    parts.append(
        Part("What to do", items=(f"its file with all examples: autoport rules show {rule.name}",))
    )
    return Page(rule.name, "rule", rule.summary, tuple(parts))


def shown_path(rule: Rule) -> Path:
    """A built-in rule's file from `patterns/` on: the same wherever the package lies."""
    if not is_builtin(rule):
        return rule.path
    return rule.path.resolve().relative_to(builtin_folder().resolve().parent)


def role_page(role: str, rules: Iterable[Rule]) -> Page:
    """A role that several rules give: which ones."""
    given = tuple(f"{r.name}: {r.summary}" for r in rules if r.role == role)
    return Page(role, "word", "a role that these rules give", (Part("", items=given),))


def function_page(name: str, function: Any) -> Page:
    """A function that rules may call: its parameters and its docstring."""
    title, _, rest = _doc(function).partition("\n")
    parts = [Part("", code="\n".join(_signature(name, function)))]
    parts += [Part("", code=rest.strip("\n"), language="")] if rest.strip() else []
    return Page(name, "function", title, tuple(parts))


def _signature(name: str, function: Any) -> Iterator[str]:
    """The parameters, one a line."""
    yield f"{name}("
    star = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            yield "    *,"
        default = parameter.default
        text = str(default) if isinstance(default, Enum) else repr(default)
        given = "" if default is parameter.empty else f" = {text}"
        yield f"    {parameter.name}: {parameter.annotation}{given},"
    yield ")"


def functions() -> Iterator[tuple[str, Any]]:
    from neuron_autoport import kernels, nf

    for space, module in (("NF", nf), ("NK", kernels)):
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(inspect.unwrap(function)):
                yield f"{space}.{name}", inspect.unwrap(function)


def _doc(function: Any) -> str:
    return inspect.getdoc(function) or ""


def word_texts() -> dict[str, str]:
    """Every word of the design and the language with its explanation."""
    operations = {
        name: f"In a pattern: the operation {name}, however the source spells it."
        for name in sorted(OPERATIONS - set(PATTERN))
    }
    own = {"sources": inspect.cleandoc(sources.__doc__ or "")}
    return {**WORDS, **own, **FIELDS, **CAPTURES, **PATTERN, **operations}


def word_page(name: str) -> Page:
    """A word with its explanation; one of several lines is kept as it is laid out."""
    text = word_texts()[name]
    part = Part("", code=text, language="") if "\n" in text else Part("", text)
    return Page(name, "word", "", (part,))


def _first(text: str) -> str:
    """The first sentence."""
    flat = " ".join(text.split())
    found = re.match(r".*?\.(?= |$)", flat)
    return found[0] if found else flat
