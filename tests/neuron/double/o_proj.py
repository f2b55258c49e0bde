"""NF.o_proj: heads [B, N, D, S] merged, times the weight [N * D, H], plus the bias."""

from __future__ import annotations

from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double.args import Args
from tests.neuron.double.log import KERNEL
from tests.neuron.double.op import Function, Made, build


def _heads(a: Args) -> tuple[int, int]:
    """N and D; of a 3D input D is the largest divisor of N * D that is not above 128."""
    if a.active.dim() == 4:
        return a.active.shape[1], a.active.shape[2]
    columns = a.active.shape[2]
    d = max(size for size in range(1, min(columns, 128) + 1) if columns % size == 0)
    return columns // d, d


def check(a: Args) -> str:
    """Shapes and dtypes; no quantization in the torch formula; then the kernel's limits."""
    a.need(a.active.dim() in (3, 4), "active must be [B, N, D, S] or [B, S, N * D]")
    n, d = _heads(a)
    a.shape("weight", n * d, -1)
    width = a.weight.shape[1]
    a.shape("bias", 1, width, optional=True)
    a.same_dtype("active", "weight", "bias")
    a.need(a.quantization_type.name == "NONE", "the torch formula refuses quantization")
    a.need(not a.given(["input_scales", "weight_scales"]), "the torch formula refuses scales")
    batch, length = a.active.shape[0], a.active.shape[3 if a.active.dim() == 4 else 1]
    rules = (
        (width > 20705, f"H = {width} > 20705"),
        (batch * length > 131072, f"B * S = {batch * length} > 131072"),
        (n > 17, f"N = {n} > 17"),
        (d > 128, f"D = {d} > 128"),
        (width % 2 != 0, f"H = {width} is odd"),
    )
    return next((f"torch: {why}" for broken, why in rules if broken), KERNEL)


def compute(a: Args) -> list[Tensor]:
    """merge(active) @ weight + bias."""
    x = F.up(a.active)
    if x.dim() == 4:
        x = x.permute(0, 3, 1, 2).flatten(2)
    y = x @ F.up(a.weight)
    return [(y if a.bias is None else y + F.up(a.bias)).to(a.active.dtype)]


def shapes(a: Args) -> Made:
    """[B, S, H]."""
    length = a.active.shape[3 if a.active.dim() == 4 else 1]
    return [((a.active.shape[0], length, a.weight.shape[1]), a.active.dtype)]


o_proj = build(Function("o_proj", check, shapes, compute))
