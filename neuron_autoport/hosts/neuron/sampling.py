"""What a step returns: logits, or tokens sampled on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from neuron_autoport.hosts.neuron.engine import Ranks, plugin_module
from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.neuron.head import VocabHead


class Sampling(nn.Module):
    """The end of a step, fixed when the model is built.

    config: the on-device sampling configuration; None for logits. gather: also give all logits.
    """

    def __init__(self, config: Any, gather: bool, ranks: Ranks) -> None:
        super().__init__()
        self.on_device, self.gather = config is not None, gather
        self.sampler: Any = None
        if config is not None:
            module = plugin_module("vllm_neuron.nn.sampler")
            if module is None:
                raise refuse(
                    "on-device sampling needs the plugin's sampler",
                    "neuron_config.on_device_sampling_config",
                    'additional_config={"neuron_config": {"on_device_sampling_config": null}}',
                )
            self.sampler = module.Sampler(config, ranks.device_group)

    @classmethod
    def of(cls, neuron_config: Any, ranks: Ranks) -> Sampling:
        """As the plugin's configuration asks; without one, logits."""
        config = getattr(neuron_config, "on_device_sampling_config", None)
        gather = bool(
            getattr(neuron_config, "max_logprobs", 0)
            or getattr(neuron_config, "debug_logits_dir", None)
        )
        return cls(config, gather, ranks)

    def forward(
        self,
        head: VocabHead,
        logits: torch.Tensor,
        params: torch.Tensor | None,
        mask: torch.Tensor | None,
        rank: torch.Tensor | None,
    ) -> Any:
        """logits [R, V / ranks] -> logits [R, V], or (tokens int32 [R], logits [R, V] or None)."""
        if not self.on_device:
            full = head.gather(logits)
            if mask is not None and mask.shape[-1] == full.shape[-1]:
                full = full.masked_fill(~mask, torch.finfo(full.dtype).min)
            return full
        tokens = self.sampler(logits, params, logit_mask=mask, tp_rank=rank)
        return tokens, head.gather(logits) if self.gather else None
