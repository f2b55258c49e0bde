"""Properties: rules hold over sizes and dtypes, every spelling of one computation matches, one change does not.

Hypothesis draws sizes, spellings and changes; each drawn module is traced, matched, rewritten and proved on random
inputs. Numbers are compared with the module itself in a higher precision.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from neuron_autoport.prove.modules import prove_module
from neuron_autoport.rewrite.plan import ClassPlan, plan_class
from neuron_autoport.trace.attention import TRACE_ATTENTION
from neuron_autoport.trace.tracer import trace_model
from tests.helpers import family, generated_of, holds_in, real_instance, zoo_class

SETTINGS = settings(
    max_examples=20, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
pick = st.sampled_from
HALVES = pick((torch.bfloat16, torch.float16))
DTYPES = pick((torch.bfloat16, torch.float16, torch.float32))


def tried(
    source: str, shape: tuple[int, ...], rules: Any, dtype: torch.dtype = torch.bfloat16
) -> tuple[ClassPlan, type[nn.Module]]:
    """The plan of a class for inputs of this shape and dtype, and the class."""
    cls = zoo_class(source)
    with torch.device("meta"):
        module: Any = cls().to(dtype).eval()
    if hasattr(module, "config"):
        module.config._attn_implementation = TRACE_ATTENTION
    trace = trace_model(module, (torch.empty(shape, dtype=dtype, device="meta"),))
    assert trace.end is None, trace.end
    return plan_class(trace, rules), cls


def proved(plan: ClassPlan, cls: type[nn.Module], shape: tuple[int, ...]) -> bool:
    """Right on two random inputs, in float32 and in bfloat16; the second has another token count."""
    calls: list[Any] = []
    for seed, tokens in ((0, shape[1]), (1, shape[1] + 3)):
        x = torch.randn(shape[0], tokens, shape[2], generator=torch.Generator().manual_seed(seed))
        calls.append(((x,), {}))
    rewritten = generated_of(plan).classes[plan]
    return prove_module("", real_instance(cls), plan, rewritten, calls).passed


def wrong_or_refused(source: str, shape: tuple[int, ...], rules: Any) -> bool:
    """Does no rule take it, or does the rewrite of one that does still compute what it must?"""
    plan, cls = tried(source, shape, rules)
    return not plan.sites or proved(plan, cls, shape)


# RMS norm.

UPCASTS = ("x.float()", "x.to(torch.float32)", "x.to(dtype=torch.float32)", "x.type(torch.float32)")
SQUARES = ("h.pow(2)", "h ** 2", "h * h", "h.square()", "torch.square(h)", "torch.pow(h, 2)",
           "torch.mul(h, h)")  # fmt: skip
MEANS = ("({}).mean(-1, keepdim=True)", "torch.mean({}, -1, True)", "({}).mean(2, keepdim=True)",
         "torch.mean({}, dim=(-1,), keepdim=True)")  # fmt: skip
PUT_BACK = ("({}).mean(-1).unsqueeze(-1)", "torch.mean({}, -1)[..., None]")
SUMS = ("{} + self.eps", "self.eps + {}", "torch.add({}, self.eps)", "({}).add(self.eps)")
ROOTS = ("torch.rsqrt({})", "({}).rsqrt()", "({}) ** -0.5", "({}).pow(-0.5)",
         "1 / torch.sqrt({})", "1.0 / ({}).sqrt()", "torch.reciprocal(({}).sqrt())")  # fmt: skip
PRODUCTS = ("h * r", "r * h", "torch.mul(h, r)", "h.mul(r)")
DOWNCASTS = ("n.to(x.dtype)", "n.type_as(x)", "n.to(dtype=x.dtype)", "n.to(x)")
WEIGHTS = ("self.weight * {}", "{} * self.weight", "torch.mul(self.weight, {})")

NORM = """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones({width}))
        self.eps = {eps}

    def forward(self, x):
        h = {upcast}
        r = {root}
        n = {product}
        return {result}
