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
from tests.rules.rope_zoo import NORMED_ROPES, ROPE_TEMPLATES, ROPES

ROPE_RULES = (
    "rope", "rope_pair", "rope_partial_pair", "rope_interleaved_fp32_pair", "rope_fp32_pair",
    "rope_backward_pair", "rope_by_halves_pair", "rope_complex_pair", "rope_deinterleave_pair",
    "rope_interleaved", "rope_interleaved_pair", "rope_interleaved_tables_pair",
    "rope_interleaved_fp32_repeated_pair", "rope_trailing",
)  # fmt: skip
FAMILIES = {
    "layer_norm": ("layer_norm", "layer_norm_fp32"),
    "torch_norm": ("rms_norm_torch",),
    "add_norm": ("add_rms_norm", "rms_norm"),
    "ungated": ("ungated_mlp",),
    "rope": ROPE_RULES,
    "normed": (
        *ROPE_RULES, "qk_norm_rope", "qk_norm_rope_heads_first", "rms_norm", "rms_norm_torch",
        "rms_norm_zero_centered",
    ),
    "gate": ("act_and_mul", "act_and_mul_clamped", "act_and_mul_fp32", "clamped_swiglu", "gated_mlp"),
    "stacked": ("stacked_pair", "stacked_triple"),
}  # fmt: skip

TEMPLATES = (
    NORM_TEMPLATES
    | ROPE_TEMPLATES
    | {
        "gate": """
class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(W, I), nn.Linear(W, I), nn.Linear(I, W)
{init}

    def forward(self, x):
{body}
""",
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
)
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

AM, CLAMPED = ("act_and_mul",), ("act_and_mul_clamped",)
CUT = "g = self.gate(x).clamp(max=0.5)\nu = self.up(x).clamp(-0.5, 0.5)\n"
GATES: list[Entry] = [
    ("gate", "no projection down", "return F.silu(self.gate(x)) * self.up(x)", "", AM),
    ("gate", "relu squared", "return self.down(F.relu(self.gate(x)).square() * self.up(x))", "", AM),
    ("gate", "a factor before the projection",
     "return self.down(F.gelu(self.gate(x)) * self.up(x) * 0.5)", "", AM),
    ("gate", "a norm before the projection",
     "return self.down(self.norm(self.up(x) * F.silu(self.gate(x))))", "self.norm = nn.LayerNorm(I)", AM),
    ("gate", "product also returned", """
        h = F.silu(self.gate(x)) * self.up(x)
        return self.down(h), h""", "", AM),
    ("gate", "up first in a packed product", """
        u, g = self.both(x).chunk(2, dim=-1)
        return self.down(F.silu(g) * u)""", "self.both = nn.Linear(W, 2 * I)", AM),
    ("gate", "the whole MLP", "return self.down(F.silu(self.gate(x)) * self.up(x))", "", ("gated_mlp",)),
    ("gate", "cut", CUT + "return self.down(F.silu(g) * u)", "", CLAMPED),
    ("gate", "gpt-oss", CUT + "return self.down((u + 1) * (g * torch.sigmoid(g * 1.702)))", "",
     ("clamped_swiglu",)),
    ("gate", "gpt-oss with another factor", CUT + "return (1 + u) * (torch.sigmoid(1.5 * g) * g)", "",
     ("clamped_swiglu",)),
    ("gate", "in float32", "return F.silu(self.gate(x).float()) * self.up(x).float()", "",
     ("act_and_mul_fp32",)),
    ("gate", "no product", "return self.down(F.silu(self.gate(x))) + self.up(x).mean()", "", ()),
    ("gate", "a sum", "return self.down(F.silu(self.gate(x)) + self.up(x))", "", ()),
    ("gate", "relu", "return self.down(F.relu(self.gate(x)) * self.up(x)) * 2", "", ()),
    ("gate", "sigmoid", "return self.down(torch.sigmoid(self.gate(x)) * self.up(x))", "", ()),
    ("gate", "one gate for a row", "return F.silu(self.gate(x)[..., :1]) * self.up(x)", "", ()),
    ("gate", "activated twice", "return F.silu(self.gate(x)).tanh() * self.up(x)", "", ()),
    ("gate", "activated gate returned", """
        g = F.silu(self.gate(x))
        return g * self.up(x), g""", "", ()),
    ("gate", "rounded to integers", "return F.silu(self.gate(x)).to(torch.int8) * self.up(x)", "", ()),
    ("gate", "narrowed before the product",
     "return F.silu(self.gate(x).float()).to(x.dtype) * self.up(x).float()", "", ()),
    ("gate", "product written in place", """
        g = F.silu(self.gate(x))
        g.mul_(self.up(x))
        return self.down(g)""", "", ()),
    ("gate", "in a loop", """
        for _ in range(2):
            x = self.down(F.silu(self.gate(x)) * self.up(x)) * 0.5
        return x""", "", ()),
    ("gate", "unlike limits", """
        g, u = self.gate(x).clamp(max=0.25), self.up(x).clamp(-0.5, 0.5)
        return (u + 1) * (g * torch.sigmoid(g * 1.5))""", "", ()),
    ("gate", "up cut on one side", """
        g, u = self.gate(x).clamp(max=0.5), self.up(x).clamp(max=0.5)
        return (u + 1) * (g * torch.sigmoid(g * 1.5))""", "", ()),
    ("gate", "two added to up", CUT + "return (u + 2) * (g * torch.sigmoid(g * 1.5))", "", ()),
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

MORE = [
    *LAYER_NORMS, *TORCH_NORMS, *ADD_NORMS, *UNGATED, *GATES, *ROPES, *NORMED_ROPES, *STACKED,
]  # fmt: skip


def source_of(entry: Entry) -> str:
    """The classes of one entry; the last is meant."""
    family, _, body, init, _ = entry
    return fill(TEMPLATES[family], body, init or "pass")
