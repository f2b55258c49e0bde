"""What vLLM's Transformers backend builds a model by, where transformers has it in another way.

It takes the class of the base model from AutoModel, two sizes from the configuration, every tensor with `lm_head` in
its name for one of the head, and renames whatever a renaming of transformers fits.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from neuron_autoport.hosts.vllm.checkpoint import Checkpoint
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


def keep_own_names(model: Any, checkpoint: Checkpoint) -> None:
    """A tensor of the base model is not renamed.

    A part of it may have an `lm_head` of its own; a renaming that transformers does to tensors of a checkpoint may fit
    others, which transformers leaves as they are.

    Args:
        model: the host's, whose backend just made the mapper from names of the checkpoint.
    """
    mapper = model.hf_to_vllm_mapper
    own = [f"model.{name}" for name, _ in model.model.named_parameters()]
    for pattern, new in list(mapper.orig_to_new_regex.items()):
        if new is not None and any(pattern.sub(new, name) != name for name in own):
            del mapper.orig_to_new_regex[pattern]
    mapper.orig_to_new_renaming[:] = [_Renamings(mapper.orig_to_new_renaming[:], checkpoint)]


class _Renamings:
    """Several of transformers as one, in the form the mapper asks for."""

    def __init__(self, renamings: list[Any], checkpoint: Checkpoint) -> None:
        self.renamings, self.checkpoint = renamings, checkpoint

    def rename_source_key(self, name: str) -> tuple[str, None]:
        if not self.checkpoint.keeps(name):
            for renaming in self.renamings:
                name, _ = renaming.rename_source_key(name)
        return name, None
