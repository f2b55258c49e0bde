"""What vLLM on this machine can be asked for: its own CPU engine, or the Neuron plugin's runner."""

from __future__ import annotations

import os
from dataclasses import dataclass

from neuron_autoport.nf.dispatch import CPU_MODE, decide


@dataclass(frozen=True)
class Platform:
    """The platform that serves.

    name: in words. eager: may it run without compiling? The plugin may in its CPU mode only.
    prompt_logits: does it report logits of prompt tokens? The plugin's runner computes those of sampled
    tokens only. bucket: lengths are a multiple of this. chunked: are steps cut to any number of tokens?
    """

    name: str
    eager: bool
    prompt_logits: bool
    bucket: int
    chunked: bool

    def not_shown(self, served: bool) -> list[str]:
        """What a report from here does not show of the device.

        Args:
            served: was the served model asked at any level?
        """
        if self == CPU:
            return [
                "the device: everything here ran on a CPU, NF functions and kernels by their torch reference"
            ]
        asked = "only the served model" if served else "nothing here"
        return [
            "of the device, the modules and prompts that ran in this process, on the CPU: NF functions in "
            f"the plugin's torch forms; {asked} ran on {self.name}",
            f"probabilities of given text, served: {self.name} reports those of generated tokens only",
        ]


CPU = Platform("vLLM's CPU engine", eager=True, prompt_logits=True, bucket=1, chunked=True)
_SHORTEST_BUCKET = 128


def serving_platform() -> Platform:
    """The platform of this machine, as the NF functions see it."""
    if decide().backend == "torch":
        return CPU
    return Platform(
        "the Neuron plugin",
        eager=os.environ.get(CPU_MODE, "0").strip() == "1",
        prompt_logits=False,
        bucket=_SHORTEST_BUCKET,
        chunked=False,
    )
