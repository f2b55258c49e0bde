"""The hidden norm that `qkv_proj` and `mlp` fuse, in torch.

It works in the dtype of the input, with no upcast, as the plugin's torch path does: in bfloat16 it
is coarser than a Hugging Face norm, which computes in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.enums import NormType


def check_norm(
    function: str,
    norm_type: NormType,
    width: int,
    gamma: Tensor | None,
    beta: Tensor | None,
    names: str,
) -> None:
    """Refuse a norm whose arguments do not fit its type.

    Args:
        width: the size H of the normalized axis; gamma and beta are [1, H].
        names: what the caller calls gamma and beta, as "gamma beta".

    Raises:
        ValueError: naming the argument.
    """
    gamma_name, beta_name = names.split()
    checks.member(function, "norm_type", norm_type, NormType)
    kind = f"norm_type is {norm_type.name}"
    if norm_type in (NormType.NO_NORM, NormType.RMS_NORM_SKIP_GAMMA):
        checks.unused(function, kind, **{gamma_name: gamma})
    if norm_type != NormType.LAYER_NORM:
        checks.unused(function, kind, **{beta_name: beta})
    if norm_type == NormType.RMS_NORM and gamma is None:
        raise ValueError(
            f"NF.{function}: {gamma_name} is required when {kind}; "
            "without a weight use RMS_NORM_SKIP_GAMMA"
        )
    checks.row(function, gamma_name, gamma, width)
    checks.row(function, beta_name, beta, width)


def hidden_norm(
    x: Tensor,
    norm_type: NormType,
    gamma: Tensor | None,
    beta: Tensor | None,
    eps: float,
    divisor: int,
) -> Tensor:
    """Normalize x [..., H] over its last axis, all in the dtype of x.

    RMS: x * rsqrt(sum(x^2) / divisor + eps) * gamma. LayerNorm: population variance, * gamma +
    beta.
    """
    if norm_type == NormType.NO_NORM:
        return x
    if norm_type == NormType.LAYER_NORM:
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        y = (x - mean) * torch.rsqrt(variance + eps)
    else:
        y = x * torch.rsqrt(x.square().sum(-1, keepdim=True) / divisor + eps)
    if gamma is not None:
        y = y * gamma
    if beta is not None:
        y = y + beta
    return y
