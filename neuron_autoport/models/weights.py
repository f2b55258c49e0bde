"""Adversarial weights: values under which a wrong rewrite shows.

A fresh model has ones in its norms and zeros in its biases, so a rewrite that drops a norm weight,
a bias or the `1 +` of a zero-centred norm computes the same numbers. `adversarial_` replaces every
value a checkpoint would fill by one with no such accident, decided by what the fresh module holds,
never by a model's name.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

OUTLIER_SCALE = 40.0
OUTLIER_EVERY = 8
_EMBEDDING_STD = 0.25
# Values beyond this in a structured parameter are left-over memory, not a meaning to keep.
_PLAUSIBLE = 100.0


def adversarial_(module: nn.Module, seed: int = 0) -> None:
    """Fill all parameters and checkpointed float buffers of a fresh `module`, in place.

    Deterministic: each tensor depends on `seed`, its name, shape and the kind of its fresh value
    only, and is drawn in float32 before it is rounded to the tensor's dtype. Tied parameters are
    drawn once.

    - constant one -> 1 + 0.5 randn (one in 44 negative); constant zero -> 0.3 randn;
    - biases -> 0.5 randn;
    - weight matrices -> randn / sqrt(fan_in), also routers, whose logits so differ by about 1;
    - the token embedding -> small randn with one channel in eight 40 times as large; smaller when
      it is also the output head, so that logits stay around 10;
    - structured values (decay rates, time steps, sinks, mixing factors) -> the fresh value + 0.3
      randn;
    - non-finite values (memory no initialisation wrote to) -> 0.3 randn.

    Non-persistent buffers (rotary tables, masks) and integer buffers are derived from the
    configuration and are left alone.

    Raises:
        ValueError: a parameter is on the meta device.
    """
    embedding, tied = _token_embedding(module)
    with torch.no_grad():
        for name, owner, tensor in _fillable(module):
            if tensor.is_meta:
                raise ValueError(f"{name} is on the meta device and cannot be filled")
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}:{name}".encode()))
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
            if tensor is embedding:
                value = _embedding_values(noise, tied, generator)
            elif isinstance(tensor, nn.Parameter):
                value = _parameter_values(name.rpartition(".")[2], owner, tensor.float(), noise)
            else:
                value = _buffer_values(tensor.float(), noise)
            tensor.copy_(value)


def _fillable(module: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """(full name, owning module, tensor) of each distinct float tensor a checkpoint would hold."""
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        tensors: dict[str, Tensor | None] = {**owner._parameters}
        tensors |= {
            k: b for k, b in owner._buffers.items() if k not in owner._non_persistent_buffers_set
        }
        for local, tensor in tensors.items():
            if tensor is None or not tensor.is_floating_point() or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            yield f"{prefix}.{local}" if prefix else local, owner, tensor


def _token_embedding(module: nn.Module) -> tuple[Tensor | None, bool]:
    """The token embedding's weight, and whether it is also the output head's."""
    weight = _weight_of(module, "get_input_embeddings")
    head = _weight_of(module, "get_output_embeddings")
    return weight, weight is not None and weight is head


def _weight_of(module: nn.Module, getter: str) -> Tensor | None:
    get = getattr(module, getter, None)
    try:
        owner = get() if get is not None else None
    except (
        AttributeError,
        NotImplementedError,
    ):  # a model without such a part says so in either way
        return None
    weight = getattr(owner, "weight", None)
    return weight if isinstance(weight, Tensor) else None


def _embedding_values(noise: Tensor, tied: bool, generator: torch.Generator) -> Tensor:
    """[vocabulary, channels]: std 0.25, one channel in eight 40 times that.

    For a tied head the norm's output h (RMS about 1, mass mostly in the outlier channels) meets
    rows of RMS std * 14.2, and the logits' standard deviation is about 5 * channels * std: 2 /
    channels keeps it near 10.
    """
    channels = noise.shape[-1]
    std = min(_EMBEDDING_STD, 2.0 / channels) if tied else _EMBEDDING_STD
    count = max(1, channels // OUTLIER_EVERY)
    outliers = torch.randperm(channels, generator=generator)[:count]
    value = noise * std
    value[..., outliers] *= OUTLIER_SCALE
    return value


def _parameter_values(local: str, owner: nn.Module, fresh: Tensor, noise: Tensor) -> Tensor:
    if fresh.numel() == 0:
        return fresh
    constant = _constant(fresh)
    if "bias" in local and (constant is None or constant == 0.0) and not _structured(fresh):
        return 0.5 * noise
    if constant is not None and constant != 0.0:
        return constant * (1.0 + 0.5 * noise)
    if fresh.ndim >= 2 and not _structured(fresh):
        return noise / math.sqrt(_fan_in(owner, fresh))
    if constant == 0.0 or not _plausible(fresh):
        return 0.3 * noise
    return fresh + 0.3 * noise


def _buffer_values(fresh: Tensor, noise: Tensor) -> Tensor:
    """Checkpointed buffers: corrections added to router scores (zeros) and scales (ones)."""
    constant = _constant(fresh) if fresh.numel() else None
    if constant == 0.0 or not _plausible(fresh):
        return 0.2 * noise
    return constant * (1.0 + 0.25 * noise) if constant is not None else fresh


def _constant(fresh: Tensor) -> float | None:
    """The one finite value all elements have, or None."""
    first = fresh.reshape(-1)[0]
    if not bool(torch.isfinite(first)) or not bool((fresh == first).all()):
        return None
    return float(first)


def _plausible(fresh: Tensor) -> bool:
    return bool(torch.isfinite(fresh).all()) and float(fresh.abs().max()) <= _PLAUSIBLE


def _structured(fresh: Tensor) -> bool:
    """True if the values mean something: log decay rates, mixing factors, time-step biases.

    Random initialisation has mean zero; a mean beyond half the spread (and beyond what a small
    sample may have by chance) is a design.
    """
    if fresh.numel() < 2 or not _plausible(fresh) or _constant(fresh) is not None:
        return False
    std = float(fresh.std())
    return abs(float(fresh.mean())) > std * (0.5 + 3.0 / math.sqrt(fresh.numel()))


def _fan_in(owner: nn.Module, weight: Tensor) -> int:
    """Length of the dot product that `weight` takes part in.

    Linear is [out, in]; transformers' Conv1D (attribute `nf`) is [in, out]; convolutions [out, in /
    groups, kernel...]; stacked experts [experts, out, in], or [experts, in, out] with
    `is_transposed`.
    """
    if isinstance(owner, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return math.prod(weight.shape[1:])
    if weight.ndim == 2 and hasattr(owner, "nf"):
        return weight.shape[0]
    if weight.ndim >= 3 and getattr(owner, "is_transposed", False):
        return weight.shape[-2]
    return max(1, weight.shape[-1])
