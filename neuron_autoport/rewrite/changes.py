"""What a part of a forward may change: names it binds, what it writes to, what its calls are given."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from functools import lru_cache

import libcst as cst
import torch

from neuron_autoport.rewrite.names import bound_names, walk
from neuron_autoport.rewrite.nodes import children
from neuron_autoport.rewrite.source import ForwardSource

_ARITHMETIC = (cst.BinaryOperation, cst.UnaryOperation)
# Methods of tensors that write nothing, and that nothing else has which writes by them.
_ONLY_READ = frozenset(
    n for n in dir(torch.Tensor) if not n.endswith("_")
    and not any(hasattr(kind, n) for kind in (list, dict, set, bytearray, torch.nn.Module))
)  # fmt: skip
_LEAVES = (cst.Break, cst.Continue, cst.Raise)


@lru_cache(maxsize=1 << 12)
def leaves(node: cst.CSTNode) -> bool:
    """May it leave a loop, or a block that catches errors, early?"""
    return any(isinstance(n, _LEAVES) for n in walk(node))


def touched(source: ForwardSource, part: cst.CSTNode) -> Iterator[str]:
    """What calls in there may change: what they are called on and what they are given."""
    space = getattr(source.callable, "__globals__", {})
    for call in _calls(part):
        func = call.func
        owner: cst.BaseExpression | None = None
        if isinstance(func, cst.Attribute):
            owner = func.value
            if func.attr.value in _ONLY_READ:
                owner = None
            elif dotted(owner) == "self":  # a child module, if no method: it changes itself only
                yield from _written_by(source, call)
                owner = None
        for node in (owner, *(a.value for a in call.args)):
            text = dotted(node) if node is not None else ""
            value = space.get(text.partition(".")[0])
            if text and not (callable(value) or _is_plain_global(value)):
                yield text


def written(part: cst.CSTNode) -> Iterator[str]:
    """What is not bound anew there but written to: the mapping of `d["eps"] = 1`, the list of `n += [1]`."""
    for node in walk(part):
        if isinstance(node, cst.AugAssign) and (text := dotted(node.target)):
            yield text
        if not isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.Del):
            continue
        for target in walk(node.target):
            while isinstance(target, cst.Subscript | cst.Attribute):
                target = target.value
                if (text := dotted(target)) and text != "self":
                    yield text


def _written_by(
    source: ForwardSource, call: cst.Call, seen: frozenset[str] = frozenset()
) -> set[str]:
    """Attributes of `self` that a method of it may write; `self` if it cannot be told."""
    name = dotted(call.func)
    if name in seen or not hasattr(source.owner, name.removeprefix("self.")):
        return set()
    method = source.called(call)
    if method is None:
        return {"self"}
    found = {n for n in bound(method.function.body) if n.startswith("self.")}
    for inner in _calls(method.function.body):
        if any(dotted(a.value) == "self" for a in inner.args):
            return {"self"}
        owner = dotted(inner.func).rpartition(".")[0]
        if owner == "self":
            found |= _written_by(method, inner, seen | {name})
        elif owner.startswith("self.") and dotted(inner.func).rpartition(".")[2] not in _ONLY_READ:
            found.add(owner)
    return found


def _is_plain_global(value: object) -> bool:
    return inspect.ismodule(value) or isinstance(value, logging.Logger)


@lru_cache(maxsize=1 << 14)
def dotted(node: cst.CSTNode) -> str:
    """`self.norm.eps` of such an expression; empty for any other."""
    if isinstance(node, cst.Name):
        return node.value
    owner = dotted(node.value) if isinstance(node, cst.Attribute) else ""
    return f"{owner}.{node.attr.value}" if owner and isinstance(node, cst.Attribute) else ""


def heads(node: cst.CSTNode) -> list[cst.CSTNode]:
    """What a compound statement asks for, or runs over, before its body."""
    if isinstance(node, cst.If | cst.While):
        return [node.test]
    if isinstance(node, cst.For):
        return [node.iter]
    if isinstance(node, cst.With):
        return list(node.items)
    return [node.subject] if isinstance(node, cst.Match) else []


@lru_cache(maxsize=1 << 12)
def _calls(part: cst.CSTNode) -> tuple[cst.Call, ...]:
    """Calls in there, but those in what is raised or asserted."""
    if isinstance(part, cst.Raise | cst.Assert):
        return ()
    own = (part,) if isinstance(part, cst.Call) else ()
    return (*own, *(call for child in children(part) for call in _calls(child)))


@lru_cache(maxsize=1 << 13)
def bound(part: cst.CSTNode) -> frozenset[str]:
    """Names that are bound or written to in there, attributes by their dotted text."""
    found = set(bound_names(part))
    for node in walk(part):
        if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign):
            for inner in walk(node.target):
                if isinstance(inner, cst.Attribute) and (text := dotted(inner)):
                    found.add(text)
                    found.discard("self")
    return frozenset(found)


def updates(statement: cst.CSTNode, name: str) -> bool:
    """Does it write to what the name held, or do arithmetic on it?"""
    value = getattr(statement, "value", None)
    if isinstance(statement, cst.AugAssign | cst.Expr):  # a call binds no name
        return True
    if not isinstance(statement, cst.Assign) or not isinstance(value, _ARITHMETIC):
        return False
    return any(isinstance(n, cst.Name) and n.value == name for n in value.children)
