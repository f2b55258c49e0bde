"""The enums the NF functions take, with the member names of the plugin's contract.

The plugin keeps the same enums in `nkilib.core.utils.common_types`. Their values are its own
business, so members are carried over by name (see `dispatch.py`) and each value here is simply that
name.
"""

from __future__ import annotations

from enum import Enum


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
