"""Expressions of a forward with what is known put in, and without arguments that nobody reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from neuron_autoport.export.known import Known
from neuron_autoport.export.record import SOMETHING, VARYING
from neuron_autoport.export.syntax import code

# What the attention of the runtime takes beside query, key and value.
ATTENTION_ARGUMENTS = ("scaling", "softcap", "s_aux")
# The field of transformers' outputs that an exported model returns in their place.
OUTPUT = "last_hidden_state"


@dataclass(frozen=True)
class Callee:
    """A module that is called: names of its parameters in order, and those that its exported form keeps."""

    parameters: tuple[str, ...]
    kept: frozenset[str]
    takes_more: bool = False


@dataclass
class Setting:
    """What is fixed about one function.

    constants: parameters that always have one plain value. callees: by the source of what is called.
    outputs: names of classes of transformers' outputs, with the field that is wanted of each.
    logs: names of loggers. more: what varies of the arguments that reach it by `**kwargs`.
    """

    known: Known
    constants: dict[str, Any]
    callees: Mapping[str, Callee]
    outputs: Mapping[str, str] = field(default_factory=dict)
    logs: frozenset[str] = frozenset()
    more: frozenset[str] = frozenset()
    attention: set[str] = field(default_factory=set)
    var_keyword: str = ""
    loops: dict[str, str] = field(default_factory=dict)


class Expressions(cst.CSTTransformer):
    """Puts constants in, settles conditional expressions, and takes out arguments nobody reads."""

    def __init__(self, setting: Setting, known: Known) -> None:
        super().__init__()
        self.setting, self.known = setting, known

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: Any) -> Any:
        if original_node.attr.value == OUTPUT:  # the exported module returns it alone
            return updated_node.value
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_AssignTarget(self, original_node: Any, updated_node: Any) -> Any:
        return original_node if isinstance(original_node.target, cst.Name) else updated_node

    def leave_NamedExpr(self, original_node: cst.NamedExpr, updated_node: Any) -> Any:
        return updated_node.with_changes(target=original_node.target)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        name = original_node.value
        constants = self.setting.constants
        if name not in constants or self.known.values.get(name, VARYING) is VARYING:
            return updated_node
        if constants[name] is SOMETHING or self.known.values[name] != constants[name]:
            return updated_node
        return cst.parse_expression(repr(constants[name]))

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> Any:
        value = self.known.value(code(original_node.test))
        if value is VARYING or value is SOMETHING:
            return updated_node
        return updated_node.body if value else updated_node.orelse

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Any:
        function = code(original_node.func)
        if function in self.setting.attention:
            return _attention(updated_node)
        callee = self.setting.callees.get(self.setting.loops.get(function, function))
        if callee is None:
            return self._without_more(updated_node)
        return self._for(updated_node, callee)

    def _without_more(self, call: cst.Call) -> cst.Call:
        kept = [a for a in call.args if not self._is_more(a)]
        return call if len(kept) == len(call.args) else _with_args(call, kept)

    def _is_more(self, arg: cst.Arg) -> bool:
        return arg.star == "**" and code(arg.value) == self.setting.var_keyword

    def _for(self, call: cst.Call, callee: Callee) -> cst.Call:
        kept = []
        for place, arg in enumerate(call.args):
            if arg.star:
                wanted = callee.takes_more or self.setting.more & callee.kept
                if wanted or not self._is_more(arg):
                    kept.append(arg)
                continue
            name = arg.keyword.value if arg.keyword else (*callee.parameters, *[""] * 9)[place]
            if name in callee.kept or (callee.takes_more and name not in callee.parameters):
                kept.append(arg)
        return call if len(kept) == len(call.args) else _with_args(call, kept)


def _attention(call: cst.Call) -> cst.Call:
    """A call of the attention interface as one of the runtime's `attention`."""
    kept = [a for a in call.args[:4] if a.keyword is None and not a.star]
    kept += [a for a in call.args if a.keyword and a.keyword.value in ATTENTION_ARGUMENTS]
    kept += [a for a in call.args if a.keyword and a.keyword.value in ("query", "key", "value")]
    return _with_args(call.with_changes(func=cst.Name("attention")), kept)


def _with_args(call: cst.Call, kept: Iterable[cst.Arg]) -> cst.Call:
    """The call with these arguments; one that stood over several lines keeps its last comma."""
    args = list(kept)
    if not args:
        return call.with_changes(args=[], whitespace_before_args=cst.SimpleWhitespace(""))
    last = call.args[-1]
    args[-1] = args[-1].with_changes(
        comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
    )
    return call.with_changes(args=args)
