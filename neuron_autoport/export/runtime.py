"""All that an exported package imports beside torch, transformers' configuration class and NF.

For `model.py`: `fuse` and its like declare weights; `attention`, `fused_decode`, `fused_heads` and `experts` know
the running step. For `factory.py`: `NeuronModel` is what the plugin's runner drives. None of it traces, matches or
rewrites anything.
"""

from transformers.activations import ACT2CLS, ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.pytorch_utils import Conv1D
from transformers.utils.generic import maybe_autocast

from neuron_autoport import kernels as NK
from neuron_autoport.export.apart import checkpoint_tensors
from neuron_autoport.export.fusing import (
    columns,
    every,
    fuse,
    head_norms,
    shard_heads,
    share_experts,
)
from neuron_autoport.export.serving import (
    Backbone,
    Head,
    Layers,
    NeuronModel,
    refuse_other,
    register_model,
)
from neuron_autoport.export.step import attention, experts, fused_decode, fused_heads
from neuron_autoport.hosts.neuron.engine import current_ranks as tensor_parallel

__all__ = [
    "ACT2CLS",
    "ACT2FN",
    "NK",
    "ROPE_INIT_FUNCTIONS",
    "Backbone",
    "Conv1D",
    "Head",
    "Layers",
    "NeuronModel",
    "attention",
    "checkpoint_tensors",
    "columns",
    "every",
    "experts",
    "fuse",
    "fused_decode",
    "fused_heads",
    "head_norms",
    "maybe_autocast",
    "refuse_other",
    "register_model",
    "shard_heads",
    "share_experts",
    "tensor_parallel",
]
