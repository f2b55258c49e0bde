"""Attentions and look-alikes: (name, body of forward, more of __init__, expected rules, reason codes).

`b, s` are the first two sizes of x. The `attend` of the preamble goes through transformers' attention
interface; `h(v)` cuts a projection into heads.
"""

from __future__ import annotations

import textwrap

TEMPLATE = """
def h(v):
    return v.view(v.shape[0], v.shape[1], -1, D).transpose(1, 2)


class Attention(nn.Module):
{inputs}
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.q_proj = nn.Linear(W, HEADS * D)
        self.k_proj = nn.Linear(W, KV * D)
        self.v_proj = nn.Linear(W, KV * D)
        self.o_proj = nn.Linear(HEADS * D, W)
{init}

    def forward(self, x{more}):
        b, s, _ = x.shape
{body}
"""
BOTH = ("o_proj", "qkv_proj")
PACKED_BOTH = ("o_proj", "qkv_proj_packed")
ONLY_O = ("o_proj",)
ONLY_QKV = ("qkv_proj",)

PROJECT = """
        q = h(self.q_proj(x))
        k = h(self.k_proj(x))
        v = h(self.v_proj(x))
"""
ATTEND = PROJECT + "        a, _ = attend(self, q, k, v)\n"
END = "\n        return self.o_proj(a.reshape(b, s, -1))"
PACKED = "self.qkv = nn.Linear(W, (HEADS + 2 * KV) * D)\ndel self.q_proj, self.k_proj, self.v_proj"
SIZES = "(HEADS * D, KV * D, KV * D)"

