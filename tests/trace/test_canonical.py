"""Spellings of one operation have one canonical form; what means something else keeps its own."""

from __future__ import annotations

import textwrap

import pytest

from neuron_autoport.trace.ops import Op, OpGraph
from tests.helpers import graph_of

TEMPLATE = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(W))
        self.matrix = nn.Parameter(torch.ones(I, W))
        self.bias = nn.Parameter(torch.ones(I))
        self.silu, self.gelu, self.tanh = nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh")
        self.named = nn.ModuleDict({{k: ACT2FN[k] for k in NAMES}})
        self.drop, self.same = nn.Dropout(0.5), nn.Identity()

    def forward(self, x):
{body}
NAMES = ["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "quick_gelu", "relu", "sigmoid", "tanh"]
"""


def written(op: Op) -> str:
    """An op as one short text: name, operands, and the attributes that mean something."""
    operands = ", ".join(_operand(v) for v in op.inputs)
    attrs = {k: v for k, v in op.attrs.items() if k not in ("same", "implicit", "kwargs")}
    shown = "".join(f", {k}={str(v).replace('torch.', '')}" for k, v in sorted(attrs.items()))
    return f"{op.name}({operands}{shown})"


def _operand(value: object) -> str:
    if isinstance(value, Op):
        return str(value.target) if value.name in ("input", "param") else f"%{value.index}"
    return str(value)


def canonical(body: str) -> list[str]:
    source = TEMPLATE.format(body=textwrap.indent(body, " " * 8))
    graph = graph_of(source)
    lines, number = [], {}
    for op in graph.ops:
        if op.name not in ("input", "param"):
            number[op.index] = len(lines)
            text = written(op)
            for old, new in number.items():
                text = text.replace(f"%{old})", f"#{new})").replace(f"%{old},", f"#{new},")
            lines.append(text.replace("#", "%"))
    return lines


def one(*spellings: str, to: str) -> list[tuple[str, list[str]]]:
    return [(f"return {s}", [to]) for s in spellings]


TABLE: list[tuple[str, list[str]]] = [
    *one("x.pow(2)", "x**2", "x**2.0", "x * x", "torch.square(x)", "x.square()", "torch.pow(x, 2)",
         "torch.pow(input=x, exponent=2)", "torch.mul(x, x)", to="square(x)"),
    *one("x.pow(3)", "x**3", to="pow(x, 3)"),
    *one("torch.pow(2, x)", to="pow(2, x)"),
    *one("torch.rsqrt(x)", "x.rsqrt()", "x**-0.5", "x.pow(-0.5)", "torch.pow(x, -0.5)",
         to="rsqrt(x)"),
    *one("torch.sqrt(x)", "x.sqrt()", "x**0.5", to="sqrt(x)"),
    *[(f"return {s}", ["sqrt(x)", "rsqrt(x)"]) for s in (
        "1 / torch.sqrt(x)", "1.0 / x.sqrt()", "torch.reciprocal(x.sqrt())", "x.sqrt().reciprocal()")],
    *[(f"return {s}", ["sqrt(x)", "rsqrt(x)", "mul(x, %1)"]) for s in (
        "x / torch.sqrt(x)", "x / x.sqrt()", "torch.div(x, x**0.5)")],
    *one("1 / x", "x.reciprocal()", "x**-1", to="reciprocal(x)"),
    *one("2 / x", to="div(2, x)"),
    *one("F.silu(x)", "self.silu(x)", "self.named['silu'](x)", to="silu(x)"),
    *[(f"return {s}", ["sigmoid(x)", "silu(x)"]) for s in (
        "x * torch.sigmoid(x)", "x.sigmoid() * x", "F.sigmoid(x) * x",
        "torch.special.expit(x) * x")],
    *one("F.gelu(x)", "self.gelu(x)", "self.named['gelu'](x)", "F.gelu(x, approximate='none')",
         to="gelu(x)"),
    *one("F.gelu(x, approximate='tanh')", "self.tanh(x)", "self.named['gelu_pytorch_tanh'](x)",
         to="gelu_tanh(x)"),
    *one("self.named['gelu_new'](x)", to="gelu_tanh(x)"),
    *one("self.named['quick_gelu'](x)", to="quick_gelu(x)"),
    *one("self.named['relu'](x)", "F.relu(x)", "torch.relu(x)", "x.relu()", to="relu(x)"),
    *one("self.named['tanh'](x)", "torch.tanh(x)", "x.tanh()", to="tanh(x)"),
    *one("F.elu(x)", to="unknown:elu(x, 1.0, False)"),
    *one("x.to(torch.float32)", "x.float()", "x.to(dtype=torch.float32)", "x.type(torch.float32)",
         "x.to(torch.float32, copy=True)",
         to="cast(x, dtype=float32)"),
    *one("x.double()", to="cast(x, dtype=float64)"),
    *[(f"return {s}", ["cast(w, dtype=float64)", "cast(x, dtype=float64)"]) for s in (
        "x.type_as(self.w.double())", "x.to(self.w.double())")],
    # A cast that changes nothing is a view, and so is what only changes the shape.
    *one("x.to(torch.bfloat16)", "x.bfloat16()", "x.to(x.dtype)", "x.type_as(x)", "x.contiguous()",
         "x.clone()", "x.detach()", "x.view(2, 7, W)", "self.same(x)", "self.drop(x)",
         "F.dropout(x, 0.5, self.training)", "F.dropout(x, p=0.0)", "x.reshape(14, W)",
         "x.flatten(0, 1)", to="view(x)"),
    *one("x.unsqueeze(0)", "torch.unsqueeze(x, 0)", to="view(x, unsqueeze=0)"),
    *one("F.dropout(x, 0.5)", "F.dropout(x, 0.5, True)", to="unknown:dropout(x)"),
    *one("x.view(torch.int16)", to="unknown:view_dtype(x)"),
    *one("x.to(torch.int8)", to="cast(x, dtype=int8)"),
    *one("x.mean(-1, keepdim=True)", "x.mean(dim=-1, keepdim=True)", "torch.mean(x, -1, True)",
         "x.mean(2, True)", "x.mean((-1,), True)", "x.mean([2], keepdim=True)",
         "torch.mean(input=x, dim=2, keepdim=True)", to="mean(x, dim=-1, keepdim=True)"),
    *one("x.mean(-1)", "torch.mean(x, dim=2)", to="mean(x, dim=-1, keepdim=False)"),
    *one("x.mean(1, keepdim=True)", "x.mean(-2, True)", to="mean(x, dim=-2, keepdim=True)"),
    *one("x.mean()", to="mean(x, dim=None, keepdim=False)"),
    *one("x.mean((1, 2))", "x.mean((-2, -1))", to="mean(x, dim=(-2, -1), keepdim=False)"),
    *one("x.sum(-1)", "torch.sum(x, 2)", to="sum(x, dim=-1, keepdim=False)"),
    ("return x.mean(-1, dtype=torch.float32)",
     ["cast(x, dtype=float32)", "mean(%0, dim=-1, keepdim=False)"]),
    *one("x + 1", "1 + x", "torch.add(x, 1)", "x.add(1)", to="add(x, 1)"),
    *one("x - 1", "torch.sub(x, 1)", to="sub(x, 1)"),
    *one("1 - x", "torch.rsub(x, 1)", to="sub(1, x)"),
    *one("torch.add(x, x, alpha=2)", to="unknown:add(x, x)"),
    *one("torch.div(x, 2, rounding_mode='floor')", to="unknown:div(x, 2)"),
    *one("x / 2", "x.div(2)", "torch.true_divide(x, 2)", to="div(x, 2)"),
    *one("-x", "x.neg()", "torch.neg(x)", to="neg(x)"),
    ("return x * self.w", ["mul(x, w)"]),
    ("return x * self.w.double()",
     ["cast(w, dtype=float64)", "cast(x, dtype=float64)", "mul(%1, %0)"]),
    ("return x.float() * self.w",
     ["cast(x, dtype=float32)", "cast(w, dtype=float32)", "mul(%0, %1)"]),
    *[(f"return {s}", ["pieces(x, dim=-1)", "slice(x, dim=-1, end=8, start=0)",
                       "slice(x, dim=-1, end=16, start=8)"]) for s in (
        "x.chunk(2, dim=-1)", "x.chunk(2, 2)", "torch.chunk(x, chunks=2, dim=-1)", "x.split(8, -1)",
        "torch.split(x, 8, dim=2)", "torch.split(tensor=x, split_size_or_sections=[8, 8], dim=-1)",
        "torch.tensor_split(x, 2, dim=-1)")],
    ("return x.split((3, 13), -1)", ["pieces(x, dim=-1)", "slice(x, dim=-1, end=3, start=0)",
                                     "slice(x, dim=-1, end=16, start=3)"]),
    ("return x.chunk(2)", ["pieces(x, dim=-3)", "slice(x, dim=-3, end=1, start=0)",
                           "slice(x, dim=-3, end=2, start=1)"]),
    *one("x[..., :8]", "x[:, :, :8]", "x[..., 0:-8]", "x.narrow(-1, 0, 8)", "torch.narrow(x, 2, 0, 8)",
         "x.narrow(dim=2, start=0, length=8)", to="slice(x, dim=-1, end=8, start=0)"),
    *one("x[..., 8:]", "x[..., -8:]", "x.narrow(-1, -8, 8)", to="slice(x, dim=-1, end=16, start=8)"),
    *one("x[..., ::2]", "x[:, :, ::2]", "x[..., 0::2]", "x[:, ..., ::2]",
         to="getitem(x, key=(Ellipsis, slice(None, None, 2)))"),
    *one("x[..., 1::2]", "x[:, :, 1::2]", to="getitem(x, key=(Ellipsis, slice(1, None, 2)))"),
    *one("x[..., 2::2]", to="getitem(x, key=(Ellipsis, slice(2, None, 2)))"),
    *one("x[:, ::2]", to="getitem(x, key=(slice(None, None, None), slice(None, None, 2)))"),
    *one("x.unsqueeze(1)", "x[:, None]", "x[:, None, :, :]", "x[:, None, ...]", "x.unsqueeze(-3)",
         to="view(x, unsqueeze=1)"),
    *one("x[..., None]", "x.unsqueeze(-1)", to="view(x, unsqueeze=3)"),
    *one("x[None, :, None]", to="getitem(x, key=(None, slice(None, None, None), None))"),
    *one("x[0, None]", to="getitem(x, key=(0, None))"),
    *one("x.repeat_interleave(2, dim=-1)", "torch.repeat_interleave(x, 2, 2)", to="repeat_pairs(x)"),
    *one("x.repeat_interleave(3, dim=-1)", to="unknown:repeat_interleave(x, 3, -1)"),
    *one("x.repeat_interleave(2, 1)", to="unknown:repeat_interleave(x, 2, 1)"),
    ("return torch.stack((x, x), -1).flatten(-2)", ["stack(x, x, dim=-1)", "repeat_pairs(x)"]),
    ("return torch.stack((x, x), -2).flatten(-2)",
     ["stack(x, x, dim=-2)", "view(%0)"]),
    ("return torch.view_as_real(torch.view_as_complex(x.float().view(2, 7, -1, 2))).flatten(-2)",
     ["cast(x, dtype=float32)", "view(%0)", "pairs_as_complex(%0)", "as_real(%2)",
      "complex_as_pairs(%2)"]),
    ("return torch.view_as_complex(x.float().view(2, -1, 2))",
     ["cast(x, dtype=float32)", "view(%0)", "unknown:view_as_complex(%1)"]),
    *one("x[:, :3]", to="getitem(x, key=(slice(None, None, None), slice(None, 3, None)))"),
    *one("x[0, :, :8]", to="getitem(x, key=(0, slice(None, None, None), slice(None, 8, None)))"),
    *one("x.transpose(1, 2)", "x.transpose(-1, -2)", "torch.transpose(x, 1, 2)",
         "x.transpose(dim0=1, dim1=2)", "x.swapaxes(1, 2)", "torch.swapaxes(x, axis0=1, axis1=2)",
         "x.permute(0, 2, 1)", "x.permute((0, 2, 1))", "x.permute(dims=(0, 2, 1))",
         "torch.permute(x, (0, -1, -2))", to="permute(x, order=(-3, -1, -2))"),
    ("return F.linear(x, self.matrix)", ["linear(x, matrix, None, layout=out_in)"]),
    ("return F.linear(x, weight=self.matrix, bias=self.bias)",
     ["linear(x, matrix, bias, layout=out_in)"]),
    # Functions spelled out: what they absorb stays listed before them.
    ("return x * torch.sigmoid(1.702 * x)", ["mul(x, 1.702)", "sigmoid(%0)", "quick_gelu(x)"]),
    ("return F.relu(x) ** 2", ["relu(x)", "relu2(x)"]),
    ("return torch.square(x.relu())", ["relu(x)", "relu2(x)"]),
    ("return x * (torch.erf(x * 0.7071067811865476) + 1) / 2",
     ["mul(x, 0.7071067811865476)", "erf(%0)", "add(%1, 1)", "mul(x, %2)", "gelu(x)"]),
    ("return x * torch.sigmoid(1.7 * x)", ["mul(x, 1.7)", "sigmoid(%0)", "mul(x, %1)"]),
    ("return x @ self.matrix.t()", ["permute(matrix, order=(-1, -2))", "linear(x, matrix, None, layout=out_in)"]),
    ("return x @ self.matrix.T", ["permute(matrix, order=(-1, -2))", "linear(x, matrix, None, layout=out_in)"]),
    ("return torch.addmm(self.bias, x[0], self.matrix.t())",
     ["getitem(x, key=0)", "permute(matrix, order=(-1, -2))",
      "linear(%0, %1, bias, layout=in_out)"]),
    *one("torch.softmax(x, -1)", "x.softmax(dim=2)", "F.softmax(x, dim=-1)",
         to="softmax(x, dim=-1, dtype=None)"),
    *one("F.softmax(x, dim=1, dtype=torch.float32)", to="softmax(x, dim=-2, dtype=float32)"),
    *one("torch.cat((x, x), dim=-1)", "torch.cat([x, x], 2)", to="cat(x, x, dim=-1)"),
    *one("F.layer_norm(x, (W,), self.w)", to="layer_norm(x, w, None, 1e-05)"),
    *one("F.rms_norm(x, (W,), self.w, 1e-3)", to="rms_norm(x, w, 0.001)"),
    *one("x.flip(-1)", to="unknown:flip(x, -1)"),
    ("x.add_(1)\nreturn x", ["unknown:add_(x, 1)"]),
    ("x[..., 0] = 1\nreturn x", ["unknown:__setitem__(x, (Ellipsis, 0), 1)"]),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), TABLE, ids=[t[0] for t in TABLE])
def test_canonical(body: str, expected: list[str]) -> None:
    assert canonical(body) == expected


def test_in_place_operations_name_what_they_write() -> None:
    graph = graph_of(TEMPLATE.format(body=" " * 8 + "F.hardswish(x, inplace=True); return x"))
    (op,) = [o for o in graph.ops if o.inplace]
    assert [w.target for w in op.written] == ["x"]
    assert op.name.startswith("unknown:") and graph.outputs == (op,)


FRESH = {
    "of a value with a name": "y = x + 1\nreturn self.write(y)",
    "of an expression": "return self.write(x.exp())",
    "of a product": "return self.write(x @ self.matrix.T)",
    "by keyword": "return self.write(input=x * 2)",
}


@pytest.mark.parametrize("body", FRESH.values(), ids=FRESH)
def test_an_activation_in_place_of_what_nothing_else_sees_is_the_plain_one(body: str) -> None:
    (op,) = in_place(body).named(frozenset({"relu"}))
    assert not op.inplace and not op.written


SEEN = {
    "the input": "return F.relu(x, inplace=True)",
    "the input, by a child": "return self.write(x)",
    "a view": "y = x + 1\nreturn self.write(y.view(-1, W))",
    "a view of a view's value": "y = x + 1\nz = y.view(-1, W)\nF.relu(z, inplace=True)\nreturn y",
    "read before": "y = x + 1\nz = y * 2\nreturn self.write(y) + z",
    "read after, by its name": "y = x + 1\nz = self.write(y)\nreturn y + z",
    "returned": "y = x + 1\nreturn self.write(y), y",
    "of a child that may return its input": "y = self.same(x)\nreturn self.write(y)",
    "by a function: its result is its input": "y = x + 1\nF.relu(y, inplace=True)\nreturn y",
    "by a method": "return (x * 2).relu_()",
    "of another in place": "return self.write(self.write(x))",
    "a parameter": "return F.relu(self.w, inplace=True) + x",
}


@pytest.mark.parametrize("body", SEEN.values(), ids=SEEN)
def test_an_activation_in_place_of_what_is_seen_elsewhere_stays_in_place(body: str) -> None:
    found = in_place(body).named(frozenset({"relu"}))
    assert found and found[0].inplace and found[0].written


def in_place(body: str) -> OpGraph:
    init = "self.drop, self.same = nn.Dropout(0.5), nn.Identity()"
    source = TEMPLATE.replace(init, f"{init}; self.write = nn.ReLU(inplace=True)")
    return graph_of(source.format(body=textwrap.indent(body, " " * 8)))


KEPT = ("x.mean(-1, keepdim=True)", "x.mean(-1).unsqueeze(-1)", "x.mean(2)[..., None]",
        "torch.unsqueeze(x.mean((-1,)), dim=2)", "torch.mean(x, -1)[:, :, None]")  # fmt: skip


@pytest.mark.parametrize("spelling", KEPT)
def test_an_axis_put_back_is_one_that_is_kept(spelling: str) -> None:
    graph = graph_of(TEMPLATE.format(body=f"        return {spelling}"))
    (last,) = graph.outputs
    assert (last.name, last.attrs) == ("mean", {"dim": -1, "keepdim": True})
    assert last.shape == (2, 7, 1)


MOVED = ("x.mean(-1).unsqueeze(1)", "x.mean(-1)[:, None]", "x.mean(-1)[None]", "x.mean(1)[..., None]",
         "x.mean((1, 2)).unsqueeze(-1)", "x.mean().unsqueeze(-1)",
         "x.mean(-1, keepdim=True).unsqueeze(-1)", "x.amax(-1).unsqueeze(-1)")  # fmt: skip


@pytest.mark.parametrize("spelling", MOVED)
def test_an_axis_put_elsewhere_is_another_value(spelling: str) -> None:
    graph = graph_of(TEMPLATE.format(body=f"        return {spelling}"))
    (last,) = graph.outputs
    assert last.name == "view" and "unsqueeze" in last.attrs
