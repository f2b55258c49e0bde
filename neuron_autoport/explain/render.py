"""Pages as text for a terminal, and as Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from neuron_autoport.explain.pages import (
    Page,
    Part,
    code_page,
    function_page,
    functions,
    rule_page,
    word_page,
    word_texts,
)
from neuron_autoport.rewrite.reasons import CODES
from neuron_autoport.rules.library import load_rules


def print_page(page: Page, console: Console) -> None:
    """One page; code is not broken, so that it can be pasted."""
    title = f": {page.title}" if page.title else ""
    console.print(Text.assemble((page.word, "bold"), title), soft_wrap=True)
    for part in page.parts:
        console.print()
        if part.heading:
            console.print(Text(part.heading, style="bold"))
        if part.text:
            console.print(Text(part.text))
        for item in part.items:
            console.print(Text(f"- {item}"), soft_wrap=True)
        if part.code:
            _print_code(part, console)


def _print_code(part: Part, console: Console) -> None:
    """Code, indented; coloured where the terminal has colours."""
    if console.is_terminal and part.language and console.color_system:
        shown = Syntax(part.code.rstrip("\n"), part.language, background_color="default")
        console.print(Padding(shown, (0, 0, 0, 4)))
        return
    for line in part.code.rstrip("\n").split("\n"):
        console.print(Text(f"    {line}".rstrip()), soft_wrap=True)


def markdown(page: Page) -> str:
    """One page as Markdown, below a heading of the second level."""
    return "\n".join(_lines(page)) + "\n"


def _lines(page: Page) -> Iterator[str]:
    yield f"## {page.word}" + (f": {page.title}" if page.title else "")
    for part in page.parts:
        yield ""
        if part.heading:
            yield f"**{part.heading}**"
            yield ""
        if part.text:
            yield part.text
        yield from (f"- {item}" for item in part.items)
        if part.code:
            yield f"```{part.language}"
            yield part.code.rstrip("\n")
            yield "```"


# Of each document: its title, and what it is.
DOCUMENTS = {
    "codes": (
        "Reason codes",
        "AP1xx trace, AP2xx structure, AP3xx values and rounding, AP4xx limits of the target, AP5xx\n"
        "parallel plan, AP6xx weights, AP7xx proof.",
    ),
    "rules": ("Built-in rules", "`autoport rules show NAME` prints one with all its examples."),
    "words": ("Words", "What reports and rule files say, and the functions rules call."),
}


def document(name: str) -> str:
    """All pages of a kind, one below the other.

    Args:
        name: a key of DOCUMENTS.
    """
    title, about = DOCUMENTS[name]
    head = (
        f"# {title}\n\nMade from the code by `make pages`; `autoport explain NAME` prints one of these.\n"
        f"{about}\n\n"
    )
    return head + "\n".join(markdown(page) for page in _pages(name))


def _pages(name: str) -> Iterator[Page]:
    if name == "codes":
        yield from (code_page(code) for code in CODES)
    elif name == "rules":
        yield from (rule_page(rule) for rule in sorted(load_rules(), key=lambda r: r.name))
    else:
        yield from (word_page(word) for word in word_texts())
        yield from (function_page(*found) for found in functions())