Entry = tuple[str, str, str, tuple[str, ...], set[str]]
ATTENTIONS: list[Entry] = [
    ("plain", ATTEND + END, "", BOTH, set()),
    ("names of q and k swapped", """
        q, k, v = h(self.k_proj(x)), h(self.q_proj(x)), h(self.v_proj(x))
        a, _ = attend(self, q, k, v)
    """ + END, "self.q_proj, self.k_proj = self.k_proj, self.q_proj", BOTH, set()),
    ("names of k and v swapped", """
        v = h(self.k_proj(x))
        k = h(self.v_proj(x))
        q = h(self.q_proj(x))
        a, _ = attend(self, q, k, v)
    """ + END, "", BOTH, set()),
    ("in one call", """
        a, _ = attend(self, h(self.q_proj(x)), h(self.k_proj(x)), h(self.v_proj(x)))
    """ + END, "", BOTH, set()),
    ("in one expression", """
        return self.o_proj(attend(self, h(self.q_proj(x)), h(self.k_proj(x)), h(self.v_proj(x)))[0]
            .reshape(b, s, -1))""", "", BOTH, set()),
    ("input of o over lines", ATTEND + """
        return self.o_proj(
            a.reshape(b, s, -1)  # heads side by side
            .contiguous()
        )""", "", BOTH, set()),
    ("norms on heads", PROJECT + """
        q, k = self.norm(q), self.norm(k)
        a, _ = attend(self, q, k, v)
    """ + END, "self.norm = nn.LayerNorm(D)", BOTH, set()),
    ("heads turned by a table", PROJECT + """
        c, t = torch.cos(x[:, None, :, :D]), torch.sin(x[:, None, :, :D])
        q, k = q * c + q.flip(-1) * t, k * c + k.flip(-1) * t
        a, _ = attend(self, q, k, v)
    """ + END, "", BOTH, set()),
    ("query scaled", """
        q = h(self.q_proj(x) * 0.5)
        k = h(self.k_proj(x))
        v = h(self.v_proj(x))
        a, _ = attend(self, q, k, v)
    """ + END, "", BOTH, set()),
    ("no biases but one", ATTEND + END,
     "self.q_proj = nn.Linear(W, HEADS * D, bias=False)\n"
     "self.v_proj = nn.Linear(W, KV * D, bias=False)", BOTH, set()),
    ("query also returned", """
        p = self.q_proj(x)
        q, k, v = h(p), h(self.k_proj(x)), h(self.v_proj(x))
        a, _ = attend(self, q, k, v)
        return self.o_proj(a.reshape(b, s, -1)), p""", "", BOTH, set()),
    ("query gives a gate, too", """
        p, gate = self.q_proj(x).chunk(2, -1)
        q, k, v = h(p), h(self.k_proj(x)), h(self.v_proj(x))
        a, _ = attend(self, q, k, v)
        return self.o_proj(a.reshape(b, s, -1) * gate.sigmoid())""",
     "self.q_proj = nn.Linear(W, 2 * HEADS * D)", BOTH, set()),
    ("q, k, v are taken names", ATTEND + """
        q_ = k_ = v_ = 0
        return self.o_proj(a.reshape(b, s, -1)) + q_ + k_ + v_""", "", BOTH, set()),
    ("two attentions, interleaved", """
        q1 = h(self.q_proj(x))
        q2 = h(self.q2(x))
        k1, v1 = h(self.k_proj(x)), h(self.v_proj(x))
        k2, v2 = h(self.k2(x)), h(self.v2(x))
        a, _ = attend(self, q1, k1, v1)
        c, _ = attend(self, q2, k2, v2)
        return self.o_proj((a - c).reshape(b, s, -1))""",
     "self.q2, self.k2, self.v2 = nn.Linear(W, W), nn.Linear(W, 8), nn.Linear(W, 8)",
     ("o_proj", "qkv_proj", "qkv_proj"), set()),
    # Not these projections.
    ("value is the key", """
        q, k = h(self.q_proj(x)), h(self.k_proj(x))
        a, _ = attend(self, q, k, k)
    """ + END, "self.v_proj = None", ("o_proj", "qk_proj"), set()),
    ("value made from the key", """
        q = h(self.q_proj(x))
        p = self.k_proj(x)
        k, v = h(p), h(self.v_proj(p))
        a, _ = attend(self, q, k, v)
    """ + END, "self.v_proj = nn.Linear(KV * D, KV * D)", ONLY_O, set()),
    ("query of another input", """
        q, k, v = h(self.q_proj(x + 1)), h(self.k_proj(x)), h(self.v_proj(x))
        a, _ = attend(self, q, k, v)
    """ + END, "", ONLY_O, set()),
    ("cross attention", """
        q, k, v = h(self.q_proj(x)), h(self.k_proj(y)), h(self.v_proj(y))
        a, _ = attend(self, q, k, v)
    """ + END, "", ONLY_O, set()),
    ("query mixed with the key", PROJECT + """
        q = q + k.repeat_interleave(2, 1)
        a, _ = attend(self, q, k, v)
    """ + END, "", ONLY_O, set()),
    ("rows only", """
        r = x.view(-1, W)
        q, k, v = (p.view(b, s, -1, D).transpose(1, 2) for p in (
            self.q_proj(r), self.k_proj(r), self.v_proj(r)))
        a, _ = attend(self, q, k, v)
    """ + END, "", ONLY_O, {"AP301"}),
    ("key computed in a branch", """
        q, v = h(self.q_proj(x)), h(self.v_proj(x))
        if x.ndim == 3:
            k = h(self.k_proj(x))
        else:
            k = v
        a, _ = attend(self, q, k, v)
    """ + END, "", ONLY_O, {"AP205"}),
    ("key computed sometimes", """
        q, v = h(self.q_proj(x)), h(self.v_proj(x))
        k = h(self.k_proj(x)) if x.ndim == 3 else v
        a, _ = attend(self, q, k, v)
    """ + END, "", ONLY_O, {"AP205"}),
    ("input bound between", """
        q = h(self.q_proj(x))
        z = x
        x = x * 2
        k, v = h(self.k_proj(z)), h(self.v_proj(z))
        a, _ = attend(self, q, k, v)
    """ + END, "", BOTH, set()),
    ("input written between", """
        z = x * 1
        q = h(self.q_proj(z))
        p = z[..., :4]
        k, v = h(self.k_proj(z)), h(self.v_proj(z))
        p.zero_()
        a, _ = attend(self, q, k, v)
    """ + END, "", BOTH, set()),
    ("input written after the query", """
        z = x * 1
        q = h(self.q_proj(z))
        z[..., :4].zero_()
        k, v = h(self.k_proj(z)), h(self.v_proj(z))
        a, _ = attend(self, q, k, v)
    """ + END, "", ONLY_O, {"AP204"}),
    # No map for the value.
    ("value is the key before its norm", """
        q, v = h(self.q_proj(x)), h(self.k_proj(x))
        a, _ = attend(self, q, self.norm(v), v)
    """ + END, "self.norm = nn.LayerNorm(D)", ("o_proj", "qk_proj"), set()),
    ("value is a latent key's other map", """
        q, c = h(self.q_proj(x)), self.k_proj(x)
        a, _ = attend(self, q, h(self.up(c)), h(self.v_proj(c)))
    """ + END, "self.up = nn.Linear(KV * D, KV * D)\nself.v_proj = nn.Linear(KV * D, KV * D)",
     ONLY_O, set()),
    ("value is the query", """
        q, k = h(self.q_proj(x)), h(self.k_proj(x))
        a, _ = attend(self, q, k, q[:, :2])
    """ + END, "", ONLY_O, set()),
    # Packed.
    ("packed", f"""
        q, k, v = self.qkv(x).split({SIZES}, -1)
        a, _ = attend(self, h(q), h(k), h(v))
    """ + END, PACKED, PACKED_BOTH, set()),
    ("packed, slices", """
        p = self.qkv(x)
        q, k, v = h(p[..., : HEADS * D]), h(p[..., HEADS * D : -KV * D]), h(p[..., -KV * D :])
        a, _ = attend(self, q, k, v)
    """ + END, PACKED, PACKED_BOTH, set()),
    ("packed, parts used through a list", f"""
        parts = self.qkv(x).split({SIZES}, -1)
        a, _ = attend(self, *[h(p) for p in parts])
    """ + END, PACKED, PACKED_BOTH, set()),
    ("packed, k first", """
        k, q, v = self.qkv(x).split(HEADS * D, -1)
        a, _ = attend(self, h(q), h(k), h(v))
    """ + END, PACKED.replace("(HEADS + 2 * KV)", "3 * HEADS"), PACKED_BOTH, set()),
    ("packed, v before k", f"""
        q, v, k = self.qkv(x).split({SIZES}, -1)
        a, _ = attend(self, h(q), h(k), h(v))
    """ + END, PACKED, PACKED_BOTH, set()),
    ("packed, by head", """
        p = self.qkv(x).view(b, s, HEADS, 3 * D).transpose(1, 2)
        q, k, v = p.chunk(3, -1)
        a, _ = attend(self, q, k, v)
    """ + END, PACKED.replace("(HEADS + 2 * KV)", "3 * HEADS"), PACKED_BOTH, set()),
    ("packed, by head, viewed back", """
        p = self.qkv(x).view(b, s, HEADS, 3, D)
        q, k, v = p.transpose(2, 3).reshape(b, s, 3 * HEADS * D).chunk(3, -1)
        a, _ = attend(self, h(q), h(k), h(v))
    """ + END, PACKED.replace("(HEADS + 2 * KV)", "3 * HEADS"), PACKED_BOTH, set()),
    ("packed, grouped by key head", """
        p = self.qkv(x).view(b, s, KV, 4, D)
        q, k, v = p[:, :, :, :2].reshape(b, s, -1), p[:, :, :, 2], p[:, :, :, 3]
        a, _ = attend(self, h(q), k.transpose(1, 2), v.transpose(1, 2))
    """ + END, PACKED, PACKED_BOTH, set()),
    ("packed, a part unused", f"""
        q, k, v, _ = self.qkv(x).split({SIZES[:-1]}, 4), -1)
        a, _ = attend(self, h(q), h(k), h(v))
    """ + END, PACKED.replace("* D)", "* D + 4)"), ONLY_O, set()),
    ("packed value reused", f"""
        p = self.qkv(x)
        q, k, v = p.split({SIZES}, -1)
        a, _ = attend(self, h(q), h(k), h(v))
        return self.o_proj(a.reshape(b, s, -1)) + p.mean()""", PACKED, ONLY_O, set()),
    # Output projections.
    ("gate before o", ATTEND + """
        return self.o_proj(a.reshape(b, s, -1) * x.sigmoid())""", "", BOTH, set()),
    ("active dropout before o", ATTEND + """
        return self.o_proj(F.dropout(a.reshape(b, s, -1), 1e-9, True))""", "", BOTH, set()),
    ("inactive dropout before o", ATTEND + """
        return self.o_proj(self.drop(a.reshape(b, s, -1)))""", "self.drop = nn.Dropout(0.1)",
     BOTH, set()),
    ("half of the heads", ATTEND + """
        return self.o_proj(a[:, :, :2].reshape(b, s, -1))""",
     "self.o_proj = nn.Linear(2 * D, W)", ONLY_QKV, set()),
    ("heads merged the other way", ATTEND + """
        return self.o_proj(a.transpose(2, 3).reshape(b, s, -1))""", "", ONLY_QKV, set()),
    ("norm before o", ATTEND + """
        return self.o_proj(self.norm(a.reshape(b, s, -1)))""",
     "self.norm = nn.LayerNorm(HEADS * D)", BOTH, set()),
    ("o on rows", ATTEND + """
        return self.o_proj(a.reshape(b * s, -1)).view(b, s, -1)""", "", ONLY_QKV, {"AP301"}),
    ("o read elsewhere", ATTEND + """
        return self.o_proj(a.reshape(b, s, -1)).to(self.o_proj.weight.dtype)""", "", ONLY_QKV,
     {"AP203"}),
]  # fmt: skip


def source_of(body: str, init: str) -> str:
    """The class of one entry; a body that reads `y` has a second input."""
    second = "(y)" in body
    return TEMPLATE.format(
        init=textwrap.indent(init, " " * 8),
        body=textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8),
        more=", y" if second else "",
        inputs="    INPUTS = [(2, 7, 16), (2, 5, 16)]\n" if second else "",
    )
