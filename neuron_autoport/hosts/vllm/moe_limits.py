"""Which experts vLLM's fused MoE layer can run, decided from the facts of the graph; imports nothing of vLLM.

The figures are those of vLLM 0.32: its activations, and the sizes its CPU kernel takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_autoport.trace.experts import ExpertsFacts
from neuron_autoport.trace.moe import MoEFacts
from neuron_autoport.trace.routing import UnknownRouting

# What vLLM's `swigluoai` has built in: (up + 1) * gate * sigmoid(1.702 gate), both clamped at 7.
_SWIGLU_OAI = (1.702, 7.0, 7.0, 1.0)
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_tanh"}
_UNGATED = {
    "silu": "silu_no_mul", "gelu": "gelu_no_mul", "gelu_tanh": "gelu_tanh_no_mul",
    "relu2": "relu2_no_mul",
}  # fmt: skip
_CPU_ALIGNMENT = 32


@dataclass(frozen=True)
class Activation:
    """What vLLM's layer is told of the function between the two products.

    name: vLLM's. interleaved: gate and up in turn. limit: of `swiglu_limit`: the gate's upper limit, and |up|'s.
    gated: False for an activation of one product. on_cpu: vLLM's CPU kernels have it.
    """

    name: str
    interleaved: bool = False
    limit: float | None = None
    gated: bool = True

    @property
    def on_cpu(self) -> bool:
        return self.gated and self.limit is None


def activation_of(facts: ExpertsFacts) -> Activation | str:
    """vLLM's form of the activation, or why its layer has none."""
    gate = facts.gate
    if not gate.gated:
        if gate.activation in _UNGATED:
            return Activation(_UNGATED[gate.activation], gated=False)
        return f"vLLM's fused experts have no `{gate.summary()}`"
    if gate.plain and gate.activation in _ACTIVATIONS:
        return Activation(_ACTIVATIONS[gate.activation])
    clamped = (gate.alpha, gate.gate_max, gate.up_limit, gate.up_offset)
    if gate.activation == "swish" and clamped == _SWIGLU_OAI:
        return Activation("swigluoai", interleaved=True)
    limit = gate.gate_max
    if gate.activation == "silu" and limit and clamped == (1.0, limit, limit, 0.0):
        return Activation("silu", limit=limit)
    return f"vLLM's fused experts have no `{gate.summary()}`"


def few_rows(facts: MoEFacts) -> int | None:
    """How many rows per token are not zero in what dense experts are given; None if that is not known.

    The router multiplies a copy of all tokens for each expert by its weight, which is zero but for the chosen
    ones. An expert without biases, whose gate or activation is zero at zero, makes zeros of zeros.
    """
    known, router = facts.experts, facts.router
    if not isinstance(known, ExpertsFacts) or isinstance(router, UnknownRouting):
        return None
    zero = known.gate.activation in (*_ACTIVATIONS, *_UNGATED) and known.gate.plain
    biased = known.up_bias is not None or known.down_bias is not None
    whole = router.weights_on == "input" and router.experts == known.experts
    return router.top_k if known.dense and whole and zero and not biased else None


def refusal(
    facts: MoEFacts, *, ranks: int = 1, cpu: bool = True, quantized: bool = False
) -> str | None:
    """Why vLLM's layer cannot run these experts, or None if it can.

    Args:
        ranks: among which the columns of one expert are shared. cpu: on vLLM's CPU engine.
        quantized: the checkpoint is.
    """
    known = facts.experts
    if not isinstance(known, ExpertsFacts):
        return f"the experts are not understood: {known.message}"
    dense = known.dense or facts.arguments is None
    if dense and few_rows(facts) is None:
        return "every expert runs on every token, which vLLM's layer does not do"
    if not dense and facts.reach is None:
        return "it is not known which indices the router can give"
    if not dense and facts.reach != known.experts:
        return f"the router chooses among {facts.reach}, of which {known.experts} are experts"
    activation = activation_of(known)
    if isinstance(activation, str):
        return activation
    if quantized and (known.gate.order != "gate_up" or known.layout != "out_in"):
        return "quantized experts are loaded by vLLM, which knows one layout of them"
    if known.intermediate % ranks:
        return f"{known.intermediate} columns of an expert cannot be shared by {ranks} ranks"
    if not cpu:
        return None
    if not activation.on_cpu:
        return f"vLLM's CPU kernels have no `{known.gate.summary()}`"
    if known.hidden % _CPU_ALIGNMENT:
        return f"vLLM's CPU kernel needs a hidden size that is a multiple of {_CPU_ALIGNMENT}"
    columns = known.intermediate // ranks
    if activation.interleaved and columns % _CPU_ALIGNMENT:  # it pads other activations itself
        return f"vLLM's CPU kernel needs a multiple of {_CPU_ALIGNMENT} columns, here {columns}"
    return None
