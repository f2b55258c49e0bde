"""Modules in which the value or a size of a tensor decides a plain value, and twins where it touches nothing.

(why, body of forward, more of __init__, expected): the rule that must fuse it, or the code of the refusal.
A branch on a value is never taken in the trace, nor in a proof that happens to have no such value.
"""

from __future__ import annotations

from tests.rules.mlp_zoo import TEMPLATE as MLP
from tests.rules.norm_zoo import TEMPLATE as NORM

Entry = tuple[str, str, str, str]
BIG = "x.abs().max() > 1e4"


def norm(before: str, eps: str) -> str:
    return (
        f"{before}\nh = x.float()\nh = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + {eps})\n"
        "return self.weight * h.to(x.dtype)"
    )


def mlp(before: str, act: str = "self.act", up: str = "self.up") -> str:
    return f"{before}\nreturn self.down({act}(self.gate(x)) * {up}(x))"


NORMS: list[Entry] = [
    ("eps chosen by a value", norm(f"eps = 1.0 if {BIG} else 1e-6", "eps"), "", "AP101"),
    ("eps chosen in place", norm("", f"(1.0 if {BIG} else 1e-6)"), "", "AP101"),
    ("eps bound in a branch", norm(f"eps = 1e-6\nif {BIG}:\n    eps = 1.0", "eps"), "", "AP101"),
    ("eps computed from what a value chose",
     norm(f"k = 1.0 if {BIG} else 1e-3\neps = k * 1e-3", "eps"), "", "AP101"),
    ("eps by a flag", norm(f"big = bool({BIG})\neps = 1.0 if big else 1e-6", "eps"), "", "AP101"),
    ("eps by a flag and a branch",
     norm(f"big, eps = bool({BIG}), 1e-6\nif big:\n    eps = 1.0", "eps"), "", "AP101"),
    ("eps of a helper that asks",
     norm("eps = self.pick(x)", "eps") + f"\n\ndef pick(self, x):\n    return 1.0 if {BIG} else 1e-6",
     "", "AP101"),
    ("eps of self is written", norm(f"if {BIG}:\n    self.eps = 1.0", "self.eps"), "", "AP101"),
    ("eps of self is written by a method",
     norm(f"if {BIG}:\n    self.widen()", "self.eps") + "\n\ndef widen(self):\n    self.eps = 1.0",
     "", "AP101"),
    ("a branch of a loop that ends it",
     norm(f"eps = 1e-6\nfor e in (1e-6, 1e-3):\n    if {BIG}:\n        break\n    eps = e", "eps"), "",
     "AP101"),
    ("an item of a mapping",
     norm(f"d = {{'eps': 1e-6}}\nif {BIG}:\n    d.update(eps=1.0)", "d['eps']"), "", "AP101"),
    ("an item under another name",
     norm(f"d = {{'eps': 1e-6}}\ne = d\nif {BIG}:\n    e['eps'] = 1.0", "d['eps']"), "", "AP101"),
    ("eps by a size", norm("eps = 1.0 if x.shape[1] > 99 else 1e-6", "eps"), "", "AP209"),
    ("eps by a size with a name",
     norm("rows, tokens, _ = x.shape\neps = 1e-6\nif tokens > 99:\n    eps = 1.0", "eps"), "", "AP209"),
    ("eps by a size, in place", norm("", "(1.0 if x.size(1) > 99 else 1e-6)"), "", "AP209"),
    ("right: eps of self", norm(f"if {BIG}:\n    print('big')", "self.eps"), "", "rms_norm"),
    ("eps computed from a size", norm("", "1e-2 * x.shape[1]"), "", "AP209"),
    ("eps computed from the smaller of a size and a number",
     norm("", "min(x.shape[0], 99) * 1e-2"), "", "AP209"),
    ("eps computed from a size, in steps",
     norm("rows, tokens, _ = x.shape\nk = tokens / 8\neps = k * 1e-6", "eps"), "", "AP209"),
    ("eps of self computed from a size", norm("self.k = 1e-2 * x.shape[1]", "self.k"), "", "AP209"),
    ("eps computed from a length", norm("eps = 1e-6 * len(x)", "eps"), "", "AP209"),
    ("eps computed from a count", norm("n = x.numel()", "(1e-6 * n)"), "", "AP209"),
    ("right: a width, which weights decide", norm("", "1e-6 * x.shape[-1]"), "", "rms_norm"),
    ("right: sizes of views",
     norm("b, s, c = x.shape\nx = x.view(b * s, c).view(b, s, c)", "self.eps"), "", "rms_norm"),
    ("right: a size is computed with, elsewhere",
     norm("k = x.shape[1] / 8\nx = x * k", "self.eps"), "", "rms_norm"),
    ("right: a shape of the weight is looked at",
     norm("if self.weight is None:\n    raise ValueError", "self.eps"), "", "rms_norm"),
    ("right: another name is bound", norm(f"k = 1\nif {BIG}:\n    k = 2", "self.eps"), "", "rms_norm"),
    ("right: it raises", norm(f"if {BIG}:\n    raise ValueError(f'{{x}}')", "1e-6"), "", "rms_norm"),
    ("right: a size is checked",
     norm("if x.shape[1] > 99:\n    raise ValueError(x.shape)", "1e-6"), "", "rms_norm"),
    ("right: the input is another", norm(f"if {BIG}:\n    x = x / 2", "1e-6"), "", "rms_norm"),
]  # fmt: skip
MLPS: list[Entry] = [
    ("a function bound in a branch", mlp(f"act = F.silu\nif {BIG}:\n    act = F.gelu", "act"), "",
     "AP101"),
    ("a function chosen by a value", mlp(f"act = F.gelu if {BIG} else F.silu", "act"), "", "AP101"),
    ("a function chosen by an index",
     mlp(f"act = (F.silu, F.gelu)[bool({BIG})]", "act"), "", "AP101"),
    ("a module bound in a branch", mlp(f"m = self.up\nif {BIG}:\n    m = self.gate", up="m"), "",
     "AP101"),
    ("modules that change places",
     mlp(f"if {BIG}:\n    self.up, self.gate = self.gate, self.up"), "", "AP101"),
    ("modules that change places by an argument",
     mlp("if self.training:\n    self.up, self.gate = self.gate, self.up"), "", "AP203"),
    ("a function by a size", mlp("act = F.silu if x.size(1) < 99 else F.gelu", "act"), "", "AP209"),
    ("right: a function without a choice", mlp(f"act = F.silu\nif {BIG}:\n    print('big')", "act"), "",
     "gated_mlp"),
    ("right: the result is scaled", mlp(f"k = 2.0 if {BIG} else 1.0").replace(" * self.up(x))",
     " * self.up(x)) * k"), "", "gated_mlp"),
    ("right: a function chosen by an attribute", mlp("act = F.gelu if self.training else F.silu", "act"),
     "", "gated_mlp"),
]  # fmt: skip
DECIDED = [(NORM, "rms_norm", *e) for e in NORMS] + [(MLP, "gated_mlp", *e) for e in MLPS]
