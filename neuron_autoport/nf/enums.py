"""The enums the NF functions take, with the member names of the plugin's contract.

The plugin keeps the same enums, most of them in `nkilib.core.utils.common_types` (`MODULES` has the rest).
Their values are its own business, so members are carried over by name (see `dispatch.py`) and each value
here is simply that name.
"""

from __future__ import annotations

from enum import Enum

COMMON = "nkilib.core.utils.common_types"
_CTE = "nkilib.core.moe.moe_cte.moe_cte"
# Where the plugin keeps an enum, by its name; `COMMON` for those that are not here.
MODULES = {
    "MoECTEImplementation": _CTE,
    "BlockShardStrategy": _CTE,
    "RouterComputationOrder": "vllm_neuron.functional.moe.router",
}
# The default dtype of some kernels, a member of `nki.language`, which is not imported here. An NF call hands
# on only what it was given, so in the plugin its own default stands.
NL_BFLOAT16 = "nl.bfloat16"


class NormType(Enum):
    """Normalization before a fused projection."""

    NO_NORM = "NO_NORM"
    RMS_NORM = "RMS_NORM"
    LAYER_NORM = "LAYER_NORM"
    RMS_NORM_SKIP_GAMMA = "RMS_NORM_SKIP_GAMMA"


class ActFnType(Enum):
    """Activation between the two halves of an MLP."""

    SiLU = "SiLU"
    GELU = "GELU"
    GELU_Tanh_Approx = "GELU_Tanh_Approx"
    Swish = "Swish"


class QKVOutputLayout(Enum):
    """Layout of a QKV result: B batch, S sequence, D all heads, N heads, d one head."""

    BSD = "BSD"
    NBSd = "NBSd"
    NBdS = "NBdS"


class QuantizationType(Enum):
    """Weight and activation quantization. The torch reference takes `NONE` only."""

    NONE = "NONE"
    STATIC = "STATIC"
    ROW = "ROW"
    MX = "MX"
    STATIC_MX = "STATIC_MX"
    ROW_MX = "ROW_MX"


class QKVWeightLayout(Enum):
    """Packing of the fused QKV weight. The torch reference takes `CONTIGUOUS` only."""

    CONTIGUOUS = "CONTIGUOUS"
    MX_CONTIGUOUS = "MX_CONTIGUOUS"
    MX_INTERLEAVED = "MX_INTERLEAVED"


class RouterActFnType(Enum):
    """Score function of a router in `moe_block_tkg`."""

    SIGMOID = "SIGMOID"
    SOFTMAX = "SOFTMAX"


class RouterComputationOrder(Enum):
    """In which order `router` scores and chooses."""

    PRENORM_LINEAR_TOPK_ACT_SCATTER = "PRENORM_LINEAR_TOPK_ACT_SCATTER"
    PRENORM_LINEAR_ACT_TOPK_RENORM_SCATTER = "PRENORM_LINEAR_ACT_TOPK_RENORM_SCATTER"
    PRENORM_LINEAR_TOPK_SCATTER_ACT = "PRENORM_LINEAR_TOPK_SCATTER_ACT"


class ExpertAffinityScaleMode(Enum):
    """Where an expert's weight is multiplied: at its output, its input, between its products, nowhere."""

    NO_SCALE = "NO_SCALE"
    POST_SCALE = "POST_SCALE"
    PRE_SCALE = "PRE_SCALE"
    PRE_SCALE_DELAYED = "PRE_SCALE_DELAYED"


class MoECTEImplementation(Enum):
    """Which kernel `moe_cte` runs. The torch reference computes the same for all without MX."""

    shard_on_block = "shard_on_block"
    shard_on_i = "shard_on_i"
    shard_on_i_hybrid = "shard_on_i_hybrid"
    shard_on_i_dropping = "shard_on_i_dropping"
    shard_on_block_mx = "shard_on_block_mx"
    shard_on_i_mx = "shard_on_i_mx"
    shard_on_i_mx_hybrid = "shard_on_i_mx_hybrid"


class BlockShardStrategy(Enum):
    """How the cores share blocks in `moe_cte`."""

    HI_LO = "HI_LO"
    PING_PONG = "PING_PONG"