"""
norm_spelling = st.fixed_dictionaries(
    {"upcast": pick(UPCASTS), "square": pick(SQUARES), "mean": pick(MEANS), "sum": pick(SUMS),
     "root": pick(ROOTS), "product": pick(PRODUCTS), "down": pick(DOWNCASTS),
     "weight": pick(WEIGHTS)}
)  # fmt: skip


def norm(spelling: dict[str, str], width: int = 16, eps: float = 1e-5) -> str:
    mean = spelling["mean"].format(spelling["square"])
    root = spelling["root"].format(spelling["sum"].format(mean))
    result = spelling["weight"].format(spelling["down"])
    return NORM.format(
        width=width, eps=eps, upcast=spelling["upcast"], root=root,
        product=spelling["product"], result=result,
    )  # fmt: skip


@SETTINGS
@given(
    norm_spelling,
    st.none() | pick(PUT_BACK),
    pick((1, 3, 16, 64, 80, 96, 128, 256, 1000, 4096)),
    st.integers(1, 65),
    HALVES,
)
def test_every_spelling_of_an_rms_norm(
    spelling: dict[str, str], mean: str | None, width: int, tokens: int, dtype: torch.dtype
) -> None:
    """In float32 the casts leave no trace, so the two halves only."""
    shape, spelling = (2, tokens, width), {**spelling, "mean": mean or spelling["mean"]}
    plan, cls = tried(norm(spelling, width), shape, family("norm"), dtype)
    assert [s.rule.name for s in plan.sites] == ["rms_norm"], plan.refusals
    assert proved(plan, cls, shape)
    assert holds_in(dtype, plan, cls, shape)


@SETTINGS
@given(norm_spelling, st.floats(1e-8, 1e-1, allow_nan=False))
def test_epsilon_is_read_not_assumed(spelling: dict[str, str], eps: float) -> None:
    plan, cls = tried(norm(spelling, eps=eps), (2, 5, 16), family("norm"))
    assert [s.match.values["eps"] for s in plan.sites] == [eps]
    assert proved(plan, cls, (2, 5, 16))


NORM_CHANGES = (
    ("(-1", "(1"), ("keepdim=True)", "keepdim=True) * 2"), ("self.eps", "(self.eps * 2 + h.mean())"),
    ("torch.rsqrt", "torch.sqrt"), ("h = ", "h = 2 * "), ("n = ", "n = h + "),
    ("r = ", "r = 0.5 * "), ("return ", "return 1 + "), ("self.weight", "self.weight.exp()"),
    ("self.weight", "self.weight.clamp(min=0.1)"), ("self.weight", "(0.5 + self.weight)"),
    ("return ", "x = x * 2\n        return "),
)  # fmt: skip


@settings(SETTINGS, max_examples=25)
@given(norm_spelling, pick(NORM_CHANGES))
def test_one_change_of_a_norm_is_refused_or_kept(
    spelling: dict[str, str], change: tuple[str, str]
) -> None:
    head, _, body = norm(spelling).partition("def forward")
    assert wrong_or_refused(
        head + "def forward" + body.replace(*change, 1), (2, 5, 16), family("norm")
    )


# Gated MLP.

SILUS = ("F.silu({})", "nn.functional.silu(input={})", "self.act({})", "torch.sigmoid({0}) * {0}",
         "self.act(input={})", "self.write({})", "torch.special.expit({0}) * {0}",
         "{0} * {0}.sigmoid()", "{0} / (1 + torch.exp(-{0}))", "ACT2FN['silu']({})")  # fmt: skip
GLUS = ("{} * {}", "torch.mul({}, {})", "({}).mul({})")
MLP = """
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear({width}, {inner}, bias={gate_bias})
        self.up = nn.Linear({width}, {inner}, bias={up_bias})
        self.down = nn.Linear({inner}, {width}, bias={down_bias})
        self.act, self.write = nn.SiLU(), nn.SiLU(inplace=True)

    def forward(self, x):
        {first}
        {second}
        return self.down({product})
