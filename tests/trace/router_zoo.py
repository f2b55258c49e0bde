"""Routers and experts written in odd ways: same facts, other facts, or look-alikes that must be refused.

Each router is the body of `forward(self, x, logits)` that returns (weights, indices); `logits` are a linear map of x
with 8 experts, 2 are chosen, `self.bias` is [8]. Each experts' gate is the body of `_apply_gate(self, g)`.
"""

from __future__ import annotations

ROUTER = """
from transformers.integrations.moe import use_experts_implementation

E, K = 8, 2


class Settings:
    _experts_implementation = "grouped_mm"


@use_experts_implementation
class Experts(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.num_experts = E
        self.gate_up_proj = nn.Parameter(torch.empty(E, 2 * I, W))
        self.down_proj = nn.Parameter(torch.empty(E, W, I))
        self.act_fn = nn.SiLU()

    def forward(self, rows, chosen, weights):
        raise NotImplementedError

    def _apply_gate(self, g):
{gate}


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(E, W))
        self.register_buffer("bias", torch.zeros(E))
        self.factor = nn.Parameter(torch.ones(E))

    def forward(self, x):
        return self.route(x, F.linear(x, self.weight))

    def route(self, x, logits):
{route}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router()
        self.experts = Experts(Settings())

    def forward(self, hidden):
        rows = hidden.view(-1, W)
        weights, chosen = self.router(rows)
        return self.experts(rows, chosen, weights).view(hidden.shape)
"""

# name -> (body, summary)
ROUTERS: dict[str, tuple[str, str]] = {
    "functions": (
        "s = torch.softmax(logits.float(), -1)\nw, i = torch.topk(s, K)\nreturn w, i",
        "softmax, top 2 of 8",
    ),
    "methods and keywords": (
        "s = logits.softmax(dim=-1, dtype=torch.float32)\nw, i = s.topk(k=K, dim=-1, sorted=False)\n"
        "w = w / w.sum(axis=-1, keepdims=True)\nreturn w.to(x.dtype), i",
        "softmax, top 2 of 8, renormalized",
    ),
    "renormalized in place": (
        "s = F.softmax(logits, dim=1)\nw, i = s.topk(K)\nw /= w.sum(-1, keepdim=True)\nreturn w, i",
        "softmax, top 2 of 8, renormalized",
    ),
    "renormalized with a floor": (
        "s = logits.sigmoid()\nw, i = s.topk(K)\nw = w / w.sum(-1, keepdim=True).clamp(min=1e-6)\n"
        "return w, i",
        "sigmoid, top 2 of 8, renormalized",
    ),
    "score after top-k": (
        "v, i = logits.topk(K)\nreturn v.float().softmax(-1).to(x.dtype), i",
        "top 2 of 8, softmax",
    ),
    "logits gathered, then scored": (
        "i = (logits).topk(K)[1]\nreturn logits.gather(1, i).sigmoid(), i",
        "top 2 of 8, sigmoid",
    ),
    "bias as a row": (
        "s = logits.float().sigmoid()\ni = (self.bias.unsqueeze(0) + s).topk(K).indices\n"
        "return torch.take_along_dim(s, i, dim=-1) * 2.5, i",
        "sigmoid, top 2 of 8, chosen with a bias, × 2.5",
    ),
    "groups by their maximum, masked by a product": (
        "s = logits.float().softmax(-1)\ng = s.view(-1, 4, 2).amax(-1)\n"
        "j = g.topk(2).indices\nm = torch.zeros_like(g).scatter(1, j, 1)\n"
        "m = m.unsqueeze(-1).expand(-1, 4, 2).reshape(-1, E)\nw, i = (s * m).topk(K)\nreturn w, i",
        "softmax, top 2 of 8, in 2 of 4 groups",
    ),
    "a factor per expert": (
        "s = logits.float().softmax(-1)\nw, i = s.topk(K)\nw = w / w.sum(-1, keepdim=True)\n"
        "return w * self.factor[i], i",
        "softmax, top 2 of 8, renormalized, × a factor per expert",
    ),
    "divided by a number": (
        "s = logits.sigmoid()\nw, i = s.topk(K)\nreturn w / 4, i",
        "sigmoid, top 2 of 8, × 0.25",
    ),
    "square root of softplus": (
        "s = F.softplus(logits).sqrt()\nw, i = s.topk(K)\nreturn w, i",
        "sqrt_softplus, top 2 of 8",
    ),
    "capped logits": (
        "s = (torch.tanh(logits / 30.0) * 30.0).softmax(-1)\nw, i = s.topk(K)\nreturn w, i",
        "softmax, top 2 of 8, logits capped at 30",
    ),
}

