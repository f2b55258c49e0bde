"""Layer norms, sums with norms, ungated MLPs, rotary embeddings, stacked maps, and their look-alikes.

(family, why, body of forward, more of __init__, rules of the family that must apply). Nothing in the last place
means: must be refused. `why` is the name of the test.
"""

from __future__ import annotations

from tests.helpers import fill
from tests.rules.more_norm_zoo import (
    ADD_NORMS,
    LAYER_NORMS,
    NORM_TEMPLATES,
    TORCH_NORMS,
    Entry,
)

FAMILIES = {
    "layer_norm": ("layer_norm", "layer_norm_fp32"),
    "torch_norm": ("rms_norm_torch",),
    "add_norm": ("add_rms_norm", "rms_norm"),
    "ungated": ("ungated_mlp",),
    "rope": (
        "rope", "rope_pair", "rope_partial_pair", "rope_interleaved_fp32_pair",
        "rope_fp32_tables_pair",
    ),
    "stacked": ("stacked_pair", "stacked_triple"),
}  # fmt: skip

TEMPLATES = NORM_TEMPLATES | {
    "ungated": """
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(W, I), nn.Linear(I, W)
        self.act = nn.GELU()
{init}

    def forward(self, x):
{body}
""",
    "rope": """
def half(v):
    a, b = v[..., : v.shape[-1] // 2], v[..., v.shape[-1] // 2 :]
    return torch.cat((-b, a), dim=-1)


class Rope(nn.Module):
    INPUTS = [(2, 4, 7, 8), (2, 2, 7, 8), (1, 7, 8), (1, 7, 8)]

    def __init__(self):
        super().__init__()
{init}

    def forward(self, q, k, cos, sin):
{body}
""",
    "stacked": """
class Maps(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(W, 8), nn.Linear(W, 12), nn.Linear(W, 8)
{init}

    def forward(self, x):
{body}
""",
}
U = ("ungated_mlp",)
UNGATED: list[Entry] = [
    ("ungated", "plain", "return self.down(self.act(self.up(x)))", "", U),
    ("ungated", "functional, tanh", "return self.down(F.gelu(self.up(x), approximate='tanh'))", "",
     U),
    ("ungated", "gelu_new of transformers", "return self.down(self.act(self.up(x)))",
     "self.act = ACT2FN['gelu_new']", U),
    ("ungated", "silu step by step", """
        h = self.up(x)
        h = h * torch.sigmoid(h)
        return self.down(h)""", "", U),
    ("ungated", "inactive dropout", "return self.drop(self.down(self.drop(self.act(self.up(x)))))",
     "self.drop = nn.Dropout(0.5)", U),
    ("ungated", "no biases", "return self.down(self.act(self.up(x)))",
     "self.up, self.down = nn.Linear(W, I, bias=False), nn.Linear(I, W, bias=False)", U),
    ("ungated", "one bias", "return self.down(self.act(self.up(x)))",
     "self.down = nn.Linear(I, W, bias=False)", U),
    ("ungated", "residual outside", "return x + self.down(self.act(self.up(x)))", "", U),
    ("ungated", "Conv1D of transformers", "return self.down(self.act(self.up(x)))",
     "from transformers.pytorch_utils import Conv1D\n"
     "self.up, self.down = Conv1D(I, W), Conv1D(W, I)", U),
    ("ungated", "no activation", "return self.down(self.up(x))", "", ()),
    ("ungated", "elu", "return self.down(F.elu(self.up(x)))", "", ()),
    ("ungated", "two activations", "return self.down(self.act(self.act(self.up(x))))", "", ()),
    ("ungated", "activation first", "return self.down(self.up(self.act(x)))", "", ()),
    ("ungated", "activation last", "return self.act(self.down(self.up(x)))", "", ()),
    ("ungated", "scaled inside", "return self.down(self.act(self.up(x)) * 0.5)", "", ()),
    ("ungated", "input added inside", "return self.down(self.act(self.up(x) + x))",
     "self.up, self.down = nn.Linear(W, W), nn.Linear(W, W)", ()),
    ("ungated", "norm inside", "return self.down(self.norm(self.act(self.up(x))))",
     "self.norm = nn.LayerNorm(I)", ()),
    ("ungated", "tokens mixed inside", "return self.down(self.act(self.up(x)).flip(1))", "", ()),
    ("ungated", "tokens shifted inside", "return self.down(self.act(self.up(x)).roll(1, 1))", "",
     ()),
    ("ungated", "inner value returned", """
        h = self.act(self.up(x))
        return self.down(h), h""", "", ()),
    ("ungated", "up read again", "return self.down(self.act(self.up(x))) + self.up.bias.sum()", "",
     ()),
    ("ungated", "active dropout",
     "return self.down(F.dropout(self.act(self.up(x)), 0.5, training=True))", "", ()),
    ("ungated", "one map twice", "return self.up(self.act(self.up(x)))",
     "self.up = nn.Linear(W, W)", ()),
    ("ungated", "in a loop", """
        for up, down in zip(self.ups, self.downs):
            x = down(self.act(up(x)))
        return x""",
     "self.ups = nn.ModuleList([self.up, nn.Linear(W, I)])\n"
     "self.downs = nn.ModuleList([self.down, nn.Linear(I, W)])", ()),
    ("ungated", "inner value written in place", """
        h = self.act(self.up(x))
        h[..., 0] = 0
        return self.down(h)""", "", ()),
    ("ungated", "gelu near tanh with another factor", """
        h = self.up(x)
        return self.down(0.5 * h * (1 + torch.tanh(0.8 * (h + 0.0447 * h**3))))""", "", ()),
]  # fmt: skip

