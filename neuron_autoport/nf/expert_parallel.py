"""NF.get_local_expert_affinities: the affinities of the experts that one rank has."""

from __future__ import annotations

from torch import Tensor

from neuron_autoport.nf.dispatch import nf_function

NAME = "get_local_expert_affinities"


@nf_function(weights=())
def get_local_expert_affinities(expert_affinities: Tensor, local_expert_indices: Tensor) -> Tensor:
    """Columns of affinities [T, E] -> [T, E_local]. Source: the plugin's contract, `expert_parallel`.

    Args:
        local_expert_indices: [E_local], integers.

    Raises:
        ValueError: affinities that are no matrix or empty.
    """
    if expert_affinities.dim() != 2 or not expert_affinities.shape[1]:
        raise ValueError(
            f"NF.{NAME}: expert_affinities must be [T, E], got {tuple(expert_affinities.shape)}"
        )
    return expert_affinities.index_select(1, local_expert_indices)
