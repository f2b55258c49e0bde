"""After a function was specialised: dead assignments, unread parameters and annotations go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import libcst as cst

from neuron_autoport.export.syntax import code
from neuron_autoport.rewrite.names import walk

# Names an annotation may use without an import; the file imports torch and nn anyway.
ANNOTATIONS = frozenset(
    {
        "torch",
        "nn",
        "Tensor",
        "LongTensor",
        "FloatTensor",
        "BoolTensor",
        "IntTensor",
        "dtype",
        "Module",
    }
    | {"tuple", "list", "dict", "int", "float", "bool", "str", "None", "set", "device", "Size"}
)


def tidy(
    function: cst.FunctionDef,
    always: Iterable[str] = (),
    types: Iterable[str] = (),
    constants: Iterable[str] = (),
) -> cst.FunctionDef:
    """The function without what nobody reads, decorators and foreign annotations.

    Args:
        always: parameters that stay even if unread. types: names annotations may use.
        constants: parameters whose value is put in already.
    """
    function = _without_dead(function)
    function = clean_header(function, types)
    unread = {name for name in constants if _bound_first(function, name)}
    return _parameters(function, set(always), unread)


def _bound_first(function: cst.FunctionDef, name: str) -> bool:
    """Is a name given a value before anything reads it?"""
    for statement in function.body.body:
        if name in read_names(statement):
            return False
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if isinstance(small, cst.Assign) and any(name in _targets(t.target) for t in small.targets):
            return True
        if any(isinstance(n, cst.Name) and n.value == name for n in walk(statement)):
            return False
    return True


def clean_header(function: cst.FunctionDef, types: Iterable[str] = ()) -> cst.FunctionDef:
    """Without decorators of transformers and without annotations that name anything but torch."""
    known = ANNOTATIONS | set(types)
    kept = [d for d in function.decorators if code(d.decorator) in _DECORATORS]
    returns = function.returns
    if returns is not None and not _plain(returns, known):
        returns = None
    bare = function.with_changes(decorators=kept, returns=returns).visit(_Annotations(known))
    assert isinstance(bare, cst.FunctionDef)
    return bare


_DECORATORS = frozenset({"staticmethod", "classmethod", "property", "torch.no_grad()"})


def read_names(node: cst.CSTNode) -> set[str]:
    """Names that are read in a piece of source; attribute names and keywords are none."""
    reader = _Reader()
    node.visit(reader)
    return reader.read


def parameter_names(function: cst.FunctionDef) -> list[str]:
    """Its plain parameters in order, without self."""
    params = function.params
    listed = [*params.posonly_params, *params.params, *params.kwonly_params]
    return [p.name.value for p in listed if p.name.value != "self"]


class _Reader(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_AssignTarget(self, node: cst.AssignTarget) -> bool:
        self._target(node.target)
        return False

    def _target(self, target: Any) -> None:
        """What a target reads: `x[i] = y` and `x.a = y` write into x and read the index."""
        if isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._target(element.value)
        elif isinstance(target, cst.Subscript):
            for part in target.slice:
                part.visit(self)
            if not isinstance(target.value, cst.Name):
                target.value.visit(self)
        elif isinstance(target, cst.Attribute):
            target.value.visit(self)

    def visit_Param(self, node: cst.Param) -> bool:
        if node.default is not None:
            node.default.visit(self)
        return False

    def visit_Annotation(self, node: cst.Annotation) -> bool:
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.read.add(node.value)


def _without_dead(function: cst.FunctionDef) -> cst.FunctionDef:
    while True:
        read = read_names(function.body)
        changed = function.visit(_Dead(read))
        assert isinstance(changed, cst.FunctionDef)
        if changed.deep_equals(function):
            return changed
        function = changed


class _Dead(cst.CSTTransformer):
    """Takes out assignments to names nobody reads, where the value has no effect."""

    def __init__(self, read: set[str]) -> None:
        super().__init__()
        self.read = read

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: Any) -> Any:
        if len(updated_node.body) != 1 or not isinstance(updated_node.body[0], cst.Assign):
            return updated_node
        assign = updated_node.body[0]
        names = [n for t in assign.targets for n in _targets(t.target)]
        if None in names or any(n in self.read for n in names) or _has_effect(assign.value):
            return self._unnamed(updated_node, assign)
        return cst.RemovalSentinel.REMOVE

    def _unnamed(self, line: Any, assign: cst.Assign) -> Any:
        """`x, unread = f()` as `x, _ = f()`."""
        target = assign.targets[0].target
        if not isinstance(target, cst.Tuple):
            return line
        elements = [
            e.with_changes(value=cst.Name("_"))
            if isinstance(e.value, cst.Name) and e.value.value not in self.read
            else e
            for e in target.elements
        ]
        new = assign.targets[0].with_changes(target=target.with_changes(elements=elements))
        changed = assign.with_changes(targets=[new, *assign.targets[1:]])
        return line.with_changes(body=[changed])

    def leave_IndentedBlock(self, original_node: Any, updated_node: Any) -> Any:
        if updated_node.body:
            return updated_node
        return updated_node.with_changes(body=[cst.SimpleStatementLine([cst.Pass()])])

    def leave_For(self, original_node: Any, updated_node: Any) -> Any:
        return cst.RemovalSentinel.REMOVE if _nothing(updated_node.body) else updated_node

    def leave_If(self, original_node: Any, updated_node: Any) -> Any:
        gone = _nothing(updated_node.body) and updated_node.orelse is None
        return cst.RemovalSentinel.REMOVE if gone else updated_node


def _nothing(block: Any) -> bool:
    return all(
        isinstance(line, cst.SimpleStatementLine)
        and all(isinstance(small, cst.Pass) for small in line.body)
        for line in block.body
    )


def _targets(target: Any) -> list[str | None]:
    """Names a target binds or writes into; None stands for anything else."""
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, cst.Tuple | cst.List):
        return [n for e in target.elements for n in _targets(e.value)]
    if isinstance(target, cst.Subscript) and isinstance(target.value, cst.Name):
        return [target.value.value]
    return [None]


def _has_effect(value: cst.BaseExpression) -> bool:
    """Might computing a value change something? Methods ending in `_` work in place."""
    for node in walk(value):
        if isinstance(node, cst.NamedExpr | cst.Await | cst.Yield):
            return True
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            name = node.func.attr.value
            if name.endswith("_") or name in ("update", "pop", "append"):
                return True
    return False


class _Annotations(cst.CSTTransformer):
    def __init__(self, known: frozenset[str]) -> None:
        super().__init__()
        self.known = known

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> Any:
        note = updated_node.annotation
        if note is None or _plain(note, self.known):
            return updated_node
        tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        equal = tight if updated_node.default is not None else cst.MaybeSentinel.DEFAULT
        return updated_node.with_changes(annotation=None, equal=equal)

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> Any:
        if _plain(updated_node.annotation, self.known) or updated_node.value is None:
            return updated_node
        return cst.Assign([cst.AssignTarget(updated_node.target)], updated_node.value)


def _plain(note: cst.Annotation, known: frozenset[str]) -> bool:
    names = {n.value for n in walk(note) if isinstance(n, cst.Name)}
    return names <= known and not any(isinstance(n, cst.SimpleString) for n in walk(note))


def _parameters(function: cst.FunctionDef, always: set[str], unread: set[str]) -> cst.FunctionDef:
    read = (read_names(function.body) - unread) | always | {"self"}
    params = function.params
    more = params.star_kwarg
    kept = more if more is not None and more.name.value in read else None
    new = params.with_changes(
        params=[p for p in params.params if p.name.value in read],
        kwonly_params=[p for p in params.kwonly_params if p.name.value in read],
        star_kwarg=kept,
    )
    if not new.kwonly_params and isinstance(new.star_arg, cst.ParamStar):
        new = new.with_changes(star_arg=cst.MaybeSentinel.DEFAULT)
    several = len(new.params) + len(new.kwonly_params) + (kept is not None) > 1
    if not several or not function.whitespace_before_params.empty:
        return function.with_changes(params=_settle_commas(new, function))
    return function.with_changes(params=new)


def _settle_commas(params: cst.Parameters, function: cst.FunctionDef) -> cst.Parameters:
    """The last parameter's comma and white space as the last one had it."""
    before = function.params
    last = before.star_kwarg or (*before.params, *before.kwonly_params)[-1]
    if params.star_kwarg is not None:
        return params
    name = "kwonly_params" if params.kwonly_params else "params"
    listed = list(getattr(params, name))
    comma, space = last.comma, last.whitespace_after_param
    listed[-1] = listed[-1].with_changes(comma=comma, whitespace_after_param=space)
    return params.with_changes(**{name: listed})
