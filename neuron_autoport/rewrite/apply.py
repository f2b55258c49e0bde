"""Put the edits of one function into its source text, in one pass; comments and layout of the rest survive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst

from neuron_autoport.rewrite.source import Edits, ForwardSource


def apply_edits(source: ForwardSource, edits: Edits) -> str:
    """The function's new source text, with the indentation it has in its file."""
    kept: dict[cst.CSTNode, list[str]] = {}
    for expression in edits.replaced:
        statement = source.statement_of(expression)
        if statement is not None:
            kept.setdefault(statement, []).extend(_comments(expression))
    for whole, part in edits.unwrapped.items():
        inside = _comments(part)
        lost = [text for text in _comments(whole) if text not in inside]
        kept.setdefault(source.statement_of(whole) or whole, []).extend(lost)
    changed = source.tree.visit(Apply(edits, kept))
    function = next(n for n in _walk(changed) if isinstance(n, cst.FunctionDef))
    if function is changed.body[0]:
        return changed.code
    bare = function.with_changes(leading_lines=function.leading_lines)
    return cst.Module(body=[bare]).code


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _walk(child)


def _comment(text: str) -> cst.EmptyLine:
    return cst.EmptyLine(comment=cst.Comment(text))


def _comments(node: cst.CSTNode) -> list[str]:
    """All comments of a node and below it."""
    return [n.value for n in _walk(node) if isinstance(n, cst.Comment)]


def _expression(text: str) -> cst.BaseExpression:
    """`text` parsed; in parentheses unless it binds tighter than any operator around it."""
    made = cst.parse_expression(text)
    if isinstance(made, cst.Call | cst.Name | cst.Attribute | cst.Subscript) or made.lpar:
        return made
    return made.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _branch(statement: cst.If, taken: bool) -> Any:
    """The statements of the branch that is taken."""
    rest = statement.body if taken else statement.orelse
    if rest is None:
        return cst.RemovalSentinel.REMOVE
    if isinstance(rest, cst.If):
        return rest
    block = rest.body if isinstance(rest, cst.Else) else rest
    first, *more = block.body
    if isinstance(first, cst.BaseStatement) and hasattr(first, "leading_lines"):
        first = first.with_changes(leading_lines=[*statement.leading_lines, *first.leading_lines])
    return cst.FlattenSentinel([first, *more])


class Apply(cst.CSTTransformer):
    """One pass over the function: replace expressions, put statements in, take dead ones out.

    Args:
        kept: comments that stood inside replaced expressions, by statement.
    """

    def __init__(self, edits: Edits, kept: dict[cst.CSTNode, list[str]]) -> None:
        super().__init__()
        self.edits, self.kept = edits, kept
        self.dropped: dict[cst.CSTNode, list[str]] = {}  # with the comments that were on them
        self.emptied: set[Any] = set()  # stand-ins for all that a block held
        self.parts = dict.fromkeys(edits.unwrapped.values())  # what became of each

    def on_leave(self, original: Any, updated: Any) -> Any:
        changed = self.changed(original, super().on_leave(original, updated))
        if original in self.edits.unwrapped:
            changed = self.parts[self.edits.unwrapped[original]]
        if original in self.parts:
            self.parts[original] = changed
        return changed

    def changed(self, original: Any, updated: Any) -> Any:
        """What stands for a node whose inner nodes are changed already."""
        if original in self.edits.replaced:
            return _expression(self.edits.replaced[original])
        if original in self.edits.removed:
            self.dropped[updated] = _comments(original)
            return updated
        notes = [*self.kept.get(original, ())]
        notes += [f"# autoport: {rule}" for rule in self.edits.comments.get(original, ())]
        before = self.edits.inserted.get(original, [])
        if not notes and not before:
            return updated
        new: list[Any] = [cst.parse_statement(text) for text in before]
        if isinstance(updated, cst.FlattenSentinel):
            kept = list(updated)
        else:
            kept = [] if updated is cst.RemovalSentinel.REMOVE else [updated]
        if new and kept:  # the blank lines and comments above go with the first statement
            new[0] = new[0].with_changes(leading_lines=kept[0].leading_lines)
            kept[0] = kept[0].with_changes(leading_lines=[])
        first, *rest = [*new, *kept]
        lead = [*first.leading_lines, *(_comment(n) for n in notes)]
        return cst.FlattenSentinel([first.with_changes(leading_lines=lead), *rest])

    def leave_IndentedBlock(self, original_node: Any, updated_node: Any) -> Any:
        """Take dropped statements out; their comments stay, above what follows."""
        body: list[Any] = []
        waiting: list[cst.EmptyLine] = []
        for statement in updated_node.body:
            if statement in self.dropped:
                waiting += [_comment(text) for text in self.dropped[statement]]
                continue
            if waiting or not body:
                own = list(statement.leading_lines)
                while not body and not waiting and own and own[0].comment is None and self.dropped:
                    own.pop(0)
                statement = statement.with_changes(leading_lines=[*waiting, *own])
                waiting = []
            body.append(statement)
        if not body:
            nothing = cst.SimpleStatementLine(
                [cst.Pass()], leading_lines=[line for line in waiting if line.comment is not None]
            )
            self.emptied.add(nothing)
            body = [nothing]
        return updated_node.with_changes(body=body)

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> Any:
        """A settled choice leaves the expression that is chosen."""
        value = self.edits.settled.get(original_node)
        if value is None:
            return updated_node
        chosen = updated_node.body if value else updated_node.orelse
        return chosen.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        """A settled `if` leaves one of its branches; one that lost all it held goes."""
        if original_node in self.edits.settled:
            return _branch(updated_node, self.edits.settled[original_node])
        block = updated_node.body
        empty = isinstance(block, cst.IndentedBlock) and set(block.body) <= self.emptied
        return cst.RemovalSentinel.REMOVE if empty and updated_node.orelse is None else updated_node
