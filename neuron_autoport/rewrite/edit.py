"""From a match to source edits, or a refusal: the one place where safety is decided.

The output expressions of a match are replaced by the new call; statements that held nothing but inner
values of the match go. Refused, with a reason: what else reads an inner value, a captured module used
elsewhere, parts in different branches or in a loop, a name bound again or a value written in place
between its old read and its new one, an input that has no readable expression there.
"""

from __future__ import annotations

from functools import cached_property, partial

import libcst as cst

from neuron_autoport.fused import FusedWeight
from neuron_autoport.rewrite import branches, safety
from neuron_autoport.rewrite.agree import Agreed, agree, check_inner
from neuron_autoport.rewrite.helpers import returned_by_helper
from neuron_autoport.rewrite.inputs import InputTexts
from neuron_autoport.rewrite.names import drop_dead, names_in, walk, words
from neuron_autoport.rewrite.operands import OperandText
from neuron_autoport.rewrite.reasons import Refused
from neuron_autoport.rewrite.replacement import reads, replacement_text
from neuron_autoport.rewrite.source import Edits, ForwardSource, Range, inside
from neuron_autoport.rules.match import Match, ModuleRef
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.ops import Op, OpGraph
from neuron_autoport.trace.spans import Span


def edit_match(
    rule: Rule,
    match: Match,
    weights: tuple[FusedWeight, ...],
    graph: OpGraph,
    source: ForwardSource,
    before: Edits,
) -> Edits:
    """The edits that put the rule's replacement into the source.

    Args:
        before: edits already chosen for this function; names they bring in are not used again.

    Raises:
        Refused: the match cannot be rewritten safely; the code says why.
    """
    return _Editor(rule, match, weights, graph, source, before).run()


