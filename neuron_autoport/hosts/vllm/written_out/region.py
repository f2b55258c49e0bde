"""The source of a written-out attention, from the first product to the second, made one call.

The statements of that region go, and `self.attend(q, k.T, v)` stands where the second product stood. Refused is what
would be lost with them: a name that is read later, a write to something else, a return.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import libcst as cst
from torch import fx

from neuron_autoport.hosts.vllm.written_out.known import name_of
from neuron_autoport.hosts.vllm.written_out.read import NotPlain, WrittenOut, span_of
from neuron_autoport.rewrite.apply import apply_edits
from neuron_autoport.rewrite.names import bound_names, read_names, walk
from neuron_autoport.rewrite.source import Edits, ForwardSource, NoSource, inside
from neuron_autoport.trace.module_trace import ModuleTrace

MARK = "attention interface"
CALL = "self.attend"
# The two factors of each product, as its arguments are called and in their order.
_FACTORS = {"matmul": ("input", "other"), "bmm": ("input", "mat2"),
            "baddbmm": ("input", "batch1", "batch2")}  # fmt: skip
# What may not go with the region: it acts on more than the names that are bound there.
_ACTS = (cst.Return, cst.For, cst.While, cst.With, cst.Try, cst.Del, cst.Global, cst.Nonlocal,
         cst.Yield, cst.NamedExpr, cst.FunctionDef, cst.Lambda, cst.Break, cst.Continue)  # fmt: skip


@dataclass(frozen=True)
class Rewritten:
    """A method with its attention made a call.

    name: of the method. text: its new source, indented as in its file. space: names its source may read.
    flat_weights: do batch and heads make one axis of what it keeps of the weights?
    """

    name: str
    text: str
    space: dict[str, Any]
    flat_weights: bool = False


def rewrite_region(found: WrittenOut, trace: ModuleTrace) -> Rewritten:
    """Rewrite the method that holds both products.

    Raises:
        NotPlain: the source cannot be changed safely.
    """
    try:
        source = ForwardSource(trace.forward, trace.module_class, trace.reads)
    except NoSource as error:
        raise NotPlain(f"its source cannot be read: {error}") from None
    if hasattr(trace.module_class, CALL.removeprefix("self.")):
        raise NotPlain(f"it has a `{CALL}` of its own", span_of(found.output))
    level, source = _method(found, source)
    return _Region(found, trace, source, level).rewritten()


def _method(found: WrittenOut, source: ForwardSource) -> tuple[int, ForwardSource]:
    """The method that computes scores, softmax and output, and how deep below the forward it is called."""
    chains = [n.meta["spans"] for n in (found.scores, found.softmax, found.output)]
    level = 0
    while all(len(c) > level + 1 and c[: level + 1] == chains[0][: level + 1] for c in chains):
        call = source.expression_at(chains[0][level])
        called = source.called(call) if call is not None else None
        if called is None or not called.is_method:
            what = "its attention is written out in a function, not in a method of its own"
            raise NotPlain(what, chains[0][level])
        source, level = called, level + 1
    if len({(c[level].file, c[level].function) for c in chains}) != 1:
        raise NotPlain("its attention is spread over several functions", chains[0][level])
    return level, source


class _Region:
    def __init__(
        self, found: WrittenOut, trace: ModuleTrace, source: ForwardSource, level: int
    ) -> None:
        self.found, self.trace, self.source, self.level = found, trace, source, level
        self.product = self.expression(found.scores)
        self.output = self.expression(found.output)
        self.first, self.last = self.statement(self.product), self.statement(self.output)
        self.going = self.statements()

    def rewritten(self) -> Rewritten:
        if "super(" in self.source.tree.code:
            raise NotPlain("it calls its base class", span_of(self.found.output))
        query, key = self.factors(self.found.scores, self.product)
        value = self.factors(self.found.output, self.output)[1]
        self.check_region([query, key, value])
        kept = self.kept_name()
        call = f"{CALL}({', '.join(self.source.code(x) for x in (query, key, value))})"
        edits = Edits(removed=set(self.going), comments={self.last: [MARK]})
        if kept is None:
            edits.replaced[self.output] = f"{call}[0]"
        else:
            edits.inserted[self.last] = [f"attended, {kept} = {call}"]
            edits.replaced[self.output] = "attended"
        self.drop_unread(edits)
        name = self.source.function.name.value
        space = self.source.callable.__globals__
        flat = kept is not None and self.kept_rank(kept) == 3
        return Rewritten(name, apply_edits(self.source, edits), space, flat)

    # Where things are.

    def expression(self, node: fx.Node) -> cst.BaseExpression:
        found = self.source.expression_at(node.meta["spans"][self.level])
        if found is None:
            raise NotPlain("a product has no place in the source", span_of(node))
        return found

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        found = self.source.statement_of(node)
        if not isinstance(found, cst.SimpleStatementLine):
            raise NotPlain("a product stands in a condition", span_of(self.found.output))
        return found

    def statements(self) -> list[cst.CSTNode]:
        """The statements from the first product to before the second."""
        block = self.source.block_of(self.last)
        if self.source.block_of(self.first) is not block or not isinstance(block, cst.BaseSuite):
            raise NotPlain(
                "the two products stand in different branches", span_of(self.found.output)
            )
        body: list[cst.CSTNode] = list(block.body)
        return body[body.index(self.first) : body.index(self.last)]

    def factors(self, node: fx.Node, expression: cst.BaseExpression) -> list[cst.CSTNode]:
        """The source of the two factors of a product."""
        if isinstance(expression, cst.BinaryOperation):
            if isinstance(expression.operator, cst.MatrixMultiply):
                return [expression.left, expression.right]
        elif isinstance(expression, cst.Call):
            names = _FACTORS[name_of(node)]
            given: dict[str, cst.CSTNode] = {}
            places = iter(names)
            target = expression.func
            if isinstance(target, cst.Attribute) and not self.is_module(target.value):
                given[next(places)] = target.value
            for argument in expression.args:
                key = argument.keyword.value if argument.keyword else next(places, None)
                if key is not None and not argument.star:
                    given[key] = argument.value
            if all(n in given for n in names[-2:]):
                return [given[n] for n in names[-2:]]
        raise NotPlain("the factors of a product cannot be told from its source", span_of(node))

    def is_module(self, node: cst.CSTNode) -> bool:
        space = self.source.callable.__globals__
        return isinstance(node, cst.Name) and isinstance(space.get(node.value), types.ModuleType)

    # What must hold.

    def check_region(self, operands: list[cst.CSTNode]) -> None:
        bound = self.bound()
        read = {n.value for o in operands for n in walk(o) if isinstance(n, cst.Name)}
        if read & bound:
            what = f"`{min(read & bound)}` is bound again between the products"
            raise NotPlain(what, span_of(self.found.scores))
        for node in (n for s in self.going for n in walk(s)):
            targets = node.targets if isinstance(node, cst.Assign) else []
            plain = all(_is_names(t.target) for t in targets)
            if isinstance(node, cst.AugAssign | cst.AnnAssign):
                plain = _is_names(node.target)
            if isinstance(node, _ACTS) or not plain:
                what = f"`{self.source.code(node).splitlines()[0]}` stands between the products"
                raise NotPlain(what, span_of(self.found.scores))
        self.check_writes()
        outer: Any = self.last
        while (outer := self.source.parents.get(outer)) is not None:
            if isinstance(outer, cst.For | cst.While):
                raise NotPlain("it runs in a loop", span_of(self.found.output))

    def check_writes(self) -> None:
        """Nothing in the region may write to what stays."""
        found = self.found
        inner = {found.scores, *found.before, found.softmax, *found.after, found.output}
        places = [self.source.range(s) for s in self.going]
        for node in self.trace.graph.nodes:
            spans = node.meta.get("spans", ())
            if len(spans) <= self.level or spans[: self.level] != self.outer():
                continue
            place = self.source.to_range(spans[self.level])
            if not any(inside(place, p) for p in places):
                continue
            if any(w not in inner for w in node.meta.get("written", ())):
                raise NotPlain(f"`{name_of(node)}` writes in place", span_of(node))

    def outer(self) -> tuple[Any, ...]:
        return tuple(self.found.output.meta["spans"][: self.level])

    def bound(self) -> set[str]:
        """Names that the region binds."""
        return {name for s in self.going for name in bound_names(s)}

    def kept_name(self) -> str | None:
        """The name that the region gives the weights, if it is read later; nothing else may be."""
        start = self.source.range(self.last)[:2]
        within = {id(n) for n in walk(self.output)}
        later: set[str] = set()
        for node in walk(self.source.function):
            if not isinstance(node, cst.Name) or id(node) in within:
                continue
            if self.source.range(node)[:2] >= start:
                later |= read_names(node, self.source)
        read = sorted(later & self.bound())
        for name in read:
            if self.kept_rank(name) is None or len(read) > 1:
                what = f"`{name}`, made between the products, is read after them"
                raise NotPlain(what, span_of(self.found.output))
        return read[0] if read else None

    def kept_rank(self, name: str) -> int | None:
        """The rank of the weights that the region last binds to a name; None if it binds other values."""
        value = None
        for statement in self.going:
            for node in walk(statement):
                if isinstance(node, cst.Assign) and name in bound_names(node):
                    value = node.value
        if value is None:
            return None
        place = self.source.range(value)
        weights = {self.found.softmax, *self.found.after}
        for node in reversed(list(self.trace.graph.nodes)):
            spans = node.meta.get("spans", ())
            if len(spans) > self.level and self.source.to_range(spans[self.level]) == place:
                return int(node.meta["val"].dim()) if node in weights else None
        return None

    def drop_unread(self, edits: Edits) -> None:
        """Tensors that only the region read: made in a statement of their own, for nothing now."""
        made = {
            self.source.to_range(n.meta["spans"][self.level])
            for n in self.trace.graph.nodes
            if n.op == "call_function"
            and len(n.meta.get("spans", ())) > self.level
            and not n.meta.get("inplace")
        }
        for line in reversed(self.source.lines):
            small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
            if line in edits.removed or not isinstance(small, cst.Assign) or len(line.body) > 1:
                continue
            target = small.targets[0].target
            if not isinstance(target, cst.Name) or self.source.range(small.value) not in made:
                continue
            if target.value not in self.still_read(edits):
                edits.removed.add(line)

    def still_read(self, edits: Edits) -> set[str]:
        """Names that the rewritten method reads."""
        gone = {id(n) for r in (*edits.removed, *edits.replaced) for n in walk(r)}
        texts = [*edits.replaced.values(), *(t for x in edits.inserted.values() for t in x)]
        found = {
            n.value for t in texts for n in walk(cst.parse_statement(t)) if isinstance(n, cst.Name)
        }
        for node in walk(self.source.function):
            if isinstance(node, cst.Name) and id(node) not in gone:
                found |= read_names(node, self.source)
        return found


def _is_names(target: cst.CSTNode) -> bool:
    if isinstance(target, cst.Tuple):
        return all(_is_names(e.value) for e in target.elements)
    return isinstance(target, cst.Name)