"""
mlp_spelling = st.fixed_dictionaries(
    {"silu": pick(SILUS), "glu": pick(GLUS), "swap": st.booleans(), "order": st.booleans(),
     "call": pick(("x", "input=x")),
     "gate_bias": st.booleans(), "up_bias": st.booleans(), "down_bias": st.booleans()}
)  # fmt: skip


def mlp(spelling: dict[str, Any], width: int = 16, inner: int = 24) -> str:
    call = spelling["call"]
    lines = [f"g = self.gate({call})", f"u = self.up({call})"][:: 1 if spelling["order"] else -1]
    parts = [f"({spelling['silu'].format('g')})", "u"][:: -1 if spelling["swap"] else 1]
    biases = {k: spelling[k] for k in ("gate_bias", "up_bias", "down_bias")}
    product = spelling["glu"].format(*parts)
    return MLP.format(
        width=width, inner=inner, first=lines[0], second=lines[1], product=product, **biases
    )


@SETTINGS
@given(mlp_spelling, pick((16, 48, 100, 256)), pick((8, 24, 130, 512)), st.integers(1, 33), DTYPES)
def test_every_spelling_of_a_gated_mlp(
    spelling: dict[str, Any], width: int, inner: int, tokens: int, dtype: torch.dtype
) -> None:
    shape = (2, tokens, width)
    plan, cls = tried(mlp(spelling, width, inner), shape, family("mlp"), dtype)
    assert [s.rule.name for s in plan.sites] == ["gated_mlp"], plan.refusals
    assert proved(plan, cls, shape)
    assert holds_in(dtype, plan, cls, shape)


MLP_CHANGES = (
    ("g = self.gate(x)", "g = self.gate(x + 1)"), ("u = self.up(x)", "u = self.up(x) + 1"),
    ("self.down(", "self.down(0.5 * "), ("u = self.up(x)", "u = self.gate(x)"),
    ("return ", "return -"), ("g = self.gate(x)", "g = self.gate(x).clamp(max=0.5)"),
    ("u = self.up(x)", "u = self.up(x).flip(1)"), ("return ", "x.zero_()\n        return x + "),
    ("u = self.up(x)", "u = F.silu(self.up(x))"), ("g = self.gate(x)", "g = self.gate(x) * 1.5"),
)  # fmt: skip


@settings(SETTINGS, max_examples=25)
@given(mlp_spelling, pick(MLP_CHANGES))
def test_one_change_of_a_gated_mlp_is_refused_or_kept(
    spelling: dict[str, Any], change: tuple[str, str]
) -> None:
    spelling = {**spelling, "call": "x"}  # what the changes are changes of
    # Of few rows the original may by luck be nearer in bfloat16 than any other order of roundings.
    assert wrong_or_refused(mlp(spelling).replace(*change), (2, 40, 16), family("mlp"))


# Query, key and value.

HEADS = (
    "{0}.view(b, s, {1}, {2}).transpose(1, 2)", "{0}.reshape(b, s, -1, {2}).transpose(1, 2)",
    "{0}.unflatten(-1, ({1}, {2})).permute(0, 2, 1, 3)", "{0}.view(b, s, {1}, {2}).swapaxes(1, 2)",
)  # fmt: skip
ATTENTION = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.a = nn.Linear({width}, {query})
        self.b = nn.Linear({width}, {key}, bias={bias})
        self.c = nn.Linear({width}, {key})
        self.o = nn.Linear({query}, {width}, bias=False)

    def forward(self, x):
        b, s, _ = x.shape
        {lines}
        out, _ = attend(self, q, k, v)
        return self.o(out.reshape(b, s, -1))
"""


@SETTINGS
@given(pick((16, 24, 64, 80, 96, 112, 128, 192, 256)), pick(((4, 4), (4, 2), (6, 1), (1, 1))),
       pick(HEADS), pick(HEADS), st.permutations(range(3)), st.booleans(), st.integers(2, 33),
       DTYPES)  # fmt: skip
def test_projections_of_every_head_size_and_order(
    head: int, heads: tuple[int, int], form: str, other: str, order: list[int], bias: bool,
    tokens: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    query, key = heads
    lines = [
        "q = " + form.format("self.a(x)", query, head),
        "k = " + other.format("self.b(x)", key, head),
        "v = " + form.format("self.c(x)", key, head),
    ]
    source = ATTENTION.format(
        width=48, query=query * head, key=key * head, bias=bias,
        lines="\n        ".join(lines[i] for i in order),
    )  # fmt: skip
    shape = (2, tokens, 48)
    plan, cls = tried(source, shape, family("attention"), dtype)
    assert sorted(s.rule.name for s in plan.sites) == ["o_proj", "qkv_proj"], plan.refusals
    weight = next(w for s in plan.sites for w in s.weights if s.rule.name == "qkv_proj")
    assert weight.sizes == (query * head, key * head, key * head) and weight.head_dim == head
    assert proved(plan, cls, shape)


def test_the_spellings_are_one_computation() -> None:
    """What the strategies call spellings is equal in plain torch, so a match of all is what is asked."""
    x = torch.randn(3, 7, 16, dtype=torch.float64)
    h = x
    for text in SQUARES:
        assert torch.allclose(eval(text, {"h": h, "torch": torch}), x * x)
    v = x.abs() + 1
    for text in ROOTS:
        found = eval(text.format("v"), {"v": v, "torch": torch})
        assert torch.allclose(found, torch.tensor(1.0, dtype=torch.float64) / v.sqrt())
    for text in (s for s in SILUS if "self" not in s and "ACT2FN" not in s):
        names = {"g": x, "torch": torch, "F": nn.functional, "nn": nn}
        assert torch.allclose(eval(text.format("g"), names), x / (1 + torch.exp(-x)))
    assert math.isclose(float(torch.rsqrt(torch.tensor(4.0))), 0.5)
