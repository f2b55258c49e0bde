"""Which NF functions run a mixture-of-experts block, read from its graph: what they need to be called.

What they can express at all is `rewrite.moe_calls`, from the facts that `trace.moe` reads. Here is added what a
host needs beside: where the block's input is, whether it returns one tensor, and which norm stands before it,
since `NF.moe_block_tkg` holds that norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neuron_autoport.hosts.neuron.attention_form import NotThis, Path, place_of
from neuron_autoport.hosts.neuron.callers import caller_of, module_calls
from neuron_autoport.hosts.neuron.rotation import under
from neuron_autoport.nf.enums import ActFnType
from neuron_autoport.nf.experts import Between
from neuron_autoport.port import Port, replan
from neuron_autoport.rewrite.moe_calls import ROUTER, Phase, moe_calls
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.site import Site
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.experts import ExpertsFacts
from neuron_autoport.trace.glu import Gate
from neuron_autoport.trace.moe import MoEFacts, read_blocks
from neuron_autoport.trace.ops import Op, ancestry
from neuron_autoport.trace.router import RouterFacts

_ACTIVATIONS = {"silu": ActFnType.SiLU, "gelu": ActFnType.GELU, "swish": ActFnType.Swish}
STAYS = "the router stays in torch: "
SWITCHED_OFF = "the plugin's router kernel is switched off in this release"


@dataclass(frozen=True)
class NormBefore:
    """The RMS norm whose result only the block reads. path: dotted, in the whole model. eps: its epsilon.

    fused: `Class:rule` pairs of calls that took the norm in; they must be left out for it to be a module.
    """

    path: str
    eps: float
    fused: frozenset[str]


@dataclass(frozen=True)
class BlockCall:
    """A block that is router and experts only. hidden: where its forward has the input. result: what it returns,
    True in the place of the experts' sum and None for what nobody reads."""

    hidden: Path
    result: Any


@dataclass(frozen=True, eq=False)
class MoEForm:
    """How a block calls NF.

    path: of the block in the whole model. experts: of the experts below it. known: what they are.
    scale: factor of their sum. router: what NF is told of it. call: None where the block's own code must run.
    no_router: why `NF.router` is not called in prefill, or None. norm: for decode in one call; no_decode: why
    there is none.
    """

    path: str
    class_name: str
    experts: str
    known: ExpertsFacts
    top_k: int
    scale: float
    router: RouterFacts | None
    call: BlockCall | None
    no_router: str | None
    norm: NormBefore | None
    no_decode: str | None

    @property
    def experts_path(self) -> str:
        """Of the experts module in the whole model."""
        return f"{self.path}.{self.experts}"

    @property
    def between(self) -> Between:
        """The activation, with the limits of up moved by what is added to it: that is in the bias."""
        gate = self.known.gate
        low, high = None, gate.up_limit
        if high is not None:
            low, high = gate.up_offset - high, gate.up_offset + high
        return Between(_ACTIVATIONS[gate.activation], None, gate.gate_max, low, high)


def read_forms(port: Port) -> tuple[dict[str, MoEForm], dict[str, str]]:
    """(form of each block, reason of each that has none), both by the block's path."""
    forms: dict[str, MoEForm] = {}
    reasons: dict[str, str] = {}
    for path, facts in read_blocks(port.trace).items():
        try:
            forms[path] = _form(port, path, facts)
        except NotThis as no:
            reasons[path] = str(no)
    return forms, reasons


def norms_apart(
    port: Port, rules: Iterable[Rule], sizes_fit: Callable[[ExpertsFacts], bool]
) -> Port:
    """The port with the norm before each block that decodes in one call as a call of its own.

    Where a rule took that norm into another call, the rule is left out in that class: in decode the norm is in
    the block's call. What the plan has else was planned before, and proved.

    Args:
        rules: the port was made with. sizes_fit: does the kernel take these experts?
    """
    forms, _ = read_forms(port)
    held = [f.norm for f in forms.values() if f.norm is not None and sizes_fit(f.known)]
    fused = frozenset(pair for norm in held for pair in norm.fused)
    if not fused:
        return port
    library = tuple(rules)
    before = {_site(p, s) for p in port.plans for s in p.sites}
    again = replan(port, library, port.without | fused)
    new = frozenset(
        f"{p.trace.module_class.__name__}:{s.rule.name}"
        for p in again.plans
        for s in p.sites
        if _site(p, s) not in before
    )
    return replan(port, library, port.without | fused | new) if new else again


def _site(plan: ClassPlan, site: Site) -> tuple[Any, ...]:
    return plan.trace.module_class, site.rule.name, site.span


