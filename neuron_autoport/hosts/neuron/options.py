"""What the engine may be asked for that this host does not do: refused before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuron_autoport.hosts.neuron.engine import engine_config
from neuron_autoport.hosts.neuron.errors import refuse

# Fields of the plugin's configuration, with the only value that is served.
_ONLY = {
    "attention_dp_size": 1,
    "embedding_dp_size": 1,
    "lm_head_dp_size": 1,
    "mlp_dp_size": 1,
    "quantization": None,
    "fp8_packed_kv": False,
    "all2all_backend": None,
}


# Our own settings beside the plugin's, as additional_config={"neuron_autoport": {...}}.
OWN = "neuron_autoport"
_SEQUENCE = "sequence_parallel"


@dataclass(frozen=True)
class Served:
    """How the ranks share a model. by_expert: each has some of the experts. sequence_parallel: in prefill each
    rank keeps its own tokens between the parts they share."""

    by_expert: bool = False
    sequence_parallel: bool = False


ALONE = Served()


def check_options(neuron_config: Any, ranks: int, where: str) -> Served:
    """What is asked for. Refuses what is not served.

    Args:
        neuron_config: the plugin's configuration, or None. ranks: of the tensor-parallel group.

    Raises:
        NeuronHostError: naming the option.
    """
    for name, only in _ONLY.items():
        given = getattr(neuron_config, name, only)
        if given != only:
            raise refuse(
                f"neuron_config.{name} = {given!r} is not served; only {only!r}",
                where,
                f'additional_config={{"neuron_config": {{"{name}": null}}}}',
            )
    engine = engine_config()
    if getattr(engine, "speculative_config", None) is not None:
        raise refuse("speculative decoding is not served", where)
    parallel = getattr(engine, "parallel_config", None)
    if int(getattr(parallel, "pipeline_parallel_size", 1)) > 1:
        raise refuse("pipeline parallel is not served", where)
    by_expert = bool(getattr(parallel, "enable_expert_parallel", False))
    degree = int(getattr(neuron_config, "ep_degree", 1) or 1)
    if not by_expert and degree > 1:
        raise refuse(f"ep_degree is {degree} without --enable-expert-parallel", where)
    if by_expert and degree not in (1, ranks):
        raise refuse(
            f"ep_degree is {degree}; only that of tensor parallel, {ranks}, is served", where
        )
    return Served(by_expert and ranks > 1, _sequence_parallel(engine, where) and ranks > 1)


def _sequence_parallel(engine: Any, where: str) -> bool:
    given = getattr(engine, "additional_config", None)
    own = given.get(OWN, {}) if isinstance(given, dict) else {}
    example = f'additional_config={{"{OWN}": {{"{_SEQUENCE}": true}}}}'
    unknown = sorted(set(own) - {_SEQUENCE}) if isinstance(own, dict) else [str(own)]
    if unknown:
        raise refuse(f"{OWN}: {unknown[0]} is no setting; there is {_SEQUENCE}", where, example)
    asked = own.get(_SEQUENCE, False)
    if not isinstance(asked, bool):
        raise refuse(f"{OWN}.{_SEQUENCE} is {asked!r}, not true or false", where, example)
    return asked
