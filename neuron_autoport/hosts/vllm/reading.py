"""What has to be known of a model before vLLM builds it: its plan, proved, and how its tokens see each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.logger import init_logger

from neuron_autoport.hosts.vllm.compat import CountsRows
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
    model they were read from, or None. continued: see `mixing.Found`.
    """

    source: ModelSource
    proved: ProvedPort
    masks: dict[tuple[str, str | None], Mask]
    small_config: Any
    continued: dict[str, bool]


def read_model(source: ModelSource) -> Reading:
    """Read, plan and prove a model.

    Raises:
        HostError: something without a cache mixes its tokens.
    """
    proved = proved_port(source)
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
        return Reading(source, proved, {}, None, {})
    return Reading(source, proved, unlike(found.masks), found.config, found.continued)
