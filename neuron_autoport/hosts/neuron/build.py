"""Build the hosted model of a configuration: read its layers, prove the port, try it, put it together."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PretrainedConfig

from neuron_autoport.errors import AutoportError
from neuron_autoport.hosts.neuron.assembly import Assembly, Ported
from neuron_autoport.hosts.neuron.engine import current_ranks, model_dtype
from neuron_autoport.hosts.neuron.errors import NeuronHostError, refuse
from neuron_autoport.hosts.neuron.facts import LayerFacts
from neuron_autoport.hosts.neuron.moe_blocks import decode_fits
from neuron_autoport.hosts.neuron.moe_form import norms_apart
from neuron_autoport.hosts.neuron.options import check_options
from neuron_autoport.hosts.neuron.out_of_place import out_of_place
from neuron_autoport.hosts.neuron.positions import check_positions
from neuron_autoport.hosts.neuron.probe import read_layers
from neuron_autoport.models.plain import NEXT, stops_serving
from neuron_autoport.models.source import ModelSource, source_of_config
from neuron_autoport.nf.dispatch import reference
from neuron_autoport.pipeline import proved_port
from neuron_autoport.port import Port
from neuron_autoport.rewrite.emit import generate
from neuron_autoport.rewrite.imports import comes_with_model
from neuron_autoport.rules.sources import load_library


def build(cls: type[Any], config: PretrainedConfig, neuron_config: Any = None) -> Any:
    """The hosted model of a configuration, with every parameter on the meta device.

    Args:
        cls: made of `Parts`; see `model.NeuronTransformersForCausalLM`.
        neuron_config: the plugin's; None gives logits and no on-device sampling.

    Raises:
        NeuronHostError: the model cannot be hosted; by name and reason.
    """
    from neuron_autoport.hosts.neuron.selftest import refuse_state, self_test, small_source

    with torch.device("cpu"):  # the runner builds in a meta context; proofs need numbers
        source = host_source(config)
        ranks = current_ranks()
        served = check_options(neuron_config, ranks.size, source.name)
        small = small_source(source)
        try:
            layers = read_layers(source)
        except NeuronHostError:
            refuse_state(source, small)  # the better reason, if it is this
            raise
        with reference():  # what is proved must not depend on the machine
            proved = proved_port(source)
            port = _with_blocks(source, proved.port, ranks.size, served.by_expert)
            ported = port_of(source, port, layers)
            without = self_test(cls, ported, small, ranks.size, served)
        check_positions(ported.port.model, small, source.name)
        dtype = model_dtype(config)
        return Assembly(ported, ranks, dtype, without, served).make(cls, neuron_config)


def _with_blocks(source: ModelSource, port: Port, ranks: int, by_expert: bool) -> Port:
    """The port with norms that mixture blocks hold in decode apart; see `moe_form.norms_apart`."""
    library = load_library(trust_code=source.trust_remote_code)
    return norms_apart(port, library, decode_fits(ranks, by_expert))


def port_of(source: ModelSource, port: Port, layers: list[LayerFacts]) -> Ported:
    """A port as it is hosted: without operations in place that the compiler does not take."""
    port = out_of_place(port)
    title = f"{type(port.model).__name__} of transformers {transformers.__version__}"
    return Ported(source, port, generate(port.plans, title), layers)


def host_source(config: PretrainedConfig, *, trust_remote_code: bool = False) -> ModelSource:
    """The model of a configuration, refused if it is of a kind that cannot be hosted.

    Code that comes with the model may also run where its configuration's class is part of it: that ran already.
    """
    trusted = trust_remote_code or comes_with_model(type(config))
    where = str(config.name_or_path or config.model_type)
    if config is not config.get_text_config():
        raise refuse(f"`{config.model_type}` is multimodal; only text models are served", where)
    if getattr(config, "quantization_config", None) is not None:
        raise refuse(f"{where}: the checkpoint is quantized; plain weights only", where)
    try:
        source = source_of_config(config, where, trust_remote_code=trusted)
        stopped = stops_serving(source)
    except AutoportError as error:
        raise refuse(error.what, error.where, error.next_step) from None
    if stopped is not None:
        raise refuse(stopped, where, NEXT)
    return source
