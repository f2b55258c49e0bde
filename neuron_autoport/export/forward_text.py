"""The forward of an exported class: the rewritten source, summed over ranks, for the runner's calls only."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import libcst as cst
from transformers.utils import ModelOutput

from neuron_autoport.export.class_facts import ClassFacts
from neuron_autoport.export.expressions import OUTPUT, Callee, Setting
from neuron_autoport.export.fused_text import fused_statements
from neuron_autoport.export.known import Known
from neuron_autoport.export.record import PLAIN, VARYING
from neuron_autoport.export.specialise import specialise
from neuron_autoport.export.syntax import calls, code, parsed_function
from neuron_autoport.export.tidy import parameter_names, tidy

BACKBONE_ARGUMENTS = ("input_ids", "position_ids")
EXPERTS_FORWARD = """
def forward(self, hidden_states, top_k_index, top_k_weights):
    # autoport: experts
    return {call}
"""


class ForwardText:
    """Writes the forward of one class.

    callees: of the classes that are written already. used: names of the runtime it calls; filled. callee:
    what callers must know of it.
    """

    def __init__(
        self, facts: ClassFacts, types: frozenset[str], callees: Mapping[type, Callee]
    ) -> None:
        self.facts, self.types, self.known_callees = facts, types, callees
        self.used: set[str] = set()
        self.callee: Callee | None = None

    def write(self) -> cst.FunctionDef:
        """The method."""
        facts = self.facts
        if facts.is_experts:
            self.used.add("experts")
            call = "experts(self, hidden_states, top_k_index, top_k_weights)"
            call = f"self.tp.all_reduce({call})" if facts.shared else call
            text = EXPERTS_FORWARD.format(call=call)
            return self._done(parsed_function(text), specialised=False)
        return self._done(self._source(), specialised=True)

    def _source(self) -> cst.FunctionDef:
        """The forward to start from: rewritten where there is a plan."""
        facts = self.facts
        new = facts.plan.new_source() if facts.plan is not None else None
        if new is None:
            found = facts.methods.get("forward")
            if found is None:
                return self._inherited()
            return found
        assert facts.plan is not None
        made = parsed_function(new)
        if facts.shared:
            rows = {w.attr for s in facts.plan.sites for w in s.weights if w.shard == "row"}
            summed = made.visit(_Summed(rows))
            assert isinstance(summed, cst.FunctionDef)
            made = summed
        forms = facts.fused_forms()
        if not forms:
            return made
        assert facts.calls is not None
        given = list(facts.calls.parameters)
        statements = []
        for condition, form in forms.items():
            for name, text in fused_statements(form, given, facts.shared, condition):
                self.used.add(name)
                statements.append(cst.parse_statement(text))
        if not statements:
            return made
        at = 1 if made.get_docstring() else 0
        first = made.body.body[at]
        if hasattr(first, "leading_lines"):
            space = cst.EmptyLine(indent=False)
            first = first.with_changes(leading_lines=[space, *first.leading_lines])
        body = [*made.body.body[:at], *statements, first, *made.body.body[at + 1 :]]
        return made.with_changes(body=made.body.with_changes(body=body))

    def _inherited(self) -> cst.FunctionDef:
        facts = self.facts
        forward = inspect.unwrap(facts.cls.forward)
        return parsed_function(inspect.getsource(forward), facts.cls.__name__)

    def _done(self, function: cst.FunctionDef, specialised: bool) -> cst.FunctionDef:
        facts, always = self.facts, list[str]()
        if facts.cls is type(facts.subject.recorded.base):
            always = list(BACKBONE_ARGUMENTS)
            if function.get_docstring() is not None:  # of arguments that the runner does not give
                body = function.body.with_changes(body=function.body.body[1:])
                function = function.with_changes(body=body)
        if specialised:
            setting = self._setting()
            function = specialise(function, setting)
            function = tidy(function, always, self.types, setting.constants)
        kept = frozenset(parameter_names(function))
        upstream = tuple(facts.calls.parameters) if facts.calls else tuple(kept)
        if facts.is_experts:
            kept = frozenset(upstream)
        more = function.params.star_kwarg is not None
        self.callee = Callee(upstream, kept, more)
        if calls(function, "attention"):
            self.used.add("attention")
        return function

    def _setting(self) -> Setting:
        facts, recorded = self.facts, self.facts.calls
        arguments = dict(recorded.arguments) if recorded is not None else {}
        constants = {n: v for n, v in arguments.items() if isinstance(v, PLAIN)}
        more = frozenset(
            n for n, v in (recorded.more if recorded else {}).items() if not isinstance(v, PLAIN)
        )
        known = {n: v for n, v in arguments.items() if v is not VARYING}
        outputs = {
            n: OUTPUT
            for n, v in facts.space.items()
            if isinstance(v, type) and issubclass(v, ModelOutput)
        }
        return Setting(
            Known(known, facts.modules),
            constants,
            self._callees(),
            outputs,
            frozenset(facts.logs()),
            more,
        )

    def _callees(self) -> dict[str, Callee]:
        """What calls of this class's children keep, by the source of what is called."""
        found: dict[str, Callee | None] = {}
        facts = self.facts
        for module in facts.modules:
            for path, child in module.named_modules():
                callee = self.known_callees.get(type(child))
                if not path or callee is None:
                    continue
                *owner, last = path.split(".")
                name = ".".join(["self", *owner] if last.isdigit() else ["self", *owner, last])
                known = found.setdefault(name, callee)
                if known is not None and known != callee:
                    found[name] = None
        return {n: c for n, c in found.items() if c is not None}


class _Summed(cst.CSTTransformer):
    """Sums what a row-parallel product gives over the ranks."""

    def __init__(self, rows: set[str]) -> None:
        super().__init__()
        self.weights = {f"self.{row}_weight" for row in rows}

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        is_nf = code(updated_node.func).startswith("NF.")
        if not is_nf or not any(code(a.value) in self.weights for a in updated_node.args):
            return updated_node
        return cst.Call(cst.parse_expression("self.tp.all_reduce"), [cst.Arg(updated_node)])
