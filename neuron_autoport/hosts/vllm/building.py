"""What vLLM's Transformers backend builds a model by, where transformers has it in another way.

It takes the class of the base model from AutoModel, two sizes from the configuration, and every tensor with `lm_head`
in its name for one of the head.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.hosts.vllm.reading import Reading
from neuron_autoport.models.unlisted import list_base
from neuron_autoport.port import Port
from neuron_autoport.trace.head import UnknownHead, read_head


def fit_backend(config: Any, found: Reading, where: str) -> None:
    """Give the backend a class of the base model, and the sizes that the configuration does not have.

    Raises:
        HostError: it cannot be given one of them.
    """
    port = found.proved.port
    if not list_base(port.model, port.base):
        name = type(port.model).__name__
        what = f"AP412: AutoModel has no class for the base of `{name}`, by which vLLM's backend builds"
        raise HostError(what, where, "autoport explain AP412")
    missing = [f for f in ("num_hidden_layers", "hidden_size") if not hasattr(config, f)]
    if not missing:
        return
    if found.alone is None:  # caches and pipeline stages are counted by layers of one kind
        what = f"AP412: `{config.model_type}` has no `{missing[0]}`, by which vLLM's backend builds"
        raise HostError(what, where, "autoport explain AP412")
    counted = {"num_hidden_layers": _longest_list(port.model), "hidden_size": _width(port, where)}
    for field in missing:
        setattr(config, field, counted[field])


def _longest_list(model: nn.Module) -> int:
    """As many layers as the part with most of them has; the backend asks for one number."""
    return max((len(m) for m in model.modules() if isinstance(m, nn.ModuleList)), default=1)


def _width(port: Port, where: str) -> int:
    """Of the rows that the last linear map reads."""
    try:
        head: Any = port.model.get_submodule(read_head(port.trace).module)
    except UnknownHead as error:
        raise HostError(f"AP412: logits: {error}", where, f"autoport inspect {where}") from None
    return int(head.weight.shape[1])


def keep_own_names(model: Any) -> None:
    """A tensor of the base model is not renamed: a part of it may have an `lm_head` of its own.

    Args:
        model: the host's, whose backend just made the mapper from names of the checkpoint.
    """
    renamings = model.hf_to_vllm_mapper.orig_to_new_regex
    own = [f"model.{name}" for name, _ in model.model.named_parameters()]
    for pattern, new in list(renamings.items()):
        if new is not None and any(pattern.sub(new, name) != name for name in own):
            del renamings[pattern]
