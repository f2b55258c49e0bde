"""Rotary embeddings in every spelling, with and without norms before them, and look-alikes: a part of `more_zoo.py`."""

from __future__ import annotations

from tests.rules.more_norm_zoo import Entry

ROPE_TEMPLATES = {
    "rope": """
def half(v):
    a, b = v[..., : v.shape[-1] // 2], v[..., v.shape[-1] // 2 :]
    return torch.cat((-b, a), dim=-1)


def back(v):
    a, b = v.chunk(2, dim=-1)
    return torch.cat((b, -a), dim=-1)


def pairs(v):
    a, b = v[..., ::2], v[..., 1::2]
    return torch.stack((-b, a), dim=-1).flatten(-2)


def by_halves(v, c, s):
    a, b = torch.chunk(v, 2, dim=-1)
    return torch.cat((a * c - b * s, b * c + a * s), dim=-1)


def by_pairs(v, c, s):
    a, b = v[..., 0::2], v[..., 1::2]
    return torch.cat([a * c - b * s, b * c + a * s], dim=-1)


class Rope(nn.Module):
    INPUTS = [(2, 4, 7, 8), (2, 2, 7, 8), (1, 7, 8), (1, 7, 8)]

    def __init__(self):
        super().__init__()
{init}

    def forward(self, q, k, cos, sin):
{body}
""",
    "normed": """
def half(v):
    a, b = v[..., : v.shape[-1] // 2], v[..., v.shape[-1] // 2 :]
    return torch.cat((-b, a), dim=-1)


class HeadNorm(nn.Module):
    def __init__(self, eps=1e-5, width=8):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(x.dtype)


class Centered(HeadNorm):
    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1.0 + self.weight.float())).to(x.dtype)


class Rope(nn.Module):
    INPUTS = [(2, 4, 7, 8), (2, 2, 7, 8), (1, 7, 8), (1, 7, 8)]

    def __init__(self):
        super().__init__()
        self.qn, self.kn = HeadNorm(), HeadNorm()
{init}

    def rotate(self, q, k, cos, sin):
        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        a = q * c + half(q) * s
        b = k * c + half(k) * s
        return a, b

    def forward(self, q, k, cos, sin):
{body}
""",
}
PAIR = ("rope_pair",)
TURN = "c, s = cos.unsqueeze(1), sin.unsqueeze(1)\n"
FIRST = "cos, sin = cos[..., :4], sin[..., :4]\n" + TURN
TWICE = (
    TURN
    + """\
c = c[..., :4].repeat_interleave(2, dim=-1)
s = s[..., :4].repeat_interleave(2, dim=-1)
"""
)
COMPLEX = """\
angles = cos[..., :4].float()
turns = torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
a = torch.view_as_complex(q.float().reshape(2, 4, 7, -1, 2))
b = torch.view_as_complex(k.float().reshape(2, 2, 7, -1, 2))
"""
ROPES: list[Entry] = [
    ("rope", "query and key", TURN + "return q * c + half(q) * s, k * c + half(k) * s", "", PAIR),
    ("rope", "terms swapped", TURN + "return half(q) * s + c * q, s * half(k) + k * c", "", PAIR),
    ("rope", "halves by chunk", TURN + """\
a, b = q.chunk(2, dim=-1)
d, e = k.chunk(2, dim=-1)
return (q * c + torch.cat([-b, a], dim=-1) * s,
        k * c + torch.cat((-e, d), dim=-1) * s)""", "", PAIR),
    ("rope", "tables by indices", "c, s = cos[:, None], sin[:, None, :, :]\n"
     "return q * c + half(q) * s, k * c + half(k) * s", "", PAIR),
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
    ("rope", "backward", TURN + "return q * c + back(q) * s, k * c + back(k) * s", "",
     ("rope_backward_pair",)),
    ("rope", "neighbours, whole tables", TURN + "return q * c + pairs(q) * s, k * c + pairs(k) * s",
     "", ("rope_interleaved_tables_pair",)),
    ("rope", "neighbours, each value twice", TWICE + "return q * c + pairs(q) * s, pairs(k) * s + k * c",
     "", ("rope_interleaved_pair",)),
    ("rope", "neighbours, repeated by a stack", """
        c, s = cos[..., :4], sin[..., :4]
        c, s = c.unsqueeze(1), s.unsqueeze(1)
        c, s = torch.stack((c, c), -1).flatten(-2), torch.stack((s, s), -1).flatten(-2)
        q = q * c + pairs(q) * s
        return q, k""", "", ("rope_interleaved",)),
    ("rope", "half by half, by a helper", FIRST + "return by_halves(q, c, s), by_halves(k, c, s)", "",
     ("rope_by_halves_pair",)),
    ("rope", "neighbours into halves", FIRST + "return by_pairs(q, c, s), by_pairs(k, c, s)", "",
     ("rope_deinterleave_pair",)),
    ("rope", "complex numbers", COMPLEX + "return (torch.view_as_real(a * turns).flatten(3).type_as(q), "
     "torch.view_as_real(turns * b).flatten(-2).type_as(k))", "", ("rope_complex_pair",)),
    ("rope", "in float32", TURN + "q2 = (q.float() * c + half(q.float()) * s).to(q.dtype)\n"
     "k2 = (k.float() * c + half(k).float() * s).to(k.dtype)\nreturn q2, k2", "", ("rope_fp32_pair",)),
    ("rope", "difference", TURN + "return q * c - half(q) * s, k * c - half(k) * s", "", ()),
    ("rope", "halves not turned", TURN + "return q * c + q * s, k * c + k * s", "", ()),
    ("rope", "halves exchanged without sign", TURN + """\
def swap(v):
    return torch.cat([v[..., 4:], v[..., :4]], dim=-1)
return q * c + swap(q) * s, k * c + swap(k) * s""", "", ()),
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
    ("rope", "cosine squared", TURN + "return q * c * c + half(q) * s, k", "", ()),
    ("rope", "tables added", TURN + "return (q + c) + half(q) * s, k", "", ()),
    ("rope", "one turned forward, one backward", TURN
     + "return q * c + back(q) * s, k * c - back(k) * s", "", ()),
    ("rope", "neighbours, values repeated as a whole", TURN + """\
c, s = c[..., :4].repeat(1, 1, 1, 2), s[..., :4].repeat(1, 1, 1, 2)
q = q * c + pairs(q) * s
return q, k""", "", ()),
    ("rope", "neighbours, second half of the sine", TURN + """\
c = c[..., :4].repeat_interleave(2, dim=-1)
s = s[..., 4:].repeat_interleave(2, dim=-1)
return q * c + pairs(q) * s, k * c + pairs(k) * s""", "", ()),
    ("rope", "neighbours repeated three times", """
        c, s = cos[..., :2].repeat_interleave(4, -1).unsqueeze(1), sin.unsqueeze(1)
        return q * c + pairs(q), k""", "", ()),
    ("rope", "neighbours turned, halves multiplied", TWICE
     + "return q * c + half(q) * s, k * c + half(k) * s", "", ()),
    ("rope", "half by half without a sign", FIRST + """\
a, b = q.chunk(2, -1)
d, e = k.chunk(2, -1)
return torch.cat((a * c + b * s, b * c + a * s), -1), torch.cat((d * c + e * s, e * c + d * s), -1)""",
     "", ()),
    ("rope", "odd before even", FIRST + """\
a, b = q[..., 1::2], q[..., ::2]
d, e = k[..., 1::2], k[..., ::2]
return torch.cat((a * c - b * s, b * c + a * s), -1), torch.cat((d * c - e * s, e * c + d * s), -1)""",
     "", ()),
    ("rope", "complex conjugate", COMPLEX
     + "return (torch.view_as_real(a * turns.conj()).flatten(3).type_as(q), "
     "torch.view_as_real(b * turns.conj()).flatten(3).type_as(k))", "", ()),
    ("rope", "complex, left in float32", COMPLEX + "return (torch.view_as_real(a * turns).flatten(3), "
     "torch.view_as_real(b * turns).flatten(3))", "", ()),
    ("rope", "in float32, left there", TURN + "return (q.float() * c + half(q.float()) * s, "
     "k.float() * c + half(k.float()) * s)", "", ()),
]  # fmt: skip

