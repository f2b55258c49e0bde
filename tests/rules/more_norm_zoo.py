"""Layer norms, torch's own RMS norm and sums with norms, and their look-alikes: a part of `more_zoo.py`."""

from __future__ import annotations

Entry = tuple[str, str, str, str, tuple[str, ...]]
# A norm that other modules of the tests hold.
RMS = """
class RMS(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(W))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * h.to(x.dtype)
"""
NORM_TEMPLATES = {
    "norms": """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(W))
        self.bias = nn.Parameter(torch.zeros(W))
        self.eps = 1e-3
{init}

    def forward(self, x):
{body}
""",
    "add_norm": RMS
    + """

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = RMS(), RMS()
        self.mix, self.mlp = nn.Linear(W, W), nn.Linear(W, W)
        self.scale = 0.22
{init}

    def forward(self, x):
{body}
""",
}
NORM_TEMPLATES["layer_norm"] = NORM_TEMPLATES["torch_norm"] = NORM_TEMPLATES["norms"]

LN, FP32 = ("layer_norm",), ("layer_norm_fp32",)
WRITTEN = """
h = x.float()
m = h.mean(-1, keepdim=True)
v = {variance}
h = (h - m) * torch.rsqrt(v + self.eps)
return (self.weight.float() * h).to(x.dtype)"""
VARIANCE = "(h - m).pow(2).mean(-1, keepdim=True)"


def written(variance: str = VARIANCE) -> str:
    return WRITTEN.format(variance=variance)


LAYER_NORMS: list[Entry] = [
    ("layer_norm", "weight and bias",
     "return F.layer_norm(x, (W,), self.weight, self.bias, self.eps)", "", LN),
    ("layer_norm", "by keyword, in another order",
     "return F.layer_norm(eps=self.eps, bias=self.bias, weight=self.weight, "
     "normalized_shape=[W], input=x)", "", LN),
    ("layer_norm", "no bias", "return F.layer_norm(x, (W,), self.weight, None, 1e-5)", "", LN),
    ("layer_norm", "neither", "return F.layer_norm(x, (W,), eps=1e-5)", "", LN),
    ("layer_norm", "default epsilon", "return F.layer_norm(x, x.shape[-1:], self.weight)", "", LN),
    ("layer_norm", "torch.layer_norm",
     "return torch.layer_norm(x, [W], self.weight, self.bias, 1e-5)", "", LN),
    ("layer_norm", "written out in float32", written(), "", FP32),
    ("layer_norm", "written out, difference named", """
        h = x.to(torch.float32)
        d = h - h.mean(-1, keepdim=True)
        d = d * torch.rsqrt((d * d).mean(-1, keepdim=True) + self.eps)
        return (d * self.weight.to(torch.float32)).to(x.dtype)""", "", FP32),
    ("layer_norm", "over two axes", "return F.layer_norm(x, (7, W))", "", ()),
    ("layer_norm", "weight computed from a parameter",
     "return F.layer_norm(x, (W,), self.weight.exp(), self.bias)", "", ()),
    ("layer_norm", "weight plus one", "return F.layer_norm(x, (W,), self.weight + 1, self.bias)",
     "", ()),
    ("layer_norm", "weight from the data",
     "return F.layer_norm(x, (W,), x.mean((0, 1)), self.bias)", "", ()),
    ("layer_norm", "unbiased variance", written("h.var(-1, keepdim=True)"), "", ()),
    ("layer_norm", "variance about zero", written("h.pow(2).mean(-1, keepdim=True)"), "", ()),
    ("layer_norm", "mean absolute deviation", written("(h - m).abs().mean(-1, keepdim=True)"), "",
     ()),
    ("layer_norm", "variance over the tokens", written("(h - m).pow(2).mean(1, keepdim=True)"), "",
     ()),
    ("layer_norm", "mean over the tokens", written().replace("h.mean(-1", "h.mean(1"), "", ()),
    ("layer_norm", "root and epsilon exchanged", written().replace(
        "torch.rsqrt(v + self.eps)", "(torch.rsqrt(v) + self.eps)"), "", ()),
    ("layer_norm", "mean added", written().replace("(h - m) *", "(h + m) *"), "", ()),
    ("layer_norm", "stays float32", written().replace(".to(x.dtype)", ""), "", ()),
    ("layer_norm", "centred values reused", written().replace(
        "return (self", "x = x + h.to(x.dtype)\nreturn (self"), "", ()),
    ("layer_norm", "group norm", "return F.group_norm(x.transpose(1, 2), 4).transpose(1, 2)", "",
     ()),
]  # fmt: skip

