"""What a report says of the logits and of the proof."""

from __future__ import annotations

from neuron_autoport.pipeline import ProvedPort
from neuron_autoport.prove.compare import Comparison
from neuron_autoport.report import schema as s
from neuron_autoport.trace.head import UnknownHead, read_head
from neuron_autoport.trace.module_trace import ModuleTrace


def head_info(trace: ModuleTrace) -> s.HeadInfo:
    """What stands between the last hidden state and the logits, or why it is not known."""
    try:
        head = read_head(trace)
    except UnknownHead as reason:
        return unknown_head(str(reason))
    return s.HeadInfo(
        scale=head.scale,
        soft_cap=head.soft_cap,
        scale_after_cap=head.scale_after_cap,
        module=head.module,
        unknown=None,
    )


def unknown_head(why: str) -> s.HeadInfo:
    """No formula, and the reason."""
    return s.HeadInfo(scale=None, soft_cap=None, scale_after_cap=None, module=None, unknown=why)


def proof_info(proved: ProvedPort) -> s.ProofInfo:
    """The figures of a proof."""
    proof = proved.proof
    return s.ProofInfo(
        how=proof.how,
        from_cache=proved.from_cache,
        classes=[
            s.ClassProof(
                class_name=m.class_name,
                path=m.path,
                fp32=_figures(m.fp32),
                bf16=_figures(m.bf16),
                error=m.error,
                no_bf16=m.no_bf16,
                passed=m.passed,
            )
            for m in proof.modules
        ],
        logits=_figures(proof.logits),
        dropped=[
            s.DroppedInfo(class_name=d.class_name, rule=d.rule, code=d.code, figures=d.figures)
            for d in proof.dropped
        ],
    )


def _figures(found: Comparison | None) -> s.Figures | None:
    if found is None:
        return None
    return s.Figures(original=found.original, rewritten=found.rewritten, passed=found.passed)
