"""The logits of the hosted model: factors and soft-cap as the graph has them.

vLLM's backend reads two configuration fields; a model with other ones would be served with wrong logits.
"""

from __future__ import annotations

from typing import Any

from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.pipeline import ProvedPort
from neuron_autoport.trace.head import UnknownHead, read_head


def apply_head(model: Any, proved: ProvedPort) -> None:
    """Set scale and soft-cap of vLLM's logits processor from the trace.

    Raises:
        HostError: the head is not one that vLLM's logits processor can compute.
    """
    processor = getattr(model, "logits_processor", None)
    if processor is None:  # not the last pipeline stage
        return
    where = str(model.model_config.model)
    try:
        head = read_head(proved.port.trace)
    except UnknownHead as error:
        raise HostError(f"AP412: logits: {error}", where, f"autoport inspect {where}") from None
    if not f"{head.reads}.".startswith(f"{proved.port.base}."):
        what = f"AP412: logits: `{head.reads}` stands between the base model and `{head.module}`"
        raise HostError(what, where, f"autoport inspect {where}")
    if head.soft_cap is not None and head.scale != 1.0:
        raise HostError(
            f"AP412: logits are scaled by {head.scale:g} before their soft-cap, which vLLM cannot do",
            where,
            f"autoport inspect {where}",
        )
    processor.soft_cap = head.soft_cap
    processor.scale = head.scale_after_cap if head.soft_cap is not None else head.scale
