"""What has to be known of a model before vLLM builds it: its plan, proved, and how its tokens see each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.logger import init_logger

from neuron_autoport.hosts.vllm.alone import Alone
from neuron_autoport.hosts.vllm.alone_proof import prove_alone
from neuron_autoport.hosts.vllm.attention_facts import check_calls
from neuron_autoport.hosts.vllm.compat import CountsRows, Refused
from neuron_autoport.hosts.vllm.masks import Mask, unlike
from neuron_autoport.hosts.vllm.mixing import read_masks
from neuron_autoport.hosts.vllm.places import count_positions
from neuron_autoport.hosts.vllm.written_out.interface import writes_out
from neuron_autoport.hosts.vllm.written_out.prove import call_interface
from neuron_autoport.models.source import ModelSource
from neuron_autoport.models.tiny import TinyConfigError
from neuron_autoport.pipeline import ProvedPort, proved_port

logger = init_logger("vllm.neuron_autoport")


@dataclass(frozen=True)
class Reading:
    """A model as it is to be hosted.

    source: with layers changed that cannot be hosted as they are. masks: by kind of layer. small_config: of the small
    model they were read from, or None. continued: see `mixing.Found`. alone: no cache of vLLM would do.
    """

    source: ModelSource
    proved: ProvedPort
    masks: dict[tuple[str, str | None], Mask]
    small_config: Any
    continued: dict[str, bool]
    alone: Alone | None = None


def read_model(source: ModelSource) -> Reading:
    """Read, plan and prove a model.

    Raises:
        Refused: something without a cache mixes its tokens, and transformers' own caches do not keep it either.
    """
    proved = proved_port(source)
    try:
        return _in_caches(source, proved)
    except Refused as why:
        return Reading(source, proved, {}, None, {}, prove_alone(source, proved, why))


def _in_caches(source: ModelSource, proved: ProvedPort) -> Reading:
    """A model whose tokens meet in caches of vLLM alone."""
    reasons: dict[str, str] = {}
    if any(writes_out(plan.trace) for plan in proved.port.plans):
        source, reasons = call_interface(source)
        proved = proved if source.prepare is None else proved_port(source)
    try:
        try:
            found = read_masks(source, reasons)
        except CountsRows as why:
            placed = count_positions(source, proved.port, why.name)
            if placed is None:
                raise
            source, proved = placed, proved_port(placed)
            found = read_masks(source, reasons)
    except TinyConfigError as error:
        logger.warning("autoport: masks were not compared: %s", error.what)
        check_calls(proved.port, (), source.name)
        return Reading(source, proved, {}, None, {})
    check_calls(proved.port, found.masks, source.name)
    return Reading(source, proved, unlike(found.masks), found.config, found.continued)
