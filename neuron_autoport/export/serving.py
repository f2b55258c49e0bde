"""An exported backbone as the class the plugin's runner drives: head, cache, loading, ranks around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PretrainedConfig

from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.neuron.facts import LayerFacts
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM


class Backbone(nn.Module):
    """Base of an exported model without its head: keeps its configuration."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.config = config


@dataclass(frozen=True)
class Head:
    """What stands between the last hidden state and the logits: scale_after_cap * cap(scale * (h @ W + b)).

    module: name of the linear map in the checkpoint.
    """

    module: str
    bias: bool = False
    scale: float = 1.0
    soft_cap: float | None = None
    scale_after_cap: float = 1.0


@dataclass(frozen=True)
class Layers:
    """Attention layers that are alike.

    path: of the attention module, with {} for the layer's number. heads, kv_heads: of the whole model.
    window: positions a query sees, itself included; None for all before it. sinks: one more logit per
    head.
    """

    path: str
    numbers: Sequence[int]
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False

    def facts(self) -> Iterator[tuple[int, LayerFacts]]:
        """(number, what the host knows of it) of each."""
        for number in self.numbers:
            path = self.path.format(number)
            yield (
                number,
                LayerFacts(
                    path, "", self.heads, self.kv_heads, self.head_dim, self.window, self.scale,
                    self.softcap, self.sinks,
                ),
            )  # fmt: skip


class NeuronModel(NeuronTransformersForCausalLM):
    """Base of what an exported package registers with vLLM.

    backbone: the model without its head. prefix: its name in the checkpoint. embedding: path of the token
    embedding in it. tied: pairs of a checkpoint name and the tensor it is another name of. conversions: names
    under which transformers knows how this model's checkpoints are renamed and merged. float32: endings of
    the names of parameters that stay float32.
    """

    backbone: ClassVar[type[Backbone]]
    layers: ClassVar[tuple[Layers, ...]]
    head: ClassVar[Head]
    prefix: ClassVar[str]
    embedding: ClassVar[str]
    tied: ClassVar[tuple[tuple[str, str], ...]] = ()
    conversions: ClassVar[tuple[str, ...]] = ()
    float32: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def check(cls, config: PretrainedConfig) -> None:
        """Refuse a configuration the package was not written for."""

    @classmethod
    def built(cls, config: PretrainedConfig, neuron_config: Any) -> Any:
        """The model of a configuration, every parameter on the meta device.

        Raises:
            NeuronHostError: the configuration is not the package's, or the options cannot be served.
        """
        cls.check(config)
        from neuron_autoport.export.assemble import Assembly

        return Assembly(cls, config, neuron_config).make()

    def last_hidden(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """What the backbone gives for ids and positions [B, S]: [B, S, H]."""
        hidden: torch.Tensor = self.model(input_ids=ids, position_ids=places)
        return hidden

    def token_embedding(self) -> Any:
        """The module that looks tokens up."""
        return self.model.get_submodule(self.embedding)


def refuse_other(config: PretrainedConfig, written_for: dict[str, Any]) -> None:
    """Refuse a configuration with other values than a package was written for.

    Raises:
        NeuronHostError: naming the fields.
    """
    given = config.to_dict()
    found = [
        f"{name} is {given.get(name)!r}, not {value!r}"
        for name, value in written_for.items()
        if given.get(name) != value
    ]
    if found:
        what = f"the package was written for another configuration: {'; '.join(found[:3])}"
        raise refuse(what, "config.py", "autoport port MODEL -o DIR")


def register_model(architecture: str, target: str) -> None:
    """Make a package's class known to vLLM under its architecture name; harmless when repeated."""
    from vllm import ModelRegistry

    if architecture not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(architecture, target)
