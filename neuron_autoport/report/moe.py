"""Mixture-of-experts blocks in the report: what was read, what it becomes on Neuron, what vLLM's engine runs."""

from __future__ import annotations

from collections.abc import Callable

from neuron_autoport.hosts.vllm.moe_limits import refusal
from neuron_autoport.report import schema as s
from neuron_autoport.rewrite.moe_calls import moe_calls
from neuron_autoport.rewrite.reasons import CODES
from neuron_autoport.trace.experts import ExpertsFacts
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.moe import SharedFacts, read_moe
from neuron_autoport.trace.router import RouterFacts
from neuron_autoport.trace.routing import UnknownRouting
from neuron_autoport.trace.spans import Span

VLLM_LAYER = "its fused MoE layer"


def moe_info(trace: ModuleTrace, tp: int, place: Callable[[Span], s.Place]) -> s.MoEInfo | None:
    """The block a traced class is, or None if it calls no experts.

    Args:
        tp: ranks the limits are judged for. place: a span as the report names it.
    """
    facts = read_moe(trace)
    if facts is None:
        return None
    calls = moe_calls(facts, tp)
    refused = refusal(facts, ranks=tp)
    return s.MoEInfo(
        router=_summary(facts.router),
        experts=_summary(facts.experts),
        shared=_summary(facts.shared) if facts.shared is not None else None,
        unread=[
            s.Unread(
                part=part,
                code=reason.code,
                meaning=CODES.get(reason.code, ""),
                message=reason.message,
                place=place(reason.span) if reason.span is not None else None,
            )
            for part, reason in facts.unread()
        ],
        prefill=calls.prefill.summary(),
        decode=calls.decode.summary(),
        vllm=VLLM_LAYER if refused is None else f"transformers' experts: {refused}",
    )


def _summary(part: RouterFacts | ExpertsFacts | SharedFacts | UnknownRouting) -> str | None:
    return None if isinstance(part, UnknownRouting) else part.summary()