# name -> (body, part of the reason)
REFUSED: dict[str, tuple[str, str]] = {
    "the smallest": (
        "w, i = logits.softmax(-1).topk(K, largest=False)\nreturn w, i", "not chosen by a top-k",
    ),
    "softmax over tokens": (
        "w, i = logits.softmax(0).topk(K)\nreturn w, i", "along another dimension",
    ),
    "bias in the weights": (
        "w, i = (logits.float().sigmoid() + self.bias).topk(K)\nreturn w, i",
        "`add` makes the scores",
    ),
    "divided by the sum over all experts": (
        "s = logits.sigmoid()\nw, i = s.topk(K)\nreturn w / s.sum(-1, keepdim=True), i",
        "what is not their sum",
    ),
    "scaled before renormalizing": (
        "w, i = logits.sigmoid().topk(K)\nw = w * 3\nreturn w / (w.sum(-1, keepdim=True) + 0.5), i",
        "scaled before they are renormalized",
    ),
    "temperature": (
        "w, i = (logits / 0.7).softmax(-1).topk(K)\nreturn w, i", "scaled before their score",
    ),
    "temperature after top-k": (
        "v, i = logits.topk(K)\nreturn (v * 2).softmax(-1), i", "stands between",
    ),
    "weights of other experts": (
        "s = logits.softmax(-1)\nw, i = s.topk(K)\nreturn w, i.flip(-1)", "not chosen by a top-k",
    ),
    "scores of another map": (
        "s = logits.softmax(-1)\ni = F.linear(x, self.weight * 2).softmax(-1).topk(K)[1]\n"
        "return s.gather(1, i), i",
        "other numbers than their scores",
    ),
    "indices cast to float and back": (
        "w, i = logits.softmax(-1).topk(K)\nreturn w, (i.float() * 1).long()",
        "not chosen by a top-k",
    ),
    "scores written in place between": (
        "s = logits.softmax(-1)\nt = s.view(-1, E)\ni = s.topk(K)[1]\ns.mul_(2)\n"
        "return t.gather(1, i), i",
        "other numbers than their scores",
    ),
    "the worst groups": (
        "s = logits.softmax(-1)\ng = s.view(-1, 4, 2).amax(-1)\n"
        "j = g.topk(2, largest=False).indices\nm = torch.zeros_like(g).scatter(1, j, 1)\n"
        "m = m.unsqueeze(-1).expand(-1, 4, 2).reshape(-1, E)\n"
        "w, i = s.masked_fill(~m.bool(), 0.0).topk(K)\nreturn w, i",
        "smallest groups",
    ),
    "groups left out, not kept": (
        "s = logits.softmax(-1)\ng = s.view(-1, 4, 2).amax(-1)\n"
        "j = g.topk(2).indices\nm = torch.zeros_like(g).scatter(1, j, 1)\n"
        "m = m.unsqueeze(-1).expand(-1, 4, 2).reshape(-1, E)\n"
        "w, i = s.masked_fill(m.bool(), 0.0).topk(K)\nreturn w, i",
        "not the inverse of kept groups",
    ),
    "interleaved groups": (
        "s = logits.softmax(-1)\ng = s.view(-1, 2, 4).amax(1)\n"
        "j = g.topk(2).indices\nm = torch.zeros_like(g).scatter(1, j, 1)\n"
        "m = m.unsqueeze(-1).expand(-1, 4, 2).reshape(-1, E)\n"
        "w, i = s.masked_fill(~m.bool(), 0.0).topk(K)\nreturn w, i",
        "makes the groups' scores",
    ),
    "groups judged without the bias": (
        "s = logits.float().sigmoid()\nc = s + self.bias\ng = s.view(-1, 4, 2).topk(2)[0].sum(-1)\n"
        "j = g.topk(2).indices\nm = torch.zeros_like(g).scatter(1, j, 1)\n"
        "m = m.unsqueeze(-1).expand(-1, 4, 2).reshape(-1, E)\n"
        "i = c.masked_fill(~m.bool(), float('-inf')).topk(K)[1]\nreturn s.gather(1, i), i",
        "of other numbers than the choice",
    ),
    "factor before renormalizing": (
        "w, i = logits.softmax(-1).topk(K)\nw = w * self.factor[i]\n"
        "return w / w.sum(-1, keepdim=True), i",
        "before the weights are renormalized",
    ),
    "noise": (
        "w, i = (logits + torch.randn_like(logits)).softmax(-1).topk(K)\nreturn w, i",
        "makes the logits, not a linear map",
    ),
    "softmax of chosen scores": (
        "w, i = logits.softmax(-1).topk(K)\nreturn w.exp(), i", "`exp` stands between",
    ),
}  # fmt: skip

