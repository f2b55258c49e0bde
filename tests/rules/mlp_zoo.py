"""Gated MLPs and look-alikes: (name, body of forward, more of __init__, expected).

Expected: `FUSED` (all of them must pass their proof), or the reason codes of the refusal; `NEAR`
stands for no site and no full match (the pattern is not there).
"""

from __future__ import annotations

from tests.helpers import fill

FUSED, NEAR = "fused", "near"

TEMPLATE = """
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(W, I)
        self.up = nn.Linear(W, I)
        self.down = nn.Linear(I, W)
        self.act = nn.SiLU()
{init}

    def forward(self, x):
{body}
"""

# (name, body, init, expected)
GATED: list[tuple[str, str, str, str]] = [
    ("plain", "return self.down(self.act(self.gate(x)) * self.up(x))", "", FUSED),
    ("gate with keyword", "return self.down(self.act(self.gate(input=x)) * self.up(x))", "", FUSED),
    ("swapped operands", "return self.down(self.up(x) * self.act(self.gate(x)))", "", FUSED),
    ("names lie", "return self.gate_(self.act(self.down_(x)) * self.act_(x))",
     "self.gate_, self.down_, self.act_ = self.down, self.gate, self.up\n"
     "del self.down, self.gate, self.up", FUSED),
    ("step by step", """
        g = self.gate(x)
        u = self.up(x)
        g = self.act(g)
        h = g * u
        return self.down(h)""", "", FUSED),
    ("functional silu", "return self.down(F.silu(self.gate(x)) * self.up(x))", "", FUSED),
    ("silu spelled out", """
        g = self.gate(x)
        return self.down(g * torch.sigmoid(g) * self.up(x))""", "", FUSED),
    ("gelu tanh", "return self.down(F.gelu(self.gate(x), approximate='tanh') * self.up(x))", "",
     FUSED),
    ("gelu erf", "return self.down(self.act(self.gate(x)) * self.up(x))",
     "self.act = ACT2FN['gelu']", FUSED),
    ("silu of ACT2FN", "return self.down(self.act(self.gate(x)) * self.up(x))",
     "self.act = ACT2FN['silu']", FUSED),
    ("no biases", "return self.down(self.act(self.gate(x)) * self.up(x))",
     "self.gate = nn.Linear(W, I, bias=False)\nself.up = nn.Linear(W, I, bias=False)\n"
     "self.down = nn.Linear(I, W, bias=False)", FUSED),
    ("one bias", "return self.down(self.act(self.gate(x)) * self.up(x))",
     "self.up = nn.Linear(W, I, bias=False)", FUSED),
    ("inactive dropout", "return self.down(self.drop(self.act(self.gate(x)) * self.up(x)))",
     "self.drop = nn.Dropout(0.1)", FUSED),
    ("identity between", "return self.down(self.same(self.act(self.gate(x))) * self.up(x))",
     "self.same = nn.Identity()", FUSED),
    ("torch.mul", "return self.down(torch.mul(self.act(self.gate(x)), self.up(x)))", "", FUSED),
    ("residual outside", "return x + self.down(self.act(self.gate(x)) * self.up(x))", "", FUSED),
    ("input is computed", """
        h = x * 2
        return self.down(self.act(self.gate(h)) * self.up(h))""", "", FUSED),
    ("in a branch", """
        if x.ndim == 3:
            return self.down(self.act(self.gate(x)) * self.up(x))
        return x""", "", FUSED),
    ("rows viewed and viewed back", """
        h = self.act(self.gate(x)) * self.up(x)
        return self.down(h.view(-1, I).view(2, 7, I))""", "", FUSED),
    ("in a module list", "return self.down(self.act(self.list[0](x)) * self.list[1](x))",
     "self.list = nn.ModuleList([self.gate, self.up])\ndel self.gate, self.up", FUSED),
    ("helper that returns it", "return self.compute(x)\n\n"
     "def compute(self, v):\n    return self.down(self.act(self.gate(v)) * self.up(v))", "", FUSED),
    ("helper with a local value", "return self.compute(x + 1)\n\ndef compute(self, v):\n"
     "    h = v * 2\n    return self.down(self.act(self.gate(h)) * self.up(h))", "", "AP202"),
    ("helper with a branch not taken", "return self.compute(x)\n\ndef compute(self, v):\n"
     "    if v.shape[1] == 1:\n        return v\n"
     "    return self.down(self.act(self.gate(v)) * self.up(v))", "", "AP208"),
    ("helper that keeps a value", "return self.compute(x)\n\ndef compute(self, v):\n"
     "    self.seen = v.shape\n"
     "    return self.down(self.act(self.gate(v)) * self.up(v))", "", "AP208"),
    # What looks like it and is not.
    ("different inputs", "return self.down(self.act(self.gate(x)) * self.up(x + 1))", "", NEAR),
    ("gate applied twice", "return self.down(self.act(self.gate(x)) * self.gate(x))", "", NEAR),
    ("sum for product", "return self.down(self.act(self.gate(x)) + self.up(x))", "", NEAR),
    ("act on the product", "return self.down(self.act(self.gate(x) * self.up(x)))", "", NEAR),
    ("no up, product of two", "return self.down(self.act(self.gate(x)) * x.mean(-1, True))", "", NEAR),
    ("act on both", "return self.down(self.act(self.gate(x)) * self.act(self.up(x)))", "", NEAR),
    ("act twice", "return self.down(self.act(self.act(self.gate(x))) * self.up(x))", "", NEAR),
    ("no act", "return self.down(self.gate(x) * self.up(x))", "", NEAR),
    ("relu", "return self.down(F.relu(self.gate(x)) * self.up(x))", "", NEAR),
    ("elu", "return self.down(F.elu(self.gate(x)) * self.up(x))", "", NEAR),
    ("quick gelu", "return self.down(self.act(self.gate(x)) * self.up(x))",
     "self.act = ACT2FN['quick_gelu']", NEAR),
    ("gelu new, spelled out", "return self.down(self.act(self.gate(x)) * self.up(x))",
     "self.act = ACT2FN['gelu_new']", FUSED),
    ("sigmoid alone", "return self.down(torch.sigmoid(self.gate(x)) * self.up(x))", "", NEAR),
    ("silu with another factor", """
        g = self.gate(x)
        return self.down(g * torch.sigmoid(1.702 * g) * self.up(x))""", "", NEAR),
    ("multiplier", "return self.down(self.act(self.gate(x)) * self.up(x) * 0.5)", "", NEAR),
    ("clamp", "return self.down(self.act(self.gate(x).clamp(max=7)) * self.up(x))", "", NEAR),
    ("up plus one", "return self.down(self.act(self.gate(x)) * (self.up(x) + 1))", "", NEAR),
    ("norm between", "return self.down(self.norm(self.act(self.gate(x)) * self.up(x)))",
     "self.norm = nn.LayerNorm(I)", NEAR),
    ("active dropout",
     "return self.down(F.dropout(self.act(self.gate(x)) * self.up(x), 0.1, True))", "", NEAR),
    ("transposed rows", "return self.down((self.act(self.gate(x)) * self.up(x)).transpose(0, 1))",
     "", NEAR),
    ("outer product", """
        a, b = self.act(self.gate(x)).unsqueeze(1), self.up(x).unsqueeze(0)
        return self.down(a * b).sum(0)""", "", NEAR),
    ("columns viewed as rows", """
        h = (self.act(self.gate(x)) * self.up(x)).view(2, I, 7)
        return self.down(h.reshape(2, 7, I) * 1.0)""", "", NEAR),
    ("rounded to integers", "return self.down(self.act(self.gate(x)).to(torch.int8) * self.up(x))",
     "", NEAR),
    ("rows regrouped", "return self.down((self.act(self.gate(x)) * self.up(x)).view(-1, I))", "",
     "AP301"),
    ("up of half the width", """
        return self.down(self.act(self.gate(x)) * self.up(x))""",
     "self.up = nn.Linear(W, 1)", "AP301"),
    ("linear over a view of another width", """
        return self.down(self.act(self.odd(x)) * self.up(x))""", """\
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(7 * I, 7 * W))
    def forward(self, x):
        return F.linear(x.reshape(2, 7 * W), self.weight).view(2, 7, I)
self.odd = Odd()""", NEAR),
    # The pattern is there, and may not be replaced.
    ("product also returned", """
        h = self.act(self.gate(x)) * self.up(x)
        return self.down(h), h""", "", "AP201"),
    ("gate output reused", """
        g = self.gate(x)
        return self.down(self.act(g) * self.up(x)) + g.sum()""", "", "AP201"),
    ("inner name read by a branch not taken", """
        g = self.gate(x)
        y = self.down(self.act(g) * self.up(x))
        if x.shape[1] == 1:
            y = y + g.mean()
        return y""", "", "AP201"),
    ("inner name read for its shape", """
        g = self.gate(x)
        y = self.down(self.act(g) * self.up(x))
        return y.view(g.shape[0], g.shape[1], -1)""", "", "AP201"),
    ("second name of a removed statement", """
        g, n = self.gate(x), 3
        return self.down(self.act(g) * self.up(x)) * n""", "", "AP201"),
    ("walrus inside", """
        y = self.down(self.act(g := self.gate(x)) * self.up(x))
        return y * g.shape[0]""", "", "AP202"),
    ("weight read elsewhere", """
        y = self.down(self.act(self.gate(x)) * self.up(x))
        return y.to(self.gate.weight.dtype)""", "", "AP203"),
    ("weight read by a helper", "return self.down(self.act(self.gate(x)) * self.up(x)) + self.n()\n\n"
     "def n(self):\n    return self.gate.weight.sum()", "", "AP203"),
    ("weight of a list read elsewhere", """
        y = self.down(self.act(self.list[0](x)) * self.up(x))
        return y.to(self.list[0].weight.dtype)""",
     "self.list = nn.ModuleList([self.gate])\ndel self.gate", "AP203"),
    ("module called again", "return self.down(self.act(self.gate(x)) * self.up(x)) + self.up(x).sum()",
     "", "AP203"),
    ("two statements on a line", """
        g = self.gate(x); self.count = 3
        return self.down(self.act(g) * self.up(x))""", "", "AP203"),
    ("kept in an attribute", """
        g = self.last = self.gate(x)
        return self.down(self.act(g) * self.up(x))""", "", "AP203"),
    ("alias of the input written in place", """
        h = x * 1
        part = h.narrow(-1, 0, 4)
        g = self.gate(h)
        part.add_(3)
        return self.down(self.act(g) * self.up(h))""", "", "AP204"),
    ("slice of the input assigned", """
        h = x.clone()
        flat = h.view(-1, W)
        g = self.gate(h)
        flat[:, 0] = 0
        return self.down(self.act(g) * self.up(h))""", "", "AP204"),
    ("input written by a child", """
        h = x * 1
        g = self.gate(h)
        self.write(h.view(-1, W))
        return self.down(self.act(g) * self.up(h))""",
     "self.write = nn.ReLU(inplace=True)", "AP204"),
    ("input written by a function", """
        h = x * 1
        g = self.gate(h)
        F.relu(h.view(-1, W), inplace=True)
        return self.down(self.act(g) * self.up(h))""", "", "AP204"),
    ("inner value written in place", """
        g = self.gate(x)
        g.view(-1)[0] = 0
        return self.down(self.act(g) * self.up(x))""", "", "AP201"),
    ("parts in different branches", """
        g = self.gate(x)
        if x.ndim == 3:
            return self.down(self.act(g) * self.up(x))
        return g""", "", "AP205"),
    ("a part computed sometimes", """
        g = self.gate(x) if x.shape[1] > 1 else x.repeat(1, 1, 2)[..., :I]
        return self.down(self.act(g) * self.up(x))""", "", "AP205"),
    ("in a loop", """
        for _ in range(2):
            x = self.down(self.act(self.gate(x)) * self.up(x))
        return x""", "", "AP206"),
    ("in a list of several", """
        parts = [self.down(self.act(self.gate(c)) * self.up(c)) for c in x.split(1)]
        return torch.cat(parts)""", "", "AP206"),
    ("in a list of one",
     "return [self.down(self.act(self.gate(c)) * self.up(c)) for c in [x]][0]", "", "AP208"),
    ("in a lambda", """
        f = lambda v: self.down(self.act(self.gate(v)) * self.up(v))
        return f(x)""", "", "AP208"),
    ("helper that returns more", "return self.compute(x)[0]\n\ndef compute(self, v):\n"
     "    return self.down(self.act(self.gate(v)) * self.up(v)), 3", "", "AP208"),
    ("input bound again", """
        g = self.gate(x)
        u = self.up(x)
        x = x + 1
        return self.down(self.act(g) * u) + x""", "", "AP209"),
    ("input bound again by a branch not taken", """
        g = self.gate(x)
        if x.shape[1] == 1:
            x = x * 2
        return self.down(self.act(g) * self.up(x))""", "", "AP209"),
    ("input written by a branch not taken", """
        g = self.gate(x)
        if x.shape[1] == 1:
            x.mul_(2)
        return self.down(self.act(g) * self.up(x))""", "", "AP209"),
    ("inner value bound again by a branch not taken", """
        g = self.gate(x)
        if x.shape[1] == 1:
            g = x.repeat(1, 1, 2)[..., :I]
        return self.down(self.act(g) * self.up(x))""", "", "AP209"),
    ("input bound in a condition", """
        g = self.gate(x)
        u = self.up(x)
        if (x := x + 1).ndim == 4:
            return x
        return self.down(self.act(g) * u) + x""", "", "AP209"),
]  # fmt: skip

