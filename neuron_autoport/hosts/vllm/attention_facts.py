"""What the graph of each attention class hands to the attention interface, or why vLLM's layer cannot compute it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from neuron_autoport.hosts.vllm.compat import refused
from neuron_autoport.hosts.vllm.masks import Mask
from neuron_autoport.hosts.vllm.turns import attention_calls
from neuron_autoport.port import Port
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.trace.ops import Op

# Arguments of the interface that do not change the result in inference, or come from the mask.
_HARMLESS = frozenset(("mask", "dropout", "position_ids", "is_causal", "cache_position"))
_KNOWN = frozenset(("scaling", "sliding_window", "softcap", "s_aux", "alibi_slopes"))


@dataclass(frozen=True)
class Facts:
    """One attention call. heads, kv_heads: of the whole model. sinks: path of their parameter, or None.

    key_size, value_size: width of a head. window: handed to the call, or None. slopes: of an ALiBi bias by head.
    """

    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    scale: float
    window: int | None
    soft_cap: float | None
    sinks: str | None
    slopes: tuple[float, ...] | None = None


def read_attention(plan: ClassPlan) -> list[Facts | str]:
    """The attention calls of a class from its graph, or why vLLM's layer cannot compute one."""
    return [read_call(op) for op in plan.graph.ops if op.name == "attention"]


def read_call(op: Op) -> Facts | str:
    """One attention call; why vLLM's layer cannot compute it."""
    query, key, value = (x.shape for x in op.inputs[:3])
    if len(query) != 4 or query[-2] != key[-2] or key[-2] != value[-2]:
        return f"queries {list(query)} for keys {list(key)} and values {list(value)}"
    scale, sinks = op.attrs.get("scaling"), op.attrs.get("s_aux")
    for name, given in op.attrs.items():
        if name not in _HARMLESS | _KNOWN and isinstance(given, Op):
            return f"it is handed `{name}`, which vLLM's attention layer does not take"
    if isinstance(scale, Op):
        return "its scale is computed from the tokens"
    if sinks is not None and (not isinstance(sinks, Op) or sinks.name != "param"):
        return "its sinks are no parameter of the layer"
    mask = op.attrs.get("mask")
    if isinstance(mask, Op) and mask.name != "input":
        return f"it makes a mask of its own (`{mask.label}`)"
    return Facts(
        int(query[1]),
        int(key[1]),
        int(query[-1]),
        int(value[-1]),
        query[-1] ** -0.5 if scale is None else float(scale),
        op.attrs.get("sliding_window") or None,
        float(op.attrs.get("softcap") or 0) or None,
        sinks.target if isinstance(sinks, Op) else None,
        op.attrs.get("alibi_slopes"),
    )


def check_calls(port: Port, masks: Iterable[Mask], where: str) -> None:
    """Can vLLM's layer compute every attention call of a model?

    Args:
        masks: of the small model's attention calls.

    Raises:
        Refused: a call it cannot compute as written, or one that is not in the graph.
    """
    found = {path: read_attention(port.where[path]) for path in attention_calls(port)}
    shown = {port.where[path].trace.module_class.__name__ for path in found}
    for mask in masks:
        if mask.key[0] not in shown:
            what = f"{mask.key[0]}: its graph does not show what it hands to its attention"
            raise refused("AP410", what, where)
    for path, calls in found.items():
        for facts in calls:
            if isinstance(facts, str):
                place = f"{path} ({port.where[path].trace.module_class.__name__})"
                raise refused("AP410", f"{place}: {facts}", where)
