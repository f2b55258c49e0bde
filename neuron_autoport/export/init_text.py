"""The `__init__` of an exported class: upstream's, and what it declares of fused weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import libcst as cst
from torch import nn

from neuron_autoport.export.class_facts import ClassFacts
from neuron_autoport.export.record import PLAIN
from neuron_autoport.export.syntax import code, own_names, parsed_function, with_comments
from neuron_autoport.export.tidy import clean_header
from neuron_autoport.export.weights_text import quoted, weight_lines

_INHERITED = "def __init__(self, *args, **kwargs):\n    super().__init__(*args, **kwargs)\n"


class InitText:
    """Writes the `__init__` of one class.

    used: names of the runtime that its lines call; filled. renamed: torch's classes that are rewritten, by
    the name upstream has for them.
    """

    def __init__(
        self, facts: ClassFacts, types: frozenset[str], renamed: dict[str, str], is_base: bool
    ) -> None:
        self.facts, self.types, self.renamed, self.is_base = facts, types, renamed, is_base
        self.used: set[str] = set()

    def write(self, others: Iterable[cst.FunctionDef]) -> cst.FunctionDef | None:
        """The method, or None if the class has none of its own.

        Args:
            others: the exported methods, whose attributes must be set.
        """
        lines = self._lines()
        method = self.facts.methods.get("__init__")
        if method is None and not lines:
            return None
        method = clean_header(method or parsed_function(_INHERITED), self.types)
        for change in (_Silent(self.facts.logs()), _Renamed(self.renamed)):
            changed = method.visit(change)
            assert isinstance(changed, cst.FunctionDef)
            method = changed
        read = {"rope_type", "original_max_seq_len", "config"} | own_names(method, stored=False)
        read = read.union(*(own_names(other) for other in others))
        kept = [s for s in method.body.body if not self._is_dropped(s, read)]
        added = [cst.parse_statement(line) for line in with_comments(lines)]
        return method.with_changes(body=method.body.with_changes(body=[*kept, *added]))

    def _is_dropped(self, statement: Any, read: set[str]) -> bool:
        """`self.post_init()`, and plain attributes that nothing reads."""
        if not isinstance(statement, cst.SimpleStatementLine):
            return False
        small = statement.body[0]
        if isinstance(small, cst.Assign) and len(small.targets) == 1:
            target = small.targets[0].target
            if isinstance(target, cst.Attribute) and code(target.value) == "self":
                return self._is_unread(target.attr.value, read)
        value = getattr(statement.body[0], "value", None)
        if not isinstance(value, cst.Call):
            return False
        return code(value.func) == "self.post_init"

    def _is_unread(self, name: str, read: set[str]) -> bool:
        """Does an attribute have neither readers nor weights, in every module of the class?"""
        if name in read or not self.facts.modules or self.is_base:
            return False
        values = [getattr(m, name, None) for m in self.facts.modules]
        return all(
            isinstance(v, PLAIN) or (isinstance(v, nn.Module) and not v.state_dict())
            for v in values
        )

    def _lines(self) -> list[str]:
        facts, lines = self.facts, list[str]()
        use = self.used.add
        if facts.shared:
            lines.append("self.tp = tensor_parallel()")
            use("tensor_parallel")
        if facts.is_experts:
            lines += self._experts_lines()
        if facts.plan is None:
            return lines
        fused = weight_lines(facts.plan, facts.modules[0], facts.shared)
        lines += fused
        for name in ("fuse", "columns", "every"):
            if any(f"{name}(" in line for line in fused):
                use(name)
        forms = facts.fused_forms()
        for op in facts.plan.graph.ops if facts.shared else ():
            sinks = op.attrs.get("s_aux") if op.name == "attention" else None
            if sinks is not None and sinks.name == "param":
                lines.append(f"shard_heads(self, {quoted(sinks.target)})")
                use("shard_heads")
        norms = {form.norm for form in forms.values() if form.norm is not None}
        for norm in sorted(norms, key=str):
            names = f"{quoted(norm.query)}, {quoted(norm.key)}"
            lines.append(f"head_norms(self, {names}, eps={norm.eps!r})")
            use("head_norms")
        return lines

    def _experts_lines(self) -> list[str]:
        module = self.facts.modules[0]
        names = ("has_gate", "has_bias", "is_transposed", "is_concatenated")
        self.used.add("share_experts")
        return [
            "# autoport: experts",
            *(f"self.{n} = {getattr(module, n)!r}" for n in names),
            f"share_experts(self, shared={self.facts.shared})",
        ]


class _Silent(cst.CSTTransformer):
    """Takes messages to loggers out, wherever they stand."""

    def __init__(self, logs: set[str]) -> None:
        super().__init__()
        self.logs = logs

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: Any) -> Any:
        value = getattr(updated_node.body[0], "value", None)
        if isinstance(value, cst.Call) and code(value.func).partition(".")[0] in self.logs:
            return cst.RemovalSentinel.REMOVE
        return updated_node

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        gone = not updated_node.body.body and updated_node.orelse is None
        return cst.RemovalSentinel.REMOVE if gone else updated_node


class _Renamed(cst.CSTTransformer):
    """Makes modules of torch's classes with the rewritten ones."""

    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        self.names = names

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        new = self.names.get(code(original_node.func))
        return updated_node if new is None else updated_node.with_changes(func=cst.Name(new))
