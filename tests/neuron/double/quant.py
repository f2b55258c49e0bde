"""NF.rmsnorm_quant: RMS norm and FP8, with one scale or one per row."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double.args import Args
from tests.neuron.double.log import KERNEL
from tests.neuron.double.op import Function, Made, build

STATIC_MAX, ROW_MAX = 240.0, 448.0


def _check(a: Args) -> str:
    a.need(a.hidden.dim() in (2, 3), "hidden must be [T, H] or [B, S, H]")
    width = a.hidden.shape[-1]
    a.need(a.ln_w.numel() == width, f"ValueError: ln_w must be [{width}] or [1, {width}]")
    kind = a.quantization_type.name
    a.need(kind in ("STATIC", "ROW"), f"NotImplementedError: {kind}")
    if kind == "STATIC":
        a.shape("input_dequant_scale", 128, 1)
        a.dtype("input_dequant_scale", torch.float32)
    batch, length = (1, a.hidden.shape[0]) if a.hidden.dim() == 2 else a.hidden.shape[:2]
    if batch > 2:
        return f"torch: B = {batch} > 2"
    if length > 32768 or width > 16384:
        return f"torch: S = {length}, H = {width}"
    return KERNEL


def _compute(a: Args) -> list[Tensor]:
    x = F.rms(F.up(a.hidden), a.eps, a.ln_w)
    if a.quantization_type.name == "STATIC":
        scale = F.up(a.input_dequant_scale)[0, 0]
        return [(x / scale).clamp(-STATIC_MAX, STATIC_MAX).to(torch.float8_e4m3fn)]
    scale = (x.abs().amax(-1, keepdim=True) / ROW_MAX).clamp(min=1e-12)
    rows = (x / scale).clamp(-ROW_MAX, ROW_MAX).to(torch.float8_e4m3fn)
    tail = scale.float().contiguous().view(torch.float8_e4m3fn)
    return [torch.cat([rows.view(torch.uint8), tail.view(torch.uint8)], -1).view(rows.dtype)]


def _shapes(a: Args) -> Made:
    *front, width = a.hidden.shape
    extra = 4 if a.quantization_type.name == "ROW" else 0
    return [((*front, width + extra), torch.float8_e4m3fn)]


rmsnorm_quant = build(Function("rmsnorm_quant", _check, _shapes, _compute))
