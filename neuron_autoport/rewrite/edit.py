"""From a match to source edits, or a refusal: the one place where safety is decided.

The output expressions of a match are replaced by the new call; statements that held nothing but inner
values of the match go. Refused, with a reason: what else reads an inner value, a captured module used
elsewhere, parts in different branches or in a loop, a name bound again or a value written in place
between its old read and its new one, an input that has no readable expression there.
"""

from __future__ import annotations

import libcst as cst

from neuron_autoport.rewrite import safety
from neuron_autoport.rewrite.names import drop_dead, parameter_text, walk, words
from neuron_autoport.rewrite.reasons import Refused
from neuron_autoport.rewrite.replacement import reads, replacement_text
from neuron_autoport.rewrite.site import FusedWeight
from neuron_autoport.rewrite.source import Edits, ForwardSource, inside
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

    def run(self) -> Edits:
        self.check_users()
        self.check_in_place()
        self.check_once()
        safety.check_helpers(self.interior, self.outputs)
        expressions = [self.output_expression(op) for op in self.outputs]
        statements = [self.statement(e) for e in expressions]
        self.check_branches(statements)
        safety.check_conditional(self.source, self.interior, expressions)
        edits = Edits(removed=self.dead_statements(statements))
        first = min(statements, key=lambda s: self.source.range(s)[:2])
        texts = {name: self.input_text(name, first, edits, expressions) for name in self.inputs()}
        column = self.source.range(first)[1] - self.source.range(self.source.function)[1]
        text = replacement_text(self.rule, self.match, self.weights, texts, column)
        self.place(edits, expressions, first, text)
        lines = set(edits.removed)
        drop_dead(self.source, edits)
        safety.check_left_names(self.source, edits, lines, first)
        paths = {v.path for v in self.match.values.values() if isinstance(v, ModuleRef)}
        others = [op for op in self.graph.ops if op not in self.interior]
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
        if len(set(expressions)) == 1:  # one output, or the tuple of all of them in one expression
            edits.replaced[expressions[0]] = text
            return
        names = self.fresh_names()
        edits.inserted[first] = [f"{', '.join(names)} = {text}"]
        for expression, name in zip(expressions, names, strict=True):
            edits.replaced[expression] = name

    def fresh_names(self) -> list[str]:
        used = {n.value for n in walk(self.source.function) if isinstance(n, cst.Name)}
        used |= {w for texts in self.before.inserted.values() for t in texts for w in words(t)}
        names = []
        for name in self.rule.outputs:
            free = name
            while free in used:
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

    def output_expression(self, op: Op) -> cst.BaseExpression:
        if not op.spans:
            raise Refused("AP208", f"{op.label} has no place in the source")
        expression = self.source.expression_at(op.spans[0])
        if expression is None:
            raise Refused("AP208", "no expression of the source is at this place", op.spans[0])
        safety.check_expression(self.source, expression, op.spans[0])
        here = self.source.range(expression)
        for other in self.graph.ops:
            if not other.spans or other in self.interior or other.name == "pieces":
                continue
            place = self.source.to_range(other.spans[0])
            if inside(place, here) and not self.is_input_text(other):
                raise Refused("AP202", f"it also computes {other.label}", other.spans[0])
        if self.shares_expression(op) and not self.is_whole_tuple(op):
            raise Refused("AP202", "several outputs come from one expression", op.spans[0])
        return expression

    def shares_expression(self, op: Op) -> bool:
        return any(o is not op and o.spans[:1] == op.spans[:1] for o in self.outputs)

    def is_whole_tuple(self, op: Op) -> bool:
        """Is the expression a call that cuts a value into exactly the outputs, in their order?"""
        cut = [o for o in self.graph.ops if o.name == "pieces" and o.spans == op.spans]
        if len(cut) != 1 or any(o.spans != op.spans for o in self.outputs):
            return False
        parts = cut[0].node.meta["val"] if cut[0].node is not None else ()
        starts = [o.attrs.get("start") for o in self.outputs]
        return len(parts) == len(self.outputs) and starts == sorted(starts)

    def is_input_text(self, op: Op) -> bool:
        """Is `op` computed inside the text of an input that is kept?"""
        ranges = []
        for name in self.inputs():
            expression = self.operand_expression(self.match.values[name])
            if expression is not None:
                ranges.append(self.source.range(expression))
        place = self.source.to_range(op.spans[0])
        return any(inside(place, r) for r in ranges)

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        found = self.source.statement_of(node)
        if not isinstance(found, cst.SimpleStatementLine):
            raise Refused("AP205", "the result is computed in the head of a compound statement")
        return found

    def check_branches(self, statements: list[cst.CSTNode]) -> None:
        block = self.source.block_of(statements[0])
        places: list[tuple[cst.CSTNode, Span | None]] = [(s, None) for s in statements]
        for op in self.interior:
            if op.spans:
                at = self.source.statement_at(op.spans[0])
                places.append((at, op.spans[0]) if at is not None else (statements[0], None))
        for statement, span in places:
            if self.source.block_of(statement) is not block:
                raise Refused("AP205", "parts of the match are in another block", span)

    def dead_statements(self, kept: list[cst.CSTNode]) -> set[cst.CSTNode]:
        """Statements that hold inner ops of the match and nothing else."""
        dead: set[cst.CSTNode] = set()
        for line in self.source.lines:
            if line in kept or not safety.droppable(line):
                continue
            place = self.source.range(line)
            held = [o for o in self.graph.ops if o.spans and inside(
                self.source.to_range(o.spans[0]), place)]  # fmt: skip
            if held and all(o in self.interior for o in held):
                dead.add(line)
        return dead

    # Inputs of the new call.

    def input_text(
        self,
        name: str,
        at: cst.CSTNode,
        edits: Edits,
        outputs: list[cst.BaseExpression],
    ) -> str:
        op = self.match.values[name]
        if op.name == "param":
            return parameter_text(str(op.target))
        if op.name == "input" and self.is_parameter_name(op.target):
            safety.check_binding(self.source, str(op.target), None, at, edits)
            return str(op.target)
        expression = self.operand_expression(op)
        if expression is None:
            span = op.spans[0] if op.spans else None
            raise Refused("AP207", f"`{name}` ({op.label}) has no name in this forward", span)
        first_use = self.statement(expression)
        if isinstance(expression, cst.Name):
            safety.check_binding(self.source, expression.value, first_use, at, edits)
        elif not any(_holds(o, expression) for o in outputs) and first_use is not at:
            raise Refused("AP207", f"`{name}` would be computed at another place", op.spans[0])
        return self.source.code(expression)

    def is_parameter_name(self, name: str | None) -> bool:
        params = self.source.function.params
        return any(p.name.value == name for p in (*params.params, *params.kwonly_params))

    def operand_expression(self, op: Op) -> cst.BaseExpression | None:
        """The expression that stands for `op` where the match first reads it."""
        for user in sorted(op.users, key=lambda u: u.index):
            if user not in self.interior or len(user.spans) != 1:
                continue
            expression = self.source.expression_at(user.spans[0])
            found = _operand(expression, user, op) if expression is not None else None
            if found is not None:
                return found
        return None


def _holds(outer: cst.CSTNode, inner: cst.CSTNode) -> bool:
    return any(n is inner for n in walk(outer))


def _operand(expression: cst.CSTNode, user: Op, op: Op) -> cst.BaseExpression | None:
    """The part of `user`'s expression that is its operand `op`."""
    place = next((i for i, v in enumerate(user.inputs) if v is op), None)
    if place is None:
        return None
    if isinstance(expression, cst.BinaryOperation) and user.name in ("add", "sub", "mul", "div"):
        return (expression.left, expression.right)[place] if len(user.inputs) == 2 else None
    if not isinstance(expression, cst.Call):
        return expression.value if isinstance(expression, cst.Subscript) and place == 0 else None
    if user.name == "module" or not isinstance(expression.func, cst.Attribute):
        plain = [a.value for a in expression.args if a.keyword is None and not a.star]
        return plain[place] if place < len(plain) else None
    owner = expression.func.value
    if isinstance(owner, cst.Name) and owner.value in ("torch", "F"):
        return expression.args[place].value if place < len(expression.args) else None
    return owner if place == 0 else None