T = ("rms_norm_torch",)
TORCH_NORMS: list[Entry] = [
    ("torch_norm", "with weight", "return F.rms_norm(x, (W,), self.weight, 1e-5)", "", T),
    ("torch_norm", "without weight", "return F.rms_norm(x, x.shape[-1:], eps=1e-5)", "", T),
    ("torch_norm", "by keyword",
     "return F.rms_norm(input=x, normalized_shape=[W], weight=self.weight, eps=self.eps)", "", T),
    ("torch_norm", "over two axes", "return F.rms_norm(x, (7, W), eps=1e-5)", "", ()),
    ("torch_norm", "clamped weight",
     "return F.rms_norm(x, (W,), self.weight.clamp(min=0.1), 1e-5)", "", ()),
    ("torch_norm", "weight of the data", "return F.rms_norm(x, (W,), x[0, 0], 1e-5)", "", ()),
    ("torch_norm", "length one vectors", "return F.normalize(x, dim=-1, eps=1e-5)", "", ()),
]  # fmt: skip

A = ("add_rms_norm",)
ADD_NORMS: list[Entry] = [
    ("add_norm", "sum used further", """
        s = x + self.mix(x)
        return s + self.mlp(self.norm(s))""", "", A),
    ("add_norm", "branch first", """
        s = self.mix(x) + x
        return s + self.mlp(self.norm(s))""", "", A),
    ("add_norm", "torch.add", """
        s = torch.add(x, self.mix(x))
        return self.mlp(self.norm(s)) + s""", "", A),
    ("add_norm", "sum also returned", """
        s = x + self.mix(x)
        return self.norm(s), s""", "", A),
    ("add_norm", "two in a row", """
        s = x + self.mix(x)
        h = self.norm(s)
        t = s + self.mlp(h)
        return self.norm2(t), t""", "", (*A, *A)),
    ("add_norm", "two, one inside the other's expression", """
        s = x + self.mix(x)
        t = s + self.mlp(self.norm(s))
        return self.norm2(t), t""", "", (*A, *A)),
    ("add_norm", "difference", """
        s = x - self.mix(x)
        return s + self.mlp(self.norm(s))""", "", ()),
    ("add_norm", "product", """
        s = x * self.mix(x)
        return s + self.mlp(self.norm(s))""", "", ()),
    ("add_norm", "alpha in the sum", """
        s = torch.add(x, self.mix(x), alpha=2)
        return s + self.mlp(self.norm(s))""", "", ()),
    ("add_norm", "norm of the branch, not of the sum", """
        r = self.mix(x)
        s = x + r
        return s + self.mlp(self.norm(r))""", "", ()),
    ("add_norm", "number added", """
        s = x + 1.0
        return s + self.mlp(self.norm(s))""", "", ()),
    ("add_norm", "row added to all", """
        s = x + self.mix(x)[:, :1]
        return s + self.mlp(self.norm(s))""", "", ()),
    ("add_norm", "rounded in another dtype between", """
        s = x + self.mix(x)
        return s + self.mlp(self.norm(s.half().to(x.dtype)))""", "", ()),
    ("add_norm", "scaled between", """
        s = x + self.mix(x)
        return s + self.mlp(self.norm(s * self.scale))""", "", ()),
    ("add_norm", "a norm that subtracts the mean", """
        s = x + self.mix(x)
        return s + self.mlp(self.norm(s))""", "self.norm = nn.LayerNorm(W)", ()),
    ("add_norm", "sum written between", """
        s = x + self.mix(x)
        s[:, 0] = 0
        return s + self.mlp(self.norm(s))""", "", ()),
    ("add_norm", "residual written between", """
        r = self.mix(x)
        s = x + r
        r.zero_()
        return s + self.mlp(self.norm(s)) + r""", "", ()),
    ("add_norm", "norm in a branch", """
        s = x + self.mix(x)
        if s.shape[1] > 1:
            return self.norm(s), s
        return s, s""", "", ()),
]  # fmt: skip
