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
    BlockShardStrategy,
    ExpertAffinityScaleMode,
    MoECTEImplementation,
    NormType,
    QKVOutputLayout,
    QKVWeightLayout,
    QuantizationType,
    RouterActFnType,
    RouterComputationOrder,
)
from neuron_autoport.nf.expert_parallel import get_local_expert_affinities
from neuron_autoport.nf.flash_attention import flash_attention
from neuron_autoport.nf.mlp import mlp
from neuron_autoport.nf.moe_block_tkg import moe_block_tkg
from neuron_autoport.nf.moe_blockwise import build_blockwise_mapping
from neuron_autoport.nf.moe_cte import moe_cte
from neuron_autoport.nf.moved import moved
from neuron_autoport.nf.o_proj import o_proj
from neuron_autoport.nf.phase import decode_phase, decoding
from neuron_autoport.nf.qkv_proj import qkv_proj
from neuron_autoport.nf.router import router
from neuron_autoport.nf.segmented_attention import segmented_attention
from neuron_autoport.nf.weights import HostedWeight, PairedWeight, Weight

__all__ = [
    "ActFnType",
    "BlockShardStrategy",
    "ExpertAffinityScaleMode",
    "HostedWeight",
    "MoECTEImplementation",
    "NormType",
    "PairedWeight",
    "QKVOutputLayout",
    "QKVWeightLayout",
    "QuantizationType",
    "RouterActFnType",
    "RouterComputationOrder",
    "Weight",
    "attention_decode",
    "backend",
    "build_blockwise_mapping",
    "decode_phase",
    "decoding",
    "flash_attention",
    "gen_attention_decode_mask",
    "get_local_expert_affinities",
    "mlp",
    "moe_block_tkg",
    "moe_cte",
    "moved",
    "o_proj",
    "qkv_proj",
    "router",
    "segmented_attention",
]