PAIR = ("rope_pair",)
TURN = "c, s = cos.unsqueeze(1), sin.unsqueeze(1)\n"
ROPES: list[Entry] = [
    ("rope", "query and key", TURN + "return q * c + half(q) * s, k * c + half(k) * s", "", PAIR),
    ("rope", "terms swapped", TURN + "return half(q) * s + c * q, s * half(k) + k * c", "", PAIR),
    ("rope", "halves by chunk", TURN + """\
a, b = q.chunk(2, dim=-1)
d, e = k.chunk(2, dim=-1)
return (q * c + torch.cat([-b, a], dim=-1) * s,
        k * c + torch.cat((-e, d), dim=-1) * s)""", "", PAIR),
    ("rope", "in a nested function, where key and query have no names", TURN + """\
def turn(v):
    return v * c + half(v) * s
return turn(q), turn(k)""", "", ()),
    ("rope", "first half turned only", """
        cos, sin = cos[..., :4], sin[..., :4]
        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        a, b = q[..., :4], q[..., 4:]
        d, e = k[..., :4], k[..., 4:]
        return (torch.cat([a * c + half(a) * s, b], -1),
                torch.cat([d * c + half(d) * s, e], -1))""", "", ("rope_partial_pair",)),
    ("rope", "query only", TURN + "return q * c + half(q) * s, k", "", ("rope",)),
    ("rope", "difference", TURN + "return q * c - half(q) * s, k * c - half(k) * s", "", ()),
    ("rope", "halves not turned", TURN + "return q * c + q * s, k * c + k * s", "", ()),
    ("rope", "halves exchanged without sign", TURN + """\
def swap(v):
    return torch.cat([v[..., 4:], v[..., :4]], dim=-1)
return q * c + swap(q) * s, k * c + swap(k) * s""", "", ()),
    ("rope", "sign on the other half", TURN + """\
def other(v):
    return torch.cat([v[..., 4:], -v[..., :4]], dim=-1)
return q * c + other(q) * s, k * c + other(k) * s""", "", ()),
    ("rope", "halves of uneven width", TURN + """\
def odd(v):
    return torch.cat([-v[..., 3:], v[..., :3]], dim=-1)
return q * c + odd(q) * s, k * c + odd(k) * s""", "", ()),
    ("rope", "halves of the tokens", TURN + """\
def rows(v):
    return torch.cat([-v[:, :, 4:], v[:, :, :4]], dim=2)
return q * c + rows(q) * s, k * c + rows(k) * s""", "", ()),
    ("rope", "half of another value", TURN + "return q * c + half(q + 1) * s, k", "", ()),
    ("rope", "query turned by the key", TURN + "return q * c + half(k[:, :1]) * s, k", "", ()),
    ("rope", "cosine squared", TURN + "return q * c * c + half(q) * s, k", "", ("rope",)[:0]),
    ("rope", "tables added", TURN + "return (q + c) + half(q) * s, k", "", ()),
]  # fmt: skip

STACKED: list[Entry] = [
    ("stacked", "two maps", "return self.a(x), self.b(x)", "", ("stacked_pair",)),
    ("stacked", "three maps", "return self.a(x), self.b(x), self.c(x)", "", ("stacked_triple",)),
    ("stacked", "used in other ways", "return self.a(x).exp(), self.b(x) - 1", "",
     ("stacked_pair",)),
    ("stacked", "one bias only", "return self.a(x), self.b(x)",
     "self.a = nn.Linear(W, 8, bias=False)", ("stacked_pair",)),
    ("stacked", "two inputs", "return self.a(x), self.b(x + 1)", "", ()),
    ("stacked", "one map twice", "return self.a(x), self.a(x)", "", ()),
    ("stacked", "one behind the other", "return self.d(self.a(x))", "self.d = nn.Linear(8, 8)", ()),
    ("stacked", "input written between", """
        a = self.a(x)
        x.mul_(2)
        return a, self.b(x)""", "", ()),
    ("stacked", "alias of the input written between", """
        y = x.view(-1, W)
        a = self.a(x)
        y.zero_()
        return a, self.b(x)""", "", ()),
    ("stacked", "input bound again between", """
        a = self.a(x)
        x = x * 2
        return a, self.b(x)""", "", ()),
    ("stacked", "the second only sometimes", """
        a = self.a(x)
        if x.sum() > 0:
            return a, self.b(x)
        return a, a""", "", ()),
    ("stacked", "different branches", """
        if x.shape[1] > 100:
            return self.a(x), x
        return self.b(x), x""", "", ()),
    ("stacked", "weight read elsewhere", "return self.a(x) + self.b.bias[:8], self.b(x)", "", ()),
    ("stacked", "one weight in both", "return self.a(x), self.b(x)", "self.b = self.a", ()),
    ("stacked", "in a loop", "return [m(x) for m in (self.a, self.b)]", "", ()),
]  # fmt: skip

MORE = [*LAYER_NORMS, *TORCH_NORMS, *ADD_NORMS, *UNGATED, *ROPES, *STACKED]


def source_of(entry: Entry) -> str:
    """The classes of one entry; the last is meant."""
    family, _, body, init, _ = entry
    return fill(TEMPLATES[family], body, init or "pass")
