"""RMS norms and look-alikes: (name, body of forward, more of __init__, expected).

Expected: the rule that must fuse it, or a reason code, or `NEAR` (the pattern is not there). Each order of
rounding must be fused by exactly its own rule.
"""

from __future__ import annotations

from tests.helpers import fill

NEAR = "near"

TEMPLATE = """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(W))
        self.eps = 1e-3
{init}

    def forward(self, x):
{body}
"""

LLAMA = """
    h = x.to(torch.float32)
    h = h * torch.rsqrt({mean} + self.eps)
    return self.weight * h.to(x.dtype)"""
MEAN = "h.pow(2).mean(-1, keepdim=True)"


def llama(mean: str) -> str:
    return LLAMA.format(mean=mean)


NORMS: list[tuple[str, str, str, str]] = [
    ("llama", llama(MEAN), "", "rms_norm"),
    ("llama, weight last", llama(MEAN).replace(
        "self.weight * h.to(x.dtype)", "h.to(x.dtype) * self.weight"), "", "rms_norm"),
    ("square()", llama("h.square().mean(-1, keepdim=True)"), "", "rms_norm"),
    ("torch.square", llama("torch.square(h).mean(dim=-1, keepdim=True)"), "", "rms_norm"),
    ("h * h", llama("(h * h).mean(-1, keepdim=True)"), "", "rms_norm"),
    ("h ** 2, last axis counted from the front", llama("(h**2).mean(2, True)"), "", "rms_norm"),
    ("torch.mean", llama("torch.mean(h**2.0, dim=(-1,), keepdim=True)"), "", "rms_norm"),
    ("eps first", llama(MEAN).replace(
        f"({MEAN} + self.eps)", f"(self.eps + {MEAN})"), "", "rms_norm"),
    ("power of -0.5", """
        h = x.float()
        h = h * (h.pow(2).mean(-1, keepdim=True) + self.eps).pow(-0.5)
        return self.weight * h.type_as(x)""", "", "rms_norm"),
    ("one over a root", """
        h = x.float()
        root = torch.sqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        h = h * (1 / root)
        return self.weight * h.type_as(x)""", "", "rms_norm"),
    ("reciprocal of a root", """
        h = x.float()
        h = h * torch.reciprocal((h.pow(2).mean(-1, keepdim=True) + self.eps).sqrt())
        return self.weight * h.type_as(x)""", "", "rms_norm"),
    ("in one expression", """
        return self.weight * (x.float() * torch.rsqrt(
            x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)""", "", "rms_norm"),
    ("weight in float32", """
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * h).to(x.dtype)""", "", "rms_norm_fp32_weight"),
    ("weight cast to float32", """
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * self.weight.float()).type_as(x)""", "", "rms_norm_fp32_weight"),
    ("zero centred", """
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1.0 + self.weight.float())).type_as(x)""",
     "nn.init.zeros_(self.weight)", "rms_norm_zero_centered"),
    ("zero centred by a helper", "return (self._norm(x.float()) * (self.weight.float() + 1)).to(x.dtype)"
     "\n\ndef _norm(self, v):\n"
     "    return v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + self.eps)",
     "nn.init.zeros_(self.weight)", "rms_norm_zero_centered"),
    ("no weight", """
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)""", "",
     "rms_norm_weightless"),
    ("weight of another shape, so without it", """
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(x.dtype)""",
     "self.weight = nn.Parameter(torch.ones(1, 1, W))", "rms_norm_weightless"),
    ("exp of the weight, so without it", """
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight.exp() * h.to(x.dtype)""", "", "rms_norm_weightless"),
    ("weight added, so without it", """
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight + h.to(x.dtype)""", "", "rms_norm_weightless"),
    ("normalised also returned, so without the weight", """
        h = x.float()
        h = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)
        return self.weight * h, h""", "", "rms_norm_weightless"),
    ("weight in a list", """
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.scales[0] * h.to(x.dtype)""",
     "self.scales = nn.ParameterList([self.weight])\ndel self.weight", "rms_norm"),
    # Not these norms.
    ("mean over another axis", llama("h.pow(2).mean(1, keepdim=True)"), "", NEAR),
    ("mean over two axes", llama("h.pow(2).mean((1, 2), keepdim=True)"), "", NEAR),
    ("mean over all", llama("h.pow(2).mean()"), "", NEAR),
    ("mean without keepdim", llama("h.pow(2).mean(-1).unsqueeze(-1)"), "", "rms_norm"),
    ("sum for mean", llama("h.pow(2).sum(-1, keepdim=True)"), "", NEAR),
    ("mean of absolute values", llama("h.abs().mean(-1, keepdim=True)"), "", NEAR),
    ("third power", llama("h.pow(3).mean(-1, keepdim=True)"), "", NEAR),
    ("eps outside the root", """
        h = x.to(torch.float32)
        h = h * (torch.rsqrt(h.pow(2).mean(-1, keepdim=True)) + self.eps)
        return self.weight * h.to(x.dtype)""", "", NEAR),
    ("no eps", """
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True))
        return self.weight * h.to(x.dtype)""", "", NEAR),
    ("eps learned", llama(MEAN), "self.eps = nn.Parameter(torch.full((1,), 1e-3))", NEAR),
    ("eps from the data", llama(MEAN).replace("+ self.eps", "+ h.mean() ** 2"), "", NEAR),
    ("eps by maximum", llama(f"{MEAN}.clamp(min=1e-3)").replace(" + self.eps", ""), "", NEAR),
    ("eps twice", llama(MEAN).replace("+ self.eps", "+ self.eps + 1e-2"), "", NEAR),
    ("layer norm", """
        h = x.to(torch.float32)
        h = h - h.mean(-1, keepdim=True)
        v = h.pow(2).mean(-1, keepdim=True)
        return self.weight * (h * torch.rsqrt(v + self.eps)).to(x.dtype) + 1""", "", NEAR),
    ("variance of one value, scaling another", """
        h = x.to(torch.float32)
        v = (h + 1).pow(2).mean(-1, keepdim=True)
        return self.weight * (h * torch.rsqrt(v + self.eps)).to(x.dtype)""", "", NEAR),
    ("groups", """
        h = x.to(torch.float32).view(2, 7, 4, 4)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h.view(2, 7, W).to(x.dtype)""", "", NEAR),
    ("one norm over rows and columns", """
        h = x.to(torch.float32).view(2, 7 * W)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h.view(2, 7, W).to(x.dtype)""", "", NEAR),
    ("all in bfloat16", """
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h""", "", NEAR),
    ("mean in bfloat16", """
        v = x.pow(2).mean(-1, keepdim=True)
        h = x.float() * torch.rsqrt(v + self.eps)
        return self.weight * h.to(x.dtype)""", "", NEAR),
    ("rounded before the root", """
        h = x.float()
        v = h.pow(2).mean(-1, keepdim=True).to(x.dtype)
        h = h * torch.rsqrt(v + self.eps)
        return self.weight * h.to(x.dtype)""", "", NEAR),
    ("offset 0.5", """
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (0.5 + self.weight.float())).type_as(x)""", "", NEAR),
    ("offset 2", """
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (2 + self.weight.float())).type_as(x)""", "", NEAR),
    ("offset before the cast", """
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1 + self.weight).float()).type_as(x)""", "", NEAR),
    ("absolute weight", """
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * self.weight.float().abs()).type_as(x)""", "", NEAR),
    ("clamped weight", """
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * self.weight.float().clamp(min=0.1)).type_as(x)""", "", NEAR),
    ("result stays float32", """
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight.float() * h""", "", "rms_norm_fp32_input"),
    ("float32 value kept", """
        h = x.float()
        n = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * n.to(x.dtype), h""", "", "AP201"),
    ("scaled in place", """
        h = x.float()
        h.mul_(torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps))
        return self.weight * h.to(x.dtype)""", "", NEAR),
    # A stream that is kept in float32.
    ("float32 stream", """
        h = x.float() + x.float().tanh()
        n = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * n.to(h.dtype)""", "", "rms_norm_fp32_input"),
    ("float32 stream divided by the root", """
        h = x.float()
        return self.weight * (h / torch.sqrt(torch.mean(h**2, -1, True) + self.eps))""", "",
     "rms_norm_fp32_input"),
    ("float32 stream, zero centred", """
        h = x.float()
        n = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)
        return (1 + self.weight) * n""", "", NEAR),
    ("float32 stream, sum of squares", """
        h = x.float()
        n = h * torch.rsqrt(h.square().sum(-1, keepdim=True) + self.eps)
        return self.weight * n""", "", NEAR),
    # The inverse root is rounded before it is used.
    ("rounded root", """
        v = x.float().square().mean(-1, keepdim=True) + self.eps
        return x * torch.rsqrt(v).to(x.dtype)""", "", "rms_norm_rounded_root"),
    ("rounded root, other side", """
        v = x.float().square().mean(-1, keepdim=True) + self.eps
        return v.rsqrt().type_as(x) * x""", "", "rms_norm_rounded_root"),
    ("rounded mean", """
        v = x.float().square().mean(-1, keepdim=True).to(x.dtype) + self.eps
        return x * torch.rsqrt(v)""", "", NEAR),
    ("rounded root of the half", """
        h = x[..., : W // 2]
        v = h.float().square().mean(-1, keepdim=True) + self.eps
        return x * torch.rsqrt(v).to(x.dtype)""", "", NEAR),
    # Conditions on attributes in helper methods are settled; others are branches.
    ("helpers with settled branches", """
        x = self.normalize(x)
        x = self.scaled(x)
        return x

        def normalize(self, x):
            kept = x.dtype
            if self.wide:
                x = x.float()
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
            return x.to(kept)

        def scaled(self, x):
            if self.weight is not None:
                x = x * self.weight
            if self.shift is not None:
                x = x + self.shift
            return x""", "self.wide, self.shift = True, None", "rms_norm"),
    ("helper with a branch on its input", """
        return self.weight * self.normalize(x)

        def normalize(self, x):
            h = x.float()
            if x.shape[0] > 5:
                h = h / 2
            h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
            return h.to(x.dtype)""", "", "AP208"),
    ("helper that returns a value before the last", """
        n, x = self.normalize(x), x
        return n

        def normalize(self, x):
            h = x.float()
            n = self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)
            m = n
            n = n * 2
            return m""", "", "AP208"),
    ("input bound again", """
        h = x.float()
        x = x * 2
        n = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * n.to(torch.bfloat16 if x.dtype == torch.bfloat16 else x.dtype)""", "",
     "AP209"),
    ("input without a name", """
        h, twice = (x * 2).float(), x + x
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(x.dtype) + twice""", "", "AP207"),
    ("scaled by a root of another width", llama(MEAN), "self.weight = nn.Parameter(torch.ones(1))",
     "rms_norm_weightless"),
]  # fmt: skip


def source_of(body: str, init: str) -> str:
    """The class of one entry."""
    return fill(TEMPLATE, body, init)
