"""Plain values that the value or a size of a tensor has decided: no constants of the code.

A trace answers `if x.abs().max() > 1e4:` in one way, and has one number of tokens. A number, a function or a module
that was chosen there would be baked into the new call as if it were always the same. So the names that such a
choice binds, and what is computed from them, are followed through the source, and a match that reads one is
refused. Where it cannot be told what a branch changes, all that it could change counts as chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst
import torch
from torch.utils import _pytree as pytree

from neuron_autoport.rewrite.changes import bound, dotted, heads, leaves, touched, updates, written
from neuron_autoport.rewrite.names import bound_names, walk
from neuron_autoport.rewrite.nodes import Kinds, children
from neuron_autoport.rewrite.operands import OperandText
from neuron_autoport.rewrite.reasons import Refused
from neuron_autoport.rewrite.source import ForwardSource, Range, inside
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.ops import Op, is_float

_HEADS: Kinds = frozenset({cst.If, cst.While, cst.For, cst.With, cst.Try, cst.Match})
_OTHER_BINDERS: Kinds = frozenset({cst.For, cst.CompFor, cst.AsName, cst.NamedExpr, cst.Del})
_AROUND = (cst.For, cst.While, cst.Try)
_TESTS: Kinds = frozenset({cst.If, cst.While, cst.IfExp, cst.BooleanOperation, cst.Comparison})


class Decided:
    """What one forward has decided, by the text of the name: `eps`, `self.eps`; and what decided it.

    source, trace: of the forward.
    """

    def __init__(self, source: ForwardSource, trace: ModuleTrace) -> None:
        self.source, self.trace = source, trace
        self.values = [source.to_range(spans[0]) for spans in trace.asked if spans]
        self.sizes = set(self._size_places())
        self.tensors = set(self._tensor_places())
        self.by_value: dict[str, Range] = {}
        self.by_size: dict[str, Range] = {}
        self.sized: set[str] = set()  # computed from sizes, without a choice
        self.mutated: set[str] = set()
        self.held: dict[str, bool] = {}
        if self.values or self.sizes:
            self._follow()

    def check(self, interior: Iterable[Op]) -> None:
        """Refuse a match that reads, beside tensors, what was decided.

        Raises:
            Refused: AP101 where the value of a tensor decides, AP209 where a size does.
        """
        if not (self.values or self.sizes):
            return
        ops = [op for op in sorted(interior, key=lambda o: o.index) if op.spans]
        operands = OperandText(self.source, set(ops))
        plain = {operands.in_forward(op, v) for op in ops for v in op.inputs if isinstance(v, Op)}
        for op in ops:
            held = self.source.expression_at(op.spans[0]) or self.source.statement_at(op.spans[0])
            if held is None:
                continue
            for node in walk(held):
                if node not in plain:
                    self._check_node(node, op)
            if any(map(is_float, op.inputs)):
                self._check_number(held, op)

    def _check_node(self, node: cst.CSTNode, op: Op) -> None:
        text = self._text(node)
        value, size = self._found(text, self.by_value), self._found(text, self.by_size)
        if isinstance(node, cst.BaseExpression) and self.source.range(node) in self.values:
            text, value = self.source.code(node), self.source.range(node)
        if value is None and size is None and type(node) in _TESTS and any(self._size_tests(node)):
            text, size = self.source.code(node), self.source.range(node)
        for code, what, place in (("AP101", "the value", value), ("AP209", "a size", size)):
            if place is not None:
                line = place[0] + self.source.shift
                message = f"`{text}` may be another: {what} of a tensor decides it in line {line}"
                raise Refused(code, message, op.spans[0])

    def _check_number(self, held: cst.CSTNode, op: Op) -> None:
        """Refuse an operation with a number that is computed from a size.

        Tensors in its text are other operations' own, and a function of torch may look at sizes by itself.
        The last size is the width, which weights decide: `F.layer_norm(x, x.shape[-1:])`.
        """
        todo = list(children(held))
        while todo:
            node = todo.pop()
            if self.source.ranges.get(node) in self.tensors or self._is_width(node):
                continue
            if self._is_size(node):
                text = self.source.code(node)
                message = (
                    f"`{text}` may be another: a number is computed from this size of a tensor"
                )
                raise Refused("AP209", message, op.spans[0])
            todo += children(node)

    def _is_width(self, node: cst.CSTNode) -> bool:
        if not isinstance(node, cst.Subscript | cst.Call):
            return False
        return self.source.code(node).endswith((".shape[-1]", ".shape[-1:]", ".size(-1)"))

    # Where tensors, their sizes and their values are got.

    def _size_places(self) -> Iterator[Range]:
        made = {n.meta["spans"][0] for n in self.trace.graph.nodes if n.meta.get("spans")}
        for spans in self.trace.sized:
            if spans and (len(spans) == 1 or spans[0] not in made):  # a helper that returns no size
                yield self.source.to_range(spans[0])

    def _tensor_places(self) -> Iterator[Range]:
        for node in self.trace.graph.nodes:
            spans = node.meta.get("spans")
            leaves = pytree.tree_leaves(node.meta.get("val"))
            if (
                spans
                and len(spans) == 1
                and all(isinstance(v, torch.Tensor | None) for v in leaves)
            ):
                yield self.source.to_range(spans[0])

    # What follows from them.

    def _follow(self) -> None:
        known = (-1, -1, -1, -1)
        while known != (
            known := (len(self.by_value), len(self.by_size), len(self.sized), len(self.mutated))
        ):
            for line in self.source.lines:
                self._follow_line(line)
            for node in self.source.nodes(_HEADS):
                self._follow_branch(node)

    def _follow_line(self, line: cst.SimpleStatementLine) -> None:
        for statement in line.body:
            value = getattr(statement, "value", None)
            if value is None or self._is_tensor(statement):
                continue
            names = bound(statement)
            for found, place in self._deciding(statement):
                found.update(dict.fromkeys(names - found.keys(), place))
            if self._reads_size(statement):
                self.sized |= names
            if names & self.mutated and (text := self._text(value)):  # another name of one thing
                self._add(text, self.by_value, (self.by_value | self.by_size)[min(names)])

    def _follow_branch(self, node: cst.CSTNode) -> None:
        for head in heads(node):
            for found, place in self._deciding(head):
                parts = [node]
                if leaves(node):
                    parts += [a for a in self._above(node) if isinstance(a, _AROUND)]
                for part in parts:
                    found.update(dict.fromkeys(bound(part) - found.keys(), place))
                    for text in (*touched(self.source, part), *written(part)):
                        self._add(text, found, place)

    def _add(self, text: str, found: dict[str, Range], place: Range) -> None:
        self.mutated.add(text)
        found.setdefault(text, place)

    def _deciding(self, node: cst.CSTNode) -> Iterator[tuple[dict[str, Range], Range]]:
        """Where the value of a tensor, or a test of a size, decides in there."""
        here = self.source.range(node)
        for place in self.values:
            if inside(place, here):
                yield self.by_value, place
        for part in walk(node):
            text = self._text(part)
            for known in (self.by_value, self.by_size):
                found = self._found(text, known)
                if found is not None:
                    yield known, found
        for test in self._size_tests(node):
            yield self.by_size, self.source.range(test)

    def _size_tests(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        parent = self.source.parents.get(node)
        if (
            isinstance(parent, cst.If | cst.While)
            and parent.test is node
            and self._reads_size(node)
        ):
            yield node
        for part in walk(node):
            if type(part) in _TESTS:
                test = part.test if isinstance(part, cst.IfExp) else part
                if self._reads_size(test):
                    yield test

    def _reads_size(self, node: cst.CSTNode) -> bool:
        return any(map(self._is_size, walk(node)))

    def _is_size(self, node: cst.CSTNode) -> bool:
        if self.sized and self._text(node) in self.sized:
            return True
        return isinstance(node, cst.BaseExpression) and self.source.range(node) in self.sizes

    def _is_tensor(self, statement: cst.CSTNode) -> bool:
        """Does it bind nothing but the result of an operation?"""
        value = (
            statement if isinstance(statement, cst.AugAssign) else getattr(statement, "value", None)
        )
        return value is not None and self.source.range(value) in self.tensors

    def _holds_tensor(self, name: str) -> bool:
        """Is the name of the forward one of a tensor wherever it is bound?

        A statement that did not run is known by its form: arithmetic with a tensor gives one.
        """
        if name not in self.held:
            self.held[name] = self._only_tensors(name)
        return self.held[name]

    def _only_tensors(self, name: str) -> bool:
        others = self.source.nodes(_OTHER_BINDERS)
        if any(name in bound_names(n) for n in others):
            return False
        binders = [s for line in self.source.lines for s in line.body if name in bound(s)]
        if not binders and name not in self.trace.inputs:
            return False
        return all(self._is_tensor(s) or updates(s, name) for s in binders)

    # What a node names.

    def _text(self, node: cst.CSTNode) -> str:
        """The dotted name that an expression is; empty for what is none, or is a part of a larger one."""
        parent = self.source.parents.get(node)
        if isinstance(parent, cst.Arg) and parent.keyword is node:
            return ""
        if isinstance(node, cst.Name):
            part = isinstance(parent, cst.Attribute) and (
                parent.attr is node or node.value == "self"
            )
            return "" if part else node.value
        if isinstance(node, cst.Attribute):
            return dotted(node)
        return ""

    def _found(self, text: str, known: dict[str, Range]) -> Range | None:
        if not text or not known or self._holds_tensor(text.partition(".")[0]):
            return None
        for name, place in known.items():
            if text == name or text.startswith(f"{name}.") or name.startswith(f"{text}."):
                return place
        return None

    def _above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        current = self.source.parents.get(node)
        while current is not None and current is not self.source.function:
            yield current
            current = self.source.parents.get(current)
