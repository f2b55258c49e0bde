"""How operations of a pattern are written in Python: for examples that are made from a pattern."""

from __future__ import annotations

# `x` stands for the operand.
SPELLED: dict[str, str] = {
    "square": "torch.square(x)",
    "rsqrt": "torch.rsqrt(x)",
    "sqrt": "torch.sqrt(x)",
    "exp": "torch.exp(x)",
    "tanh": "torch.tanh(x)",
    "sigmoid": "torch.sigmoid(x)",
    "silu": "F.silu(x)",
    "gelu": "F.gelu(x)",
    "gelu_tanh": "F.gelu(x, approximate='tanh')",
    "quick_gelu": "x * torch.sigmoid(1.702 * x)",
    "relu": "F.relu(x)",
    "relu2": "F.relu(x).square()",
    "neg": "-x",
    "cos": "torch.cos(x)",
    "sin": "torch.sin(x)",
    "abs": "torch.abs(x)",
    "log": "torch.log(x)",
    "softplus": "F.softplus(x)",
    "reciprocal": "torch.reciprocal(x)",
    "fp32": "x.float()",
}
# Those of several operands, by number.
SPELLED_WITH: dict[str, str] = {
    "matmul": "torch.matmul({0}, {1})",
    "clamp": "torch.clamp({0}, {1}, {2})",
    "layer_norm": "F.layer_norm({0}, ({0}).shape[-1:], {1}, {2}, {3})",
    "rms_norm": "F.rms_norm({0}, ({0}).shape[-1:], {1}, {2})",
}