def _form(port: Port, path: str, facts: MoEFacts) -> MoEForm:
    known, calls = facts.experts, moe_calls(facts)
    if calls.prefill.reason is not None:
        raise NotThis(calls.prefill.reason)
    assert isinstance(known, ExpertsFacts)
    if known.dense or facts.arguments is None or facts.top_k is None:
        raise NotThis("the experts run on weighted copies of all tokens")
    if facts.reach != known.experts:
        raise NotThis(
            f"the router chooses among {facts.reach}, of which {known.experts} are experts"
        )
    _check_bias(known)
    plan = port.where[path]
    call, norm = None, None
    no_router, no_decode = _stays(calls.prefill), calls.decode.reason
    try:
        call = _call(port.where, path, facts)
        norm = _norm_before(port.where, path) if no_decode is None else None
    except NotThis as no:
        no_decode = no_decode or str(no)
        if call is None:
            no_router = no_router or str(no)
    router = facts.router if isinstance(facts.router, RouterFacts) else None
    return MoEForm(
        path, plan.trace.module_class.__name__, facts.experts_path, known, facts.top_k, facts.output_scale,
        router, call, no_router, norm, no_decode,
    )  # fmt: skip


def _stays(prefill: Phase) -> str | None:
    """Why the router stays in torch; None if `NF.router` can be it."""
    if ROUTER in prefill.calls:
        return None
    return next(n.removeprefix(STAYS) for n in prefill.notes if n.startswith(STAYS))


def _check_bias(known: ExpertsFacts) -> None:
    gate: Gate = known.gate
    if gate.up_offset and known.up_bias is None:
        raise NotThis(f"{gate.up_offset:g} is added to up, and there is no bias that could hold it")


def _call(where: Mapping[str, ClassPlan], path: str, facts: MoEFacts) -> BlockCall:
    """How to stand in for the whole block.

    Raises:
        NotThis: it is more than router and experts.
    """
    plan = where[path]
    if facts.shared is not None:
        raise NotThis("the block adds a shared expert in its own code")
    if any(site.weights for site in plan.sites):
        raise NotThis("a part of the block is in another fused call")
    experts = next(op for op in module_calls(plan) if op.target == facts.experts_path)
    rows = under(experts.inputs[0]) if experts.inputs else None
    if rows is None or rows.name != "input":
        raise NotThis("the experts do not read the block's input itself")
    held = [i for i, out in enumerate(plan.graph.outputs) if experts in ancestry(out)]
    leaves, spec = pytree.tree_flatten(plan.trace.result)
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if len(held) != 1 or len(tensors) != len(plan.graph.outputs):
        raise NotThis("it is not known which of the block's results is the experts' sum")
    at = tensors[held[0]]
    if len(leaves) > 1:
        _check_unread(*caller_of(where, path), at)
    marked = [True if i == at else None for i in range(len(leaves))]
    return BlockCall(place_of(plan, rows), pytree.tree_unflatten(marked, spec))


def _check_unread(owner: str, plan: ClassPlan, call: Op, at: int) -> None:
    """Refuse if the caller reads another result of the block than the one."""
    read = {o for op in plan.graph.ops for o in op.operands()} | set(plan.graph.outputs)
    parts = [op for op in plan.graph.ops if op.name == "getitem" and op.inputs[0] is call]
    if call in read - {p.inputs[0] for p in parts} or any(
        part in read and part.attrs["key"] != str(at) for part in parts
    ):
        raise NotThis(f"{owner} reads more of the block's results than the experts' sum")


def _norm_before(where: Mapping[str, ClassPlan], path: str) -> NormBefore:
    """The norm that the caller of a block runs just before it, and only for it."""
    return _norm_of(where, *caller_of(where, path))


def _norm_of(where: Mapping[str, ClassPlan], owner: str, plan: ClassPlan, call: Op) -> NormBefore:
    norm = call.inputs[0] if call.inputs else None
    if not isinstance(norm, Op) or norm.name != "module":
        raise NotThis("NF.moe_block_tkg holds an RMS norm, and none stands just before the block")
    path = f"{owner}.{norm.target}"
    inner = where.get(path)
    sites = inner.sites if inner is not None else ()
    if len(sites) != 1 or sites[0].rule.role != "rms_norm":
        raise NotThis(
            f"NF.moe_block_tkg holds an RMS norm, and {norm.label} before the block is none"
        )
    readers = [op for op in plan.graph.ops if any(o is norm for o in op.operands())]
    if readers != [call] or any(out is norm for out in plan.graph.outputs):
        raise NotThis(
            f"NF.moe_block_tkg holds the norm before the block, and more reads {norm.label}"
        )
    eps = sites[0].match.values.get("eps")
    if not isinstance(eps, int | float):
        raise NotThis(f"the epsilon of {norm.label} is not a number")
    name = plan.trace.module_class.__name__
    fused = frozenset(f"{name}:{s.rule.name}" for s in plan.sites if norm in s.match.interior)
    return NormBefore(path, float(eps), fused)
