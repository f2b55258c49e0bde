"""The refusal of the Neuron host: raised before any weight is read."""

from __future__ import annotations

from neuron_autoport.errors import AutoportError


class NeuronHostError(AutoportError, ValueError):
    """This model, or this way of serving it, is not possible on the Neuron runner.

    A ValueError too, so that vLLM reports it as a user's mistake.
    """


def refuse(what: str, where: str | None = None, next_step: str | None = None) -> NeuronHostError:
    """The refusal, with `autoport inspect` as next step if there is no better one."""
    return NeuronHostError(what, where, next_step or f"autoport inspect {where or 'MODEL'}")
