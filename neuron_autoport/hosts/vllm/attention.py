"""Does vLLM's attention layer do what the graph asks: scale, window, soft-cap, sinks?

vLLM's backend sets these up from configuration fields. The graph of each attention class says what the
model really hands to the attention; where the two differ the model is refused, never served wrong.
"""

from __future__ import annotations

from typing import Any

from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.pipeline import ProvedPort
from neuron_autoport.trace.ops import Op


def check_attention(model: Any, proved: ProvedPort) -> None:
    """Compare every attention layer of the built model with its class's graph.

    Args:
        model: the host's model. proved: the port it was built from.

    Raises:
        HostError: a layer whose scale, window, soft-cap or sinks differ.
    """
    port = proved.port
    inside = f"{port.base}." if port.base else ""
    modules = dict(model.model.named_modules())
    for path, plan in port.where.items():
        asked = [op for op in plan.graph.ops if op.name == "attention"]
        module = modules.get(path.removeprefix(inside))
        layer = getattr(module, "attn", None)
        if not asked or layer is None or not hasattr(layer, "impl"):
            continue
        wrong = _differences(asked[0], layer, int(model.model_config.max_model_len))
        if len(asked) > 1:
            wrong.append(f"{len(asked)} attention calls in one layer")
        if wrong:
            where = str(model.model_config.model)
            span = f" at {asked[0].spans[0].short()}" if asked[0].spans else ""
            raise HostError(
                f"{path}: vLLM would not serve this attention{span} as written: {'; '.join(wrong)}",
                where,
                f"vllm serve {where} --model-impl transformers",
            )


def _differences(op: Op, layer: Any, longest: int) -> list[str]:
    impl, wrong = layer.impl, []
    scale = op.attrs.get("scaling")
    scale = op.inputs[0].shape[-1] ** -0.5 if scale is None else float(scale)
    if abs(float(impl.scale) - scale) > 1e-6 * abs(scale):
        wrong.append(f"scale {impl.scale:g} where the model has {scale:g}")
    window, served = op.attrs.get("sliding_window"), layer.sliding_window
    if (window or None) != (served or None) and min(window or longest, served or longest) < longest:
        wrong.append(f"window {served} where the model has {window}")
    cap, served_cap = op.attrs.get("softcap") or 0, getattr(impl, "logits_soft_cap", 0) or 0
    if float(cap) != float(served_cap):
        wrong.append(f"soft-cap {served_cap:g} where the model has {cap:g}")
    if (op.attrs.get("s_aux") is not None) != bool(getattr(layer, "has_sink", False)):
        wrong.append("attention sinks are not passed on")
    return wrong
