"""The serving table in the report, from the Neuron host's plan."""

from __future__ import annotations

from collections.abc import Iterable

from neuron_autoport.hosts.neuron.errors import NeuronHostError
from neuron_autoport.hosts.neuron.serving import Asked, Serving, serving
from neuron_autoport.models.source import ModelSource
from neuron_autoport.port import Port
from neuron_autoport.report.schema_serving import ServingCall, ServingInfo, ServingRefusal
from neuron_autoport.rules.rule import Rule


def serving_info(
    source: ModelSource, port: Port, rules: Iterable[Rule], asked: Asked
) -> ServingInfo:
    """How a planned model would be served; a model the runner cannot drive says why.

    Args:
        rules: the port was planned with.
    """
    try:
        table = serving(source, port, rules, asked)
    except NeuronHostError as error:
        empty = Serving(asked, (), (), (), ())
        return _info(empty, error.what)
    return _info(table, None)


def _info(table: Serving, unserved: str | None) -> ServingInfo:
    return ServingInfo(
        chip=table.asked.target,
        tp=table.asked.tp,
        buckets=list(table.asked.buckets),
        batch=table.asked.batch,
        calls=[ServingCall.model_validate(vars(row)) for row in table.rows],
        refused=[ServingRefusal.model_validate(vars(r)) for r in table.refused],
        valid_tp=list(table.valid),
        decode_kernel_tp=list(table.fused),
        kv_heads=table.kv_heads,
        kv_copies=table.copies,
        whole=table.whole,
        unserved=unserved,
    )