class _Editor:
    def __init__(
        self,
        rule: Rule,
        match: Match,
        weights: tuple[FusedWeight, ...],
        graph: OpGraph,
        source: ForwardSource,
        before: Edits,
    ) -> None:
        self.rule, self.match, self.weights = rule, match, weights
        self.graph, self.source, self.before = graph, source, before
        self.outputs = [match.values[name] for name in rule.outputs]
        self.interior = set(match.interior) | set(self.outputs)
        # In the order they run, so that of several faults always the same is told.
        self.in_order = sorted(self.interior, key=lambda op: op.index)
        self.operands = OperandText(source, self.interior)
        self.agreed = Agreed()

    def run(self) -> Edits:
        self.check_users()
        self.check_in_place()
        self.check_once()
        together = len(self.outputs) > 1 and self.tuple_order() is not None
        safety.check_helpers(self.source, self.in_order, self.outputs, together)
        expressions = [self.output_expression(op) for op in self.outputs]
        statements = [self.statement(e) for e in expressions]
        given = {n: self.match.values[n] for n in self.inputs()}
        self.agreed = agree(self.source, self.operands, given)
        block = self.common_block(statements)
        safety.check_conditional(self.source, self.in_order, expressions)
        between = [op for op in self.in_order if op not in given.values()]
        check_inner(self.source, self.operands, between)
        edits = Edits(removed=self.dead_statements(statements))
        edits.replaced |= self.closings([*expressions, *edits.removed])
        earliest = min(statements, key=lambda s: self.source.range(s)[:2])
        first = branches.statement_in(earliest, block, self.source)
        inner = self.interior - set(self.outputs)
        reader = InputTexts(
            self.source, self.graph, self.agreed, inner, first, expressions, self.before
        )
        texts = {name: reader.text(name, op, edits) for name, op in given.items()}
        column = self.source.range(first)[1] - self.source.range(self.source.function)[1]
        text = replacement_text(self.rule, self.match, self.weights, texts, column)
        self.place(edits, expressions, first, text)
        lines = edits.removed | {self.statement(e) for e in edits.unwrapped}
        paths = {v.path for v in self.match.values.values() if isinstance(v, ModuleRef)}
        branches.settle(self.source, edits, paths)
        drop_dead(self.source, edits)
        safety.check_left_names(self.source, edits, lines, first)
        others = [op for op in self.graph.ops if op not in self.interior]
        branches.close_untaken(self.source, edits, paths, self.graph.ops)
        safety.check_modules(self.source, edits, paths, others)
        return edits

    def inputs(self) -> list[str]:
        """Captured values the replacement reads and the source must provide."""
        names = sorted(reads(self.rule))
        return [n for n in names if isinstance(self.match.values.get(n), Op)]

    def place(
        self, edits: Edits, expressions: list[cst.BaseExpression], first: cst.CSTNode, text: str
    ) -> None:
        edits.comments[first] = [self.rule.name]
        ends = self.layouts()
        whole = len(set(expressions)) == 1  # one output, or all of them in one expression
        order = self.tuple_order() if whole else None
        if whole and not any(ends) and (order is None or order == self.outputs):
            edits.replaced[expressions[0]] = text
            return
        names = self.fresh_names()
        edits.inserted[first] = [f"{', '.join(names)} = {text}"]
        values = [name + end for name, end in zip(names, ends, strict=True)]
        if order is not None:
            given = [values[self.outputs.index(o)] for o in order]
            edits.replaced[expressions[0]] = f"({', '.join(given)})"
            return
        for expression, value in zip(expressions, values, strict=True):
            edits.replaced[expression] = value

    def layouts(self) -> list[str]:
        """For each output, the method calls that lay it out as the source had it."""
        stem = next((w.attr for w in self.weights if w.heads), "")
        cuts = [self.match.columns.get(n) for n in self.rule.outputs]
        return [
            c.layout(f"self.{stem}_heads[{i}]") if c is not None else "" for i, c in enumerate(cuts)
        ]

    def fresh_names(self) -> list[str]:
        used = {w for texts in self.before.inserted.values() for t in texts for w in words(t)}
        names = []
        for name in self.rule.outputs:
            free = name
            while free in used or free in names_in(self.source.function):
                free = f"{free}_"
            names.append(free)
        return names

    # What must hold in the graph.

    def check_users(self) -> None:
        returned = set(self.graph.outputs)
        for op in self.match.interior:
            if op in self.outputs or op.name == "param":
                continue
            outside = [u for u in op.users if u not in self.interior]
            if outside or op in returned:
                where = outside[0].spans[0] if outside and outside[0].spans else None
                raise Refused("AP201", f"{op.label} is also read by the code that stays", where)

    def check_in_place(self) -> None:
        inputs = {v for v in self.match.values.values() if isinstance(v, Op)}
        concerned = {s for op in self.interior | inputs for s in op.storages()}
        numbers = [op.index for op in self.interior]
        for op in self.graph.ops[min(numbers) : max(numbers) + 1]:
            for written in op.written:
                if written.storages() & concerned:
                    span = op.spans[0] if op.spans else None
                    raise Refused("AP204", f"{written.label} is written in place", span)

    def check_once(self) -> None:
        for op in self.outputs:
            same = [o for o in self.graph.ops if o.spans and o.spans == op.spans]
            if sum(o.name == op.name and o.target == op.target for o in same) > 1 and not (
                op.name == "slice" and len({o.attrs.get("start") for o in same}) == len(same)
            ):
                raise Refused("AP206", "this expression ran several times", op.spans[0])

    # Where things are in the source.

    @cached_property
    def placed(self) -> list[tuple[Op, Range]]:
        """The operations that have a place in the source, with it."""
        return self.source.placed(self.graph.ops)

    def output_expression(self, op: Op) -> cst.BaseExpression:
        if not op.spans:
            raise Refused("AP208", f"{op.label} has no place in the source")
        expression = self.source.expression_at(op.spans[0])
        if expression is None:
            raise Refused("AP208", "no expression of the source is at this place", op.spans[0])
        safety.check_expression(self.source, expression, op.spans[0])
        here = self.source.range(expression)
        widened = self.widened()
        for other, place in self.placed:
            if not inside(place, here) or other in self.interior or other.name == "pieces":
                continue
            if other in widened:  # the new call widens it by itself
                continue
            if not self.is_input_text(place):
                raise Refused("AP202", f"it also computes {other.label}", other.spans[0])
        if self.shares_expression(op) and self.tuple_order() is None:
            raise Refused("AP202", "several outputs come from one expression", op.spans[0])
        return expression

    def widened(self) -> set[Op]:
        """Captures that have to be in float32 and are, by a cast that the product with them does."""
        kinds = self.rule.kinds
        wide = [self.match.values.get(n) for n, kind in kinds.items() if kind == "float32"]
        return {v for v in wide if isinstance(v, Op) and v.attrs.get("implicit")}

    def shares_expression(self, op: Op) -> bool:
        return any(o is not op and o.spans[:1] == op.spans[:1] for o in self.outputs)

    def tuple_order(self) -> list[Op] | None:
        """The outputs in the order of the tuple that one expression gives; None if it gives no such."""
        first = self.outputs[0]
        if any(o.spans[:1] != first.spans[:1] for o in self.outputs):
            return None
        cut = [o for o in self.graph.ops if o.name == "pieces" and o.spans == first.spans]
        if len(cut) != 1 or any(o.spans != first.spans for o in self.outputs):
            return self.outputs if returned_by_helper(self.source, self.outputs) else None
        parts = cut[0].node.meta["val"] if cut[0].node is not None else ()
        order = sorted(self.outputs, key=lambda o: o.attrs.get("start", 0))
        return order if len(parts) == len(order) else None

    def is_input_text(self, place: Range) -> bool:
        """Is it inside the text of an input that is kept?"""
        ranges = []
        for name in self.inputs():
            expression = self.operands.expression_of(self.match.values[name])
            if expression is not None:
                ranges.append(self.source.range(expression))
        return any(inside(place, r) for r in ranges)

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        found = self.source.statement_of(node)
        if not isinstance(found, cst.SimpleStatementLine):
            raise Refused("AP205", "the result is computed in the head of a compound statement")
        return found

    def common_block(self, statements: list[cst.CSTNode]) -> cst.CSTNode:
        """The block that holds all parts of the match; those deeper in must run whenever it does."""
        places: list[tuple[cst.CSTNode, Span | None]] = [(s, None) for s in statements]
        for op in self.in_order:
            if op.spans:
                at = self.source.statement_at(op.spans[0])
                places.append((at, op.spans[0]) if at is not None else (statements[0], None))
        block = branches.common([self.source.block_of(s) for s, _ in places], self.source)
        for statement, span in places:
            fails = partial(self.agreed.fails, self.source)
            if not branches.always_runs(statement, block, self.source, fails):
                raise Refused("AP205", "parts of the match are in another block", span)
        return block

    def closings(self, going: list[cst.CSTNode]) -> dict[cst.CSTNode, str]:
        """What stands for the arms of choices that the new call leaves no meaning; these must not go."""
        if not self.agreed.closed:
            return {}
        moved = next((v for v in self.match.values.values() if isinstance(v, ModuleRef)), None)
        gone = {n for g in going for n in walk(g)}
        if moved is None or not gone.isdisjoint(self.agreed.closed):
            raise Refused(
                "AP209", "another input may be given, and nothing is left that could say so"
            )
        return dict.fromkeys(self.agreed.closed, f'NF.moved("self.{moved.path}")')

    def dead_statements(self, kept: list[cst.CSTNode]) -> set[cst.CSTNode]:
        """Statements that hold inner ops of the match and nothing else."""
        dead: set[cst.CSTNode] = set()
        for line in self.source.lines:
            if line in kept or not safety.droppable(line):
                continue
            place = self.source.range(line)
            held = [o for o, at in self.placed if inside(at, place)]
            if held and all(o in self.interior for o in held):
                dead.add(line)
        return dead
