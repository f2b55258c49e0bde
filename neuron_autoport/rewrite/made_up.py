"""What a trace with made-up values (`trace/values.py`) may not be taken for.

Its graph shows one run of many. How often a loop runs may depend on values, so a match inside of one stands
for other iterations too; and a number that was the value of a tensor is no constant of the code.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from neuron_autoport.rewrite.reasons import Refused
from neuron_autoport.rules.match import Match
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.ops import Op
from neuron_autoport.trace.spans import Span

_Loop: TypeAlias = (
    ast.For | ast.While | ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
)


def refuse_made_up(trace: ModuleTrace, match: Match) -> None:
    """Refuse a match that would rest on made-up values.

    Raises:
        Refused: part of it is in a loop, or it captured a number that a tensor's value was.
    """
    if trace.answers is None:
        return
    for op in match.interior:
        for span in op.spans:
            if any(_holds(loop, span) for loop in _loops(span.file)):
                message = (
                    "it is in a loop whose number of rounds may depend on the value of a tensor"
                )
                raise Refused("AP101", message, span)
    for name, value in match.values.items():
        if isinstance(value, int | float) and value in trace.answers:
            raise Refused("AP101", f"`{name}` may be the value of a tensor", _first_span(match))


def _first_span(match: Match) -> Span | None:
    return next((op.spans[0] for op in match.interior if isinstance(op, Op) and op.spans), None)


@lru_cache(maxsize=64)
def _loops(file: str) -> tuple[_Loop, ...]:
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, _Loop))


def _holds(loop: _Loop, span: Span) -> bool:
    if loop.end_lineno is None or loop.end_col_offset is None:
        return True
    start, end = (loop.lineno, loop.col_offset), (loop.end_lineno, loop.end_col_offset)
    return start <= (span.line, span.column) and (span.end_line, span.end_column) <= end