# name -> (body of `_apply_gate`, summary or None if it must be refused)
GATES: dict[str, tuple[str, str | None]] = {
    "halves": ("a, b = g.chunk(2, dim=-1)\nreturn F.silu(a) * b", "act=silu, gate|up"),
    "product the other way": (
        "a, b = g.split(I, dim=-1)\nreturn b * (a * torch.sigmoid(a))", "act=silu, gate|up",
    ),
    "gate second": ("a, b = g.chunk(2, dim=-1)\nreturn a * F.gelu(b)", "act=gelu, up|gate"),
    "tanh gelu": (
        "return F.gelu(g[..., :I], approximate='tanh') * g[..., I:]", "act=gelu_tanh, gate|up",
    ),
    "interleaved": ("return F.silu(g[..., ::2]) * g[..., 1::2]", "act=silu, gate, up interleaved"),
    "clamped": (
        "a, b = g.chunk(2, dim=-1)\nreturn F.silu(a.clamp(max=7)) * b.clamp(-7, 7)",
        "act=silu, gate|up, gate ≤ 7, |up| ≤ 7",
    ),
    "swish with alpha and one more": (
        "a, b = g.chunk(2, dim=-1)\nreturn (b + 1) * (a * torch.sigmoid(a * 1.702))",
        "act=swish(1.702x), gate|up, up + 1",
    ),
    "alpha on another value": (
        "a, b = g.chunk(2, dim=-1)\nreturn (b + 1) * (a * torch.sigmoid(b * 1.702))", None,
    ),
    "clamped on one side only": (
        "a, b = g.chunk(2, dim=-1)\nreturn F.silu(a) * b.clamp(max=7)", None,
    ),
    "clamped after the activation": (
        "a, b = g.chunk(2, dim=-1)\nreturn F.silu(a).clamp(max=7) * b", None,
    ),
    "thirds that overlap": ("return F.silu(g[..., :I]) * g[..., I - 1 : -1]", None),
    "a sum": ("a, b = g.chunk(2, dim=-1)\nreturn F.silu(a) + b", None),
    "scaled up": ("a, b = g.chunk(2, dim=-1)\nreturn F.silu(a) * (b * 2)", None),
    "both halves activated": ("a, b = g.chunk(2, dim=-1)\nreturn F.silu(a) * F.silu(b)", None),
}  # fmt: skip
PLAIN_GATE = GATES["halves"][0]
PLAIN_ROUTER = ROUTERS["functions"][0]
