"""The logits of the hosted model: modules before the last linear map, factors and soft-cap as the graph has them.

vLLM's backend reads two configuration fields and knows one linear map by the name `lm_head`; a model with another head
would be served with wrong logits. Modules between the base model and that map are kept as transformers has them: they
run on the rows whose logits are asked, so each must work on every row by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from vllm.model_executor.models.transformers.utils import init_on_device_without_buffers

from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.hosts.vllm.loading import Weights
from neuron_autoport.pipeline import ProvedPort
from neuron_autoport.trace.canonical import canonical_graph
from neuron_autoport.trace.head import Head, UnknownHead, read_head
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.ops import Op

LINEAR, BEFORE = "lm_head", "before_head"  # the first is vLLM's name
BIAS = f"{LINEAR}.bias"  # vLLM has it only where the checkpoint does
# They choose rows and change none.
_CHOOSE = frozenset(("view", "slice", "getitem"))


def apply_head(model: Any, proved: ProvedPort) -> None:
    """Set scale and soft-cap of vLLM's logits processor from the trace, and keep the modules before the head.

    Raises:
        HostError: the head is not one that can be computed here.
    """
    processor = getattr(model, "logits_processor", None)
    if processor is None:  # not the last pipeline stage
        return
    where = str(model.model_config.model)
    step = f"autoport inspect {where}"
    try:
        head = read_head(proved.port.trace)
        below = f"{head.reads}.".startswith(f"{proved.port.base}.")
        between = () if below else modules_between(proved.port.trace, head, proved.port.base)
    except UnknownHead as error:
        raise HostError(f"AP412: logits: {error}", where, step) from None
    if head.soft_cap is not None and head.scale != 1.0:
        what = f"AP412: logits are scaled by {head.scale:g} before their soft-cap, which vLLM cannot do"
        raise HostError(what, where, step)
    processor.soft_cap = head.soft_cap
    processor.scale = head.scale_after_cap if head.soft_cap is not None else head.scale
    linear = proved.port.model.get_submodule(head.module)
    model.head_bias = getattr(linear, "bias", None) is not None
    if head.module != LINEAR:
        model.head_names[f"{head.module}."] = f"{LINEAR}."
    if between:
        _keep(model, between)


def modules_between(trace: ModuleTrace, head: Head, base: str) -> tuple[str, ...]:
    """Paths of the modules that stand between the base model and the head, in the order they run.

    Raises:
        UnknownHead: what stands there is no chain of modules of one input each.
    """
    op = next(op for op in canonical_graph(trace).ops if op.target == head.module)
    found: list[str] = []
    while True:
        op = _chosen_from(op.inputs[0])
        if _is_last_state(op, base):
            return tuple(found)
        if op.node is None or op.node.op != "call_module" or len(op.operands()) != 1:
            raise UnknownHead(f"`{op.label}` stands between the base model and `{head.module}`")
        found.insert(0, str(op.target))


def _chosen_from(op: Op) -> Op:
    """The value whose rows are chosen."""
    while op.name in _CHOOSE and op.inputs[0].shape and op.inputs[0].shape[-1] == op.shape[-1]:
        op = op.inputs[0]
    return op


def _is_last_state(op: Op, base: str) -> bool:
    """Is this the first of what the base model gives?"""
    if op.name == "getitem" and op.attrs.get("key") in ("0", "last_hidden_state"):
        op = op.inputs[0]
    return op.name == "module" and op.target == base


def _keep(model: Any, between: tuple[str, ...]) -> None:
    """Build the modules as transformers has them.

    Raises:
        HostError: it is not known that each works on one row at a time, or it holds more than parameters.
    """
    where = str(model.model_config.model)
    names = ", ".join(f"`{path}`" for path in between)
    if model.small_config is None:
        what = f"AP412: logits: no small model shows that {names} works on every row by itself"
        raise HostError(what, where, f"autoport inspect {where}")
    with init_on_device_without_buffers("meta"):
        whole = AutoModelForCausalLM.from_config(**model._from_config_kwargs).eval()
    kept = nn.ModuleList(whole.get_submodule(path) for path in between)
    if next(kept.buffers(), None) is not None:
        what = f"AP412: logits: {names} holds buffers, which are not loaded"
        raise HostError(what, where, f"autoport inspect {where}")
    model.init_parameters(kept)
    setattr(model, BEFORE, kept)
    model.head_names |= {f"{path}.": f"{BEFORE}.{i}." for i, path in enumerate(between)}


def renamed(
    weights: Weights, names: dict[str, str], biased: bool, extra: list[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of the head by the names the host has for them.

    Args:
        biased: the last linear map has a bias. vLLM adds whatever bias a checkpoint has; one that the model does not
            have is left out, and its name goes to `extra`.
    """
    for name, tensor in weights:
        prefix = next((p for p in names if name.startswith(p)), "")
        hosted = names.get(prefix, "") + name.removeprefix(prefix)
        if hosted == BIAS and not biased:
            extra.append(name)
            continue
        yield hosted, tensor


def beside_base(parameters: Iterable[str], biased: bool) -> list[str]:
    """Parameters of the host beside the base model; the head's bias is one also before a checkpoint has given it."""
    found = [name for name in parameters if not name.startswith("model.")]
    return [*found, *([BIAS] if biased and BIAS not in found else [])]


def as_saved(found: Iterable[str], names: dict[str, str]) -> set[str]:
    """Names that the host has for tensors of the head, as the checkpoint has them."""
    own = {new: old for old, new in names.items()}
    prefixes = [(name, next((p for p in own if name.startswith(p)), "")) for name in found]
    return {own.get(p, "") + name.removeprefix(p) for name, p in prefixes}


def before_head(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """[rows, width] of the base model -> [rows, width] that the last linear map takes."""
    for module in getattr(model, BEFORE, ()):
        hidden = module(hidden[None])[0]
    return hidden
