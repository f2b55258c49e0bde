"""NF: the fused functions of the vLLM Neuron plugin, callable on any machine.

    from neuron_autoport import nf as NF

Each function has the plugin's name, parameters and defaults. Where the plugin is installed and its
platform is active the call goes there, else to a torch reference that computes the same
(`NF.backend()` tells which).
"""

from neuron_autoport.nf.attention_decode import attention_decode
from neuron_autoport.nf.decode_mask import gen_attention_decode_mask
from neuron_autoport.nf.dispatch import backend
from neuron_autoport.nf.enums import (
    ActFnType,
    NormType,
    QKVOutputLayout,
    QKVWeightLayout,
    QuantizationType,
)
from neuron_autoport.nf.flash_attention import flash_attention
from neuron_autoport.nf.mlp import mlp
from neuron_autoport.nf.moved import moved
from neuron_autoport.nf.o_proj import o_proj
from neuron_autoport.nf.phase import decode_phase, decoding
from neuron_autoport.nf.qkv_proj import qkv_proj
from neuron_autoport.nf.segmented_attention import segmented_attention
from neuron_autoport.nf.weights import HostedWeight, PairedWeight, Weight

__all__ = [
    "ActFnType",
    "HostedWeight",
    "NormType",
    "PairedWeight",
    "QKVOutputLayout",
    "QKVWeightLayout",
    "QuantizationType",
    "Weight",
    "attention_decode",
    "backend",
    "decode_phase",
    "decoding",
    "flash_attention",
    "gen_attention_decode_mask",
    "mlp",
    "moved",
    "o_proj",
    "qkv_proj",
    "segmented_attention",
]