NORMED, THEN = ("qk_norm_rope_heads_first",), ("qk_norm_rope",)
CALL = "return self.rotate(q, k, cos, sin)"
NORMED_ROPES: list[Entry] = [
    ("normed", "norms, then the rotation", f"q, k = self.qn(q), self.kn(k)\n{CALL}", "", NORMED),
    ("normed", "norm and rotation in one line", "return self.rotate(self.qn(q), self.kn(k), cos, sin)",
     "", NORMED),
    ("normed", "one plus the weight", f"q, k = self.qn(q), self.kn(k)\n{CALL}",
     "self.qn, self.kn = Centered(), Centered()", NORMED),
    ("normed", "torch's norm", f"q, k = self.qn(q), self.kn(k)\n{CALL}",
     "self.qn, self.kn = nn.RMSNorm(8, eps=1e-5), nn.RMSNorm(8, eps=1e-5)", NORMED),
    ("normed", "torch's norm without a weight", f"q, k = self.qn(q), self.kn(k)\n{CALL}",
     "self.qn = nn.RMSNorm(8, 1e-5, elementwise_affine=False)\n"
     "self.kn = nn.RMSNorm(8, 1e-5, elementwise_affine=False)", NORMED),
    ("normed", "heads put first behind the norm", "q = self.qn(q.transpose(1, 2)).transpose(1, 2)\n"
     f"k = self.kn(k.transpose(1, 2)).transpose(1, 2)\n{CALL}", "", THEN),
    ("normed", "names bound to what was computed before", "q = self.qn((q + 1).transpose(1, 2)).transpose(1, 2)"
     f"\nk = self.kn((k + 1).transpose(1, 2)).transpose(1, 2)\n{CALL}", "", THEN),
    ("normed", "unlike epsilons", f"q, k = self.qn(q), self.kn(k)\n{CALL}", "self.kn = HeadNorm(0.1)",
     PAIR),
    ("normed", "unlike norms", f"q, k = self.qn(q), self.kn(k)\n{CALL}", "self.kn = Centered()", PAIR),
    ("normed", "the query alone", f"q = self.qn(q)\n{CALL}", "", PAIR),
    ("normed", "one norm for both", f"q, k = self.qn(q), self.qn(k)\n{CALL}", "", NORMED),
    ("normed", "norm behind the rotation", "q, k = self.rotate(q, k, cos, sin)\n"
     "return self.qn(q), self.kn(k)", "", PAIR),
    ("normed", "scaled in between", f"q, k = self.qn(q) * 2, self.kn(k)\n{CALL}", "", PAIR),
    ("normed", "a normalized value returned", "q, k = self.qn(q), self.kn(k)\n"
     "return *self.rotate(q, k, cos, sin), q", "", PAIR),
    ("normed", "a normalized value seen by a branch not taken", "q, k = self.qn(q), self.kn(k)\n"
     "if q.shape[0] == 1:\n    return q, k\nreturn self.rotate(q, k, cos, sin)", "", PAIR),
]  # fmt: skip
