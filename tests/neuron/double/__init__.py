"""A strict double of the vLLM Neuron plugin, for tests: `with installed() as double: ...`."""

from tests.neuron.double.args import ContractError
from tests.neuron.double.log import Call, CallLog, GraphSummary
from tests.neuron.double.state import State
from tests.neuron.double.tree import installed

__all__ = ["Call", "CallLog", "ContractError", "GraphSummary", "State", "installed"]
