"""Which experts vLLM's fused MoE layer can run, decided from the facts of the graph; imports nothing of vLLM.

The figures are those of vLLM 0.32: its activations, and the sizes its CPU kernel takes.
"""

from __future__ import annotations

from neuron_autoport.trace.experts import ExpertsFacts
from neuron_autoport.trace.moe import MoEFacts

# What vLLM's `swigluoai` has built in: (up + 1) * gate * sigmoid(1.702 gate), both clamped at 7.
_SWIGLU_OAI = (1.702, 7.0, 7.0, 1.0)
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_tanh"}
_CPU_ALIGNMENT = 32


def activation_of(facts: ExpertsFacts) -> tuple[str, bool] | str:
    """(vLLM's name of the activation, gate and up in turn), or why vLLM's layer has none."""
    gate = facts.gate
    if not gate.gated:
        return f"vLLM's fused experts have a gate, these are {gate.activation} of one product"
    if gate.plain and gate.activation in _ACTIVATIONS:
        return _ACTIVATIONS[gate.activation], False
    clamped = (gate.alpha, gate.gate_max, gate.up_limit, gate.up_offset)
    if gate.activation == "swish" and clamped == _SWIGLU_OAI:
        return "swigluoai", True
    return f"vLLM's fused experts have no `{gate.summary()}`"


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
    if known.dense or facts.arguments is None:
        return "every expert runs on every token, which vLLM's layer does not do"
    if facts.reach is None:
        return "it is not known which indices the router can give"
    if facts.reach != known.experts:
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
    if known.hidden % _CPU_ALIGNMENT:
        return f"vLLM's CPU kernel needs a hidden size that is a multiple of {_CPU_ALIGNMENT}"
    columns = known.intermediate // ranks
    if activation[1] and columns % _CPU_ALIGNMENT:  # it pads other activations itself
        return f"vLLM's CPU kernel needs a multiple of {_CPU_ALIGNMENT} columns, here {columns}"
    return None
