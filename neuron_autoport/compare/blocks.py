"""What the branches beside attention do: gated or not, activation, sizes, router, experts."""

from __future__ import annotations

from neuron_autoport.compare.flat import Flat, bare, down_to_linears, linear
from neuron_autoport.compare.stream import Branch
from neuron_autoport.trace.canonical import ACTIVATIONS
from neuron_autoport.trace.moe import MoEFacts
from neuron_autoport.trace.ops import Op


def mlp_values(branch: Branch) -> dict[str, str]:
    """Form, activation, sizes and biases of a branch that is an MLP."""
    low = branch.base.index
    down = linear(branch.core)
    if down is None:
        return {"mlp.form": "not understood"}
    path = list(down_to_linears(list(branch.core.inputs), low))
    maps = [facts for op in path if (facts := linear(op)) is not None]
    acts = list(dict.fromkeys(op.name for op in path if op.name in ACTIVATIONS))
    gated = any(_multiplies(op) for op in path)
    packed = gated and len(maps) == 1
    form = ("gated, packed" if packed else "gated") if gated else "not gated"
    inputs = maps[0].in_features if maps else down.in_features
    biased = ["up"] * any(m.bias for m in maps) + ["down"] * bool(down.bias)
    return {
        "mlp.form": form,
        "mlp.activation": ", ".join(acts) or "none",
        "mlp.sizes": f"{inputs}→{down.in_features}→{down.out_features}",
        "mlp.bias": "on " + " and ".join(biased) if biased else "none",
    }


def _multiplies(op: Op) -> bool:
    """Is it a product of two values that both come from the input?"""
    return op.name == "mul" and all(
        isinstance(v, Op) and bare(v).name != "param" for v in op.inputs
    )


def moe_values(flat: Flat, branch: Branch, blocks: dict[str, MoEFacts]) -> dict[str, str]:
    """Router, experts and shared expert of a branch that has experts."""
    call = next(op for op in branch.ops if flat.is_experts(op))
    facts = blocks.get(str(call.target).rpartition(".")[0])
    if facts is None:
        return {"mlp.form": "experts", "moe.router": "not understood"}
    parts = {"moe.router": facts.router, "moe.experts": facts.experts, "moe.shared": facts.shared}
    said = {"mlp.form": "mixture of experts"}
    for key, part in parts.items():
        text = "none" if part is None else getattr(part, "summary", lambda: "not understood")()
        said[key] = text
    return said