PACKED_INIT = "self.both = nn.Linear(W, 2 * I)\ndel self.gate, self.up"
PACKED: list[tuple[str, str, str, str]] = [
    ("chunk", """
        g, u = self.both(x).chunk(2, dim=-1)
        return self.down(self.act(g) * u)""", "", FUSED),
    ("split", """
        g, u = torch.split(self.both(x), I, -1)
        return self.down(u * self.act(g))""", "", FUSED),
    ("slices", """
        h = self.both(x)
        return self.down(self.act(h[..., :I]) * h[..., I:])""", "", FUSED),
    ("narrow", """
        h = self.both(x)
        return self.down(self.act(h.narrow(-1, 0, I)) * h.narrow(-1, I, I))""", "", FUSED),
    ("no bias", """
        g, u = self.both(x).chunk(2, -1)
        return self.down(self.act(g) * u)""", "self.both = nn.Linear(W, 2 * I, bias=False)", FUSED),
    # up first: the halves swapped. NF takes gate and up apart, so either order may be fused, if right.
    ("up first", """
        u, g = self.both(x).chunk(2, dim=-1)
        return self.down(self.act(g) * u)""", "", NEAR),
    ("chunk along the rows", """
        g, u = self.both(x)[:, :6].chunk(2, dim=1)
        return self.down((self.act(g) * u)[..., :I])""", "", NEAR),
    ("three parts", """
        g, u, r = self.both(x).chunk(3, dim=-1)
        return self.down((self.act(g) * u).repeat(1, 1, 2)[..., :I]) + r.mean()""", "", NEAR),
    ("interleaved", """
        h = self.both(x)
        return self.down(self.act(h[..., ::2]) * h[..., 1::2])""", "", NEAR),
    ("overlapping", """
        h = self.both(x)
        return self.down(self.act(h[..., :I]) * h[..., I - 1 : -1])""", "", NEAR),
    ("both parts activated", """
        g, u = self.both(x).chunk(2, dim=-1)
        return self.down(self.act(g) * self.act(u))""", "", NEAR),
    ("a part also returned", """
        g, u = self.both(x).chunk(2, dim=-1)
        return self.down(self.act(g) * u), g""", "", "AP201"),
    ("packed value reused", """
        h = self.both(x)
        g, u = h.chunk(2, dim=-1)
        return self.down(self.act(g) * u) + h.mean()""", "", "AP201"),
]  # fmt: skip


def source_of(body: str, init: str) -> str:
    """The class of one entry."""
    return fill(TEMPLATE, body, init)
